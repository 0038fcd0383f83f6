"""Promises of telemetry read back: nothing is lost, nothing hangs, and little of it is decoded."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_world import START, Desk, Writer
from telemetry_records import read_telemetry

from hpckit.features.reporting import hardware
from hpckit.model.settings import Observe
from hpckit.model.telemetry.json_form import decode_telemetry, encode_telemetry
from hpckit.model.telemetry.usage import NodeUsage
from hpckit.model.telemetry.vocabulary import (
    GaugeSpread,
    GpuCounter,
    GpuDevice,
    GpuGauge,
    GpuRow,
    GpuTrouble,
    GpuVendor,
    TelemetryRow,
    TelemetryTotal,
    build_placeholder_uuid,
)
from hpckit.observe.aggregate import RunningTotal
from hpckit.observe.sampler import NodeSampler
from hpckit.observe.segments import SegmentWriter
from hpckit.planning.diagnosis.usage import sum_gpu_energy
from hpckit.record import store
from hpckit.record import telemetry as telemetry_record
from hpckit.record.launches import Launch
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import append_json_lines, make_private_folder
from hpckit.record.telemetry import list_closed_segments, read_latest_telemetry
from hpckit.views import telemetry as telemetry_view
from hpckit.views.telemetry import read_nccl_transport, read_resource_usage_of_run

pytestmark = pytest.mark.whole

BEGIN = START + timedelta(minutes=1)
ROW_S = 30
MOST_DECODED = 5
NODE = "n1"


def gpu_row(uuid: str, energy_j: float) -> GpuRow:
    """Return a row of a GPU that draws 300 watts."""
    power = GaugeSpread(min=300, mean=300, max=300, p95=300, count=6)
    counters = {GpuCounter.energy_j: energy_j}
    return GpuRow(uuid=uuid, samples=6, gauges={GpuGauge.power_w: power}, counters=counters)


def node_row(number: int, *gpus: GpuRow) -> TelemetryRow:
    """Return the row of half a minute with this number."""
    start = BEGIN + timedelta(seconds=ROW_S * number)
    return TelemetryRow(start=start, end=start + timedelta(seconds=ROW_S), gpus=gpus)


def device(uuid: str, parent: str | None = None) -> GpuDevice:
    """Return a GPU, or a part of one."""
    return GpuDevice(uuid=uuid, vendor=GpuVendor.nvidia, index=0, name="H100", parent=parent)


def write(
    attempt: AttemptPaths, rows: int, *, earlier: tuple[AttemptPaths, ...] = (), node: str = NODE
) -> SegmentWriter:
    """Write rows of one GPU, and a total at the end."""
    writer = SegmentWriter(attempt=attempt, node=node, row_s=ROW_S, max_mb=60, earlier=earlier)
    writer.write_devices((device("GPU-1"),), BEGIN)
    total = RunningTotal()
    for number in range(rows):
        row = node_row(number, gpu_row("GPU-1", 9000.0 * number))
        total.add_row(row)
        writer.append_record(row, row.end)
    assert total.total is not None
    writer.append_total(total.total, row.end)
    return writer


def completed(desk: Desk, attempts: int = 1) -> tuple[Launch, list[AttemptPaths]]:
    """Return a launch of one run that has completed, and its attempts."""
    launch = desk.freeze()
    for number in range(1, attempts + 1):
        writer = Writer(launch=launch, attempt=number)
        writer.start()
        writer.complete()
    return launch, [launch.paths.run(0).attempt(number) for number in range(1, attempts + 1)]


def shown(desk: Desk, launch: Launch) -> Any:
    """Return what `status` says of the only run."""
    (run,) = json.loads(desk.say("status", launch.id, "--json").out)["runs"]
    return run


def within(seconds: float, work: Callable[[], object]) -> list[object]:
    """Return what the work returns or raises, in a list; an empty one if it does not end."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001  # the test judges it
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found


def unblock(pipe: Path) -> None:
    """Let a thread go on that waits for somebody to write to a pipe."""
    with suppress(OSError):
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def test_the_next_attempt_on_a_node_does_not_take_away_what_the_first_used(desk: Desk) -> None:
    """`energy_j` is that of all attempts; the next one's sampler closes the file of the first."""
    launch, (first, second) = completed(desk, attempts=2)
    write(first, 5)
    write(second, 5, earlier=(first,))
    assert not first.newest_telemetry_file(NODE).exists()
    run = shown(desk, launch)
    assert run["telemetry"]["energy_j"] == 2 * 36000
    assert run["energy"]["gpu_hours"] == pytest.approx(2 * 150 / 3600, rel=1e-3)


def test_what_an_attempt_used_is_known_a_month_later(desk: Desk) -> None:
    """Coarser rows replace its segments; its last total stays, and only that one."""
    launch, (first, second) = completed(desk, attempts=2)
    rows = int(timedelta(hours=13) / timedelta(seconds=ROW_S))
    write(first, rows)
    later = SegmentWriter(attempt=second, node=NODE, row_s=ROW_S, max_mb=60, earlier=(first,))
    month = BEGIN + timedelta(days=31)
    later.write_devices((device("GPU-1"),), month)
    later.find_segments_due_to_coarsen(month)
    while later.coarsen_next_segment():
        pass
    totals = [file.read_text().count('"total"') for file in list_closed_segments(first, NODE)]
    assert totals == [0] * (len(totals) - 1) + [1]
    assert shown(desk, launch)["telemetry"]["energy_j"] == 9000 * (rows - 1)


def test_a_file_without_a_total_hides_no_earlier_one(tmp_path: Path) -> None:
    """A sampler that is killed at its start leaves a beginning only."""
    attempt = AttemptPaths(make_private_folder(tmp_path / "001"))
    write(attempt, 5)
    again = SegmentWriter(attempt=attempt, node=NODE, row_s=ROW_S, max_mb=60)
    again.append_record(node_row(9), BEGIN + timedelta(minutes=9))
    total = read_latest_telemetry(attempt, NODE).total
    assert total is not None
    assert total.row.gpus[0].counters == {GpuCounter.energy_j: 36000}
    assert read_latest_telemetry(attempt, NODE).devices == (device("GPU-1"),)


@pytest.mark.parametrize("end", [b'{"v":1,"kind":"total","start":"20', b'{"v":1,"kind":"total"}\n'])
def test_a_torn_total_costs_that_total_alone(tmp_path: Path, end: bytes) -> None:
    """The one before it holds."""
    attempt = AttemptPaths(make_private_folder(tmp_path / "001"))
    write(attempt, 5)
    with attempt.newest_telemetry_file(NODE).open("ab") as file:
        file.write(end)
    assert read_latest_telemetry(attempt, NODE).total is not None


@pytest.mark.parametrize("verb", ["status", "report"])
def test_a_pipe_in_place_of_telemetry_stops_no_verb(desk: Desk, verb: str) -> None:
    """Anybody may put one into a launch of his own in a shared folder. Other nodes are shown."""
    launch, (attempt,) = completed(desk)
    pipe = attempt.newest_telemetry_file("n0")
    os.mkfifo(pipe)
    write(attempt, 5)
    found = within(60, lambda: desk.say(verb, launch.id, "--json"))
    unblock(pipe)
    (said,) = found
    assert said.code == 0  # type: ignore[attr-defined]
    assert '"energy_j": 36000' in said.out  # type: ignore[attr-defined]


def test_a_pipe_in_place_of_a_log_of_nccl_is_passed_over(desk: Desk) -> None:
    """It is read for runs on nodes with InfiniBand."""
    launch, (attempt,) = completed(desk)
    pipe = attempt.round(0).nccl_log
    os.mkfifo(pipe)
    found = within(60, lambda: read_nccl_transport(launch, 0))
    unblock(pipe)
    assert found == [None]


def test_a_gpu_that_was_lost_at_first_counts_once(desk: Desk) -> None:
    """Before it tells its UUID it has its number for a name; its trouble stays known."""
    launch, (attempt,) = completed(desk)
    writer = SegmentWriter(attempt=attempt, node=NODE, row_s=ROW_S, max_mb=60)
    writer.write_devices((device("GPU-1"),), BEGIN)
    lost = GpuRow(uuid=build_placeholder_uuid(0), samples=6, troubles=frozenset({GpuTrouble.lost}))
    total = RunningTotal()
    total.add_row(node_row(0, lost))
    total.add_row(node_row(1, gpu_row("GPU-1", 0)))
    assert total.total is not None
    writer.append_total(total.total, total.total.row.end)
    (usage,) = read_resource_usage_of_run(launch, 0).nodes
    assert [(gpu.uuid, gpu.troubles) for gpu in usage.row.gpus] == [("GPU-1", lost.troubles)]


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_set_is_no_hour_of_gpus(tmp_path: Path, hours: int) -> None:
    """Rows, and all of them together, are as long as they were measured.

    That is to a second: what reads the clock may be held up between two looks at it.
    """
    attempt = AttemptPaths(make_private_folder(tmp_path / "001"))
    began = time.monotonic()

    def now() -> datetime:
        late = time.monotonic() - began > 1
        return datetime.now(UTC) + timedelta(hours=hours if late else 0)

    settings = Observe(interval_s=0.5, row_s=0.5, measure_gpus=False)
    sampler = NodeSampler(settings=settings, attempt=attempt, node=NODE, now=now)
    sampler.start()
    time.sleep(2.5)
    assert sampler.stop(10)
    lasted = time.monotonic() - began
    rows = [one for one in read_telemetry(attempt, NODE) if isinstance(one, TelemetryRow)]
    assert all(timedelta() <= row.end - row.start < timedelta(minutes=1) for row in rows)
    total = read_latest_telemetry(attempt, NODE).total
    assert total is not None
    assert total.span_s > 3000, "the clock was set"
    assert 1 < total.measured_or_span_s <= lasted + 1


def test_an_hour_that_was_not_measured_has_no_price(desk: Desk) -> None:
    """One node of two has a clock that was set an hour forward; an attempt lasted two minutes."""
    launch, (attempt,) = completed(desk)
    for node, late in (("n1", 0), ("n2", 3600)):
        row = node_row(0, gpu_row("GPU-1", 36000))
        row = replace(row, end=row.start + timedelta(seconds=120 + late))
        total = TelemetryTotal(row=row, measured_s=120)
        append_json_lines(attempt.newest_telemetry_file(node), encode_telemetry(total))
    run = shown(desk, launch)
    assert run["energy"]["gpu_hours"] == pytest.approx(2 * 120 / 3600, rel=1e-3)
    assert run["telemetry"]["power_w"] == pytest.approx(2 * 300)


def test_a_part_of_a_gpu_that_appears_late_is_known_as_one(tmp_path: Path) -> None:
    """MIG that is switched on in the middle of a file does not double what the GPU used."""
    attempt = AttemptPaths(make_private_folder(tmp_path / "001"))
    writer = write(attempt, 300)
    writer.write_devices((device("GPU-1"), device("MIG-1", "GPU-1")), node_row(300).start)
    total = RunningTotal(read_latest_telemetry(attempt, NODE).total)
    for number in range(300, 310):
        part = replace(gpu_row("MIG-1", 0), gauges={}, counters={})
        row = node_row(number, gpu_row("GPU-1", 9000.0 * number), part)
        total.add_row(row)
        writer.append_record(row, row.end)
    assert total.total is not None
    writer.append_total(total.total, row.end)
    read = read_latest_telemetry(attempt, NODE).total
    assert read is not None
    devices = read_latest_telemetry(attempt, NODE).devices
    usage = NodeUsage(node=NODE, seconds=9300, row=read.row, devices=devices)
    assert sum_gpu_energy([usage]).gpu_s == 9300


def test_a_report_of_many_runs_reads_little_of_each(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of a run's files once, for all that is said of it, and few rows for the chart."""
    runs = 30
    launch = desk.freeze(sweep=[(f"lr={index}",) for index in range(runs)])
    for index in range(runs):
        writer = Writer(launch=launch, index=index)
        writer.start()
        writer.complete()
        write(launch.paths.run(index).attempt(1), 100)
    looked: list[str] = []
    decoded: list[str] = []

    def looking(attempt: AttemptPaths, node: str) -> Any:
        looked.append(node)
        return telemetry_record.read_latest_telemetry(attempt, node)

    def decoding(line: Any) -> Any:
        decoded.append(line["kind"])
        return decode_telemetry(line)

    monkeypatch.setattr(telemetry_view, "read_latest_telemetry", looking)
    monkeypatch.setattr(hardware, "decode_telemetry", decoding)
    monkeypatch.setattr(hardware, "_MOST_ROWS", 10 * runs)
    said = json.loads(desk.say("report", launch.id, "--json").out)
    assert looked == [NODE] * runs
    assert 2 * runs <= len(decoded) <= 10 * runs
    assert len(said["gpus"]) == runs
    assert said["gpu_activity"]["lanes"]


def test_status_decodes_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One total and the devices of a node, however long the file is, in one opened file."""
    attempt = AttemptPaths(make_private_folder(tmp_path / "001"))
    write(attempt, 600)
    decoded: list[str] = []
    opened: list[Path] = []
    decode, open_plain = decode_telemetry, store.open_regular_file

    def decoding(line: Any) -> Any:
        decoded.append(line["kind"])
        return decode(line)

    def opening(path: Path) -> Any:
        opened.append(path)
        return open_plain(path)

    monkeypatch.setattr(telemetry_record, "decode_telemetry", decoding)
    monkeypatch.setattr(telemetry_record, "open_regular_file", opening)
    latest = telemetry_record.read_latest_telemetry(attempt, NODE)
    assert latest.total is not None
    assert latest.devices
    assert "row" not in decoded
    assert len(decoded) <= MOST_DECODED
    assert len(opened) == 1
