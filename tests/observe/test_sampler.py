"""Promises of observe.sampler: rows on time, whatever drivers and disks do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from telemetry_records import read_telemetry
from waiting import until

from hpckit.model.settings import Observe
from hpckit.model.telemetry.vocabulary import (
    GpuCounter,
    GpuDevice,
    GpuGauge,
    HostGauge,
    HostSample,
    TelemetryEvent,
    TelemetryEventKind,
    TelemetryRow,
)
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.observe.gpu_thread import GpuShares, GpuThread, open_gpu_backends
from hpckit.observe.host import HostReader
from hpckit.observe.sampler import NodeSampler, NodeSamples
from hpckit.observe.segments import SegmentWriter
from hpckit.record.layout import AttemptPaths
from hpckit.testing.nvml.fake_nvml import FakeNvml

START = datetime(2026, 1, 2, tzinfo=UTC)
NODE = "node1"
ALL = GpuChoice(whole_node=True)


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    """Return the folder of an attempt."""
    return AttemptPaths(tmp_path)


def rows_of(attempt: AttemptPaths) -> list[TelemetryRow]:
    """Return all rows that were written."""
    return [one for one in read_telemetry(attempt, NODE) if isinstance(one, TelemetryRow)]


def kinds_of(attempt: AttemptPaths) -> list[TelemetryEventKind]:
    """Return the kinds of all events that were written."""
    return [one.kind for one in read_telemetry(attempt, NODE) if isinstance(one, TelemetryEvent)]


@pytest.fixture
def samples(nvml: FakeNvml, attempt: AttemptPaths) -> Iterator[NodeSamples]:
    """Yield what takes samples of a node with two GPUs, every 5 s, with rows of 30 s."""
    nvml.profile("h100", gpus=2)
    writer = SegmentWriter(attempt=attempt, node=NODE, row_s=30, max_mb=60)
    opener = partial(open_gpu_backends, gpm=True, choice=ALL)
    gpus = GpuThread(opener, GpuShares(notes=None))
    taken = NodeSamples(writer=writer, interval=timedelta(seconds=5), host=HostReader(), gpus=gpus)
    yield taken
    gpus.close()


def run(samples: NodeSamples, fake: FakeNvml, since: float, until_s: float) -> None:
    """Take samples every 5 s."""
    at = since
    while at < until_s:
        fake.at(at)
        samples.take_sample(START + timedelta(seconds=at))
        at += 5


def test_rows_end_at_multiples_of_their_length(
    samples: NodeSamples, nvml: FakeNvml, attempt: AttemptPaths
) -> None:
    """A first row says what counters stood at; those that follow leave no gap."""
    nvml.load(0, {0: 0, 60: 1})
    run(samples, nvml, 12, 90)
    first, *others = rows_of(attempt)
    ends = [(row.end - START).total_seconds() for row in others]
    assert first.start == first.end
    assert ends == [27, 57, 87]
    assert [row.start for row in others] == [first.end, *(row.end for row in others[:-1])]
    gpu = others[1].gpus[0]
    assert gpu.samples == 6
    spread = gpu.gauges[GpuGauge.power_w]
    assert spread.min == pytest.approx(70 + 630 * 32 / 60, abs=1)
    assert spread.max == pytest.approx(70 + 630 * 57 / 60, abs=1)
    energy = [row.gpus[0].counters[GpuCounter.energy_j] for row in (first, *others)]
    assert energy == sorted(energy)
    assert first.host is not None
    assert first.host.gauges[HostGauge.sampler_s].max < 5


def test_row_leaves_out_what_the_node_was_suspended(
    samples: NodeSamples, nvml: FakeNvml, attempt: AttemptPaths
) -> None:
    """Of 55 s between two samples 40 were a suspension: shares of time are of the other 15."""
    clock, paused = [0.0], [0.0]
    samples.monotonic, samples.paused_s = lambda: clock[0], lambda _: paused[0]
    for moment, paused_s in ((0.0, 0.0), (55.0, 40.0), (85.0, 0.0)):
        clock[0], paused[0] = moment, paused_s
        nvml.at(moment)
        samples.take_sample(START + timedelta(seconds=moment))
    lengths = [(row.end - row.start).total_seconds() for row in rows_of(attempt)]
    assert lengths == [0, 15, 30]


def test_devices_are_named_before_their_rows(
    samples: NodeSamples, nvml: FakeNvml, attempt: AttemptPaths
) -> None:
    """Rows know GPUs by UUID; the lines before say what these are."""
    run(samples, nvml, 0, 10)
    _, *records = read_telemetry(attempt, NODE)
    devices = [record for record in records if isinstance(record, GpuDevice)]
    assert [device.uuid for device in devices] == [nvml.uuid(0), nvml.uuid(1)]
    assert records[:2] == devices


def test_a_storm_of_xids_is_two_lines_a_row(
    samples: NodeSamples, nvml: FakeNvml, attempt: AttemptPaths
) -> None:
    """The first is told at once, the others as a count."""
    told: list[TelemetryEvent] = []
    samples.on_event = told.append
    run(samples, nvml, 0, 5)
    for _ in range(40):
        nvml.xid(1, 31)
    run(samples, nvml, 5, 31)
    events = [one for one in read_telemetry(attempt, NODE) if isinstance(one, TelemetryEvent)]
    assert [(event.code, event.count) for event in events] == [(31, 1), (31, 39)]
    assert [one.code for one in told] == [31]


def test_an_error_of_ours_costs_a_sample_and_leaves_a_note(
    attempt: AttemptPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a library or a file of the system says: later samples are taken."""
    told: list[str] = []
    read = HostReader.read_sample

    def failing(reader: HostReader) -> HostSample:
        told.append("asked")
        if len(told) <= 2:
            raise ValueError("nonsense")
        return read(reader)

    monkeypatch.setattr(HostReader, "read_sample", failing)
    settings = Observe(interval_s=0.5, row_s=0.5, measure_gpus=False)
    sampler = NodeSampler(settings=settings, attempt=attempt, node=NODE)
    sampler.start()
    until(lambda: bool(rows_of(attempt)))
    assert sampler.stop(20)
    assert kinds_of(attempt) == [TelemetryEventKind.note]


def test_a_library_that_cannot_be_opened_is_noted(attempt: AttemptPaths) -> None:
    """Rows of the host go on."""

    def opener() -> NoReturn:
        raise ValueError("nonsense")

    settings = Observe(interval_s=0.5, row_s=0.5)
    sampler = NodeSampler(settings=settings, attempt=attempt, node=NODE, opener=opener)
    sampler.start()
    until(lambda: len(rows_of(attempt)) > 1)
    assert sampler.stop(20)
    assert kinds_of(attempt) == [TelemetryEventKind.note]


def test_a_driver_that_hangs_holds_up_no_row(
    samples: NodeSamples, nvml: FakeNvml, attempt: AttemptPaths
) -> None:
    """Rows go on without GPUs, say so, and have them again when the call returns."""
    samples.interval = timedelta(seconds=1)
    nvml.at(0)
    samples.take_sample(START)
    nvml.change({"hang.nvmlDeviceGetPowerUsage": 0.8})
    for seconds in range(1, 70, 30):
        samples.take_sample(START + timedelta(seconds=seconds))
    nvml.change({"hang.nvmlDeviceGetPowerUsage": 0})
    moments = iter(range(90, 10_000, 30))

    def answered() -> bool:
        samples.take_sample(START + timedelta(seconds=next(moments)))
        return TelemetryEventKind.gpus_answered in kinds_of(attempt)

    until(answered)
    samples.take_sample(START + timedelta(seconds=next(moments) - 1))
    assert kinds_of(attempt) == [TelemetryEventKind.gpus_stalled, TelemetryEventKind.gpus_answered]
    assert rows_of(attempt)[-1].gpus


def test_a_sampler_writes_until_it_is_stopped(nvml: FakeNvml, attempt: AttemptPaths) -> None:
    """The last row is written when it stops, and its thread ends."""
    nvml.profile("a100")
    settings = Observe(interval_s=0.5, row_s=3600)
    sampler = NodeSampler(settings=settings, attempt=attempt, node=NODE, choice=ALL)
    sampler.start()
    until(lambda: any(row.gpus for row in rows_of(attempt)))
    before = len(rows_of(attempt))
    assert sampler.stop(10)
    assert len(rows_of(attempt)) == before + 1
    assert rows_of(attempt)[-1].gpus[0].counters[GpuCounter.energy_j] > 0
    assert not any(thread.name == "telemetry" for thread in threading.enumerate())


def test_stopping_does_not_wait_for_a_driver_that_hangs(nvml: FakeNvml, attempt: AttemptPaths) -> None:
    """A call that never returns delays neither start nor stop; the host's rows are written."""
    nvml.profile("h100")
    nvml.change({"hang.nvmlDeviceGetUUID": 5})
    settings = Observe(interval_s=0.5)
    sampler = NodeSampler(settings=settings, attempt=attempt, node=NODE, choice=ALL)
    began = time.monotonic()
    sampler.start()
    assert time.monotonic() - began < 0.5
    until(lambda: bool(rows_of(attempt)))
    assert sampler.stop()
    assert rows_of(attempt)[-1].host is not None
    nvml.change({"hang.nvmlDeviceGetUUID": 0})


def test_a_folder_that_takes_no_file_ends_no_sampler(nvml: FakeNvml, attempt: AttemptPaths) -> None:
    """A full disk costs rows, and nothing else."""
    del nvml
    away = AttemptPaths(attempt.folder / "absent")
    sampler = NodeSampler(
        settings=Observe(interval_s=0.5, row_s=0.5, measure_gpus=False), attempt=away, node=NODE
    )
    sampler.start()
    until(lambda: sampler.unwritten > 0)
    away.folder.mkdir()
    until(lambda: bool(rows_of(away)))
    assert sampler.stop(10)


def test_a_sampler_that_is_off_does_nothing(attempt: AttemptPaths) -> None:
    """`observe=off` starts no thread and writes no file."""
    sampler = NodeSampler(settings=Observe(interval_s=0), attempt=attempt, node=NODE)
    sampler.start()
    assert sampler.stop()
    assert not list(attempt.folder.iterdir())
