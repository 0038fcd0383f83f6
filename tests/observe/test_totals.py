"""Promises of totals: reading the end of a file is as good as reading all of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from telemetry_records import read_telemetry

from hpckit.model.settings import Observe
from hpckit.model.telemetry.json_form import decode_telemetry, encode_telemetry
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.vocabulary import (
    GpuCounter,
    GpuRow,
    HostCounter,
    HostRow,
    TelemetryRow,
    TelemetryTotal,
    counter_increase,
)
from hpckit.observe.aggregate import RunningTotal, merge_totals, sum_step_reports_by_rank
from hpckit.observe.sampler import NodeSampler
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import make_private_folder
from hpckit.record.telemetry import read_latest_telemetry

START = datetime(2026, 1, 2, tzinfo=UTC)
COUNTS = st.lists(st.integers(0, 1000), min_size=1, max_size=12)


def rows(energy: list[int], cpu: list[int]) -> list[TelemetryRow]:
    """Return rows with these values of a GPU's and of the host's counter."""
    return [
        TelemetryRow(
            start=START + timedelta(seconds=30 * place),
            end=START + timedelta(seconds=30 * (place + 1)),
            host=HostRow(samples=1, counters={HostCounter.job_cpu_s: of_cpu}),
            gpus=(GpuRow(uuid="GPU-1", samples=6, counters={GpuCounter.energy_j: of_gpu}),),
            ranks=(RankSteps(rank=0, first_step=place, steps=1, seconds=1.0, data_s=0.5),),
        )
        for place, (of_gpu, of_cpu) in enumerate(zip(energy, cpu, strict=False))
    ]


def grown(values: list[int]) -> int:
    """Return how much a counter grew in all, across resets."""
    return sum(int(counter_increase(a, b)) for a, b in pairwise(values))


@given(COUNTS, COUNTS)
def test_total_has_what_all_rows_have(energy: list[int], cpu: list[int]) -> None:
    """Counters of a total are the sum of their increases, samples and steps those of all rows."""
    count = min(len(energy), len(cpu))
    total = RunningTotal()
    for row in rows(energy, cpu):
        total.add_row(row)
    assert total.total is not None
    row = total.total.row
    assert row.host is not None
    assert row.host.counters == {HostCounter.job_cpu_s: grown(cpu[:count])}
    assert row.gpus[0].counters == {GpuCounter.energy_j: grown(energy[:count])}
    assert row.gpus[0].samples == 6 * count
    assert (row.start, row.end) == (START, START + timedelta(seconds=30 * count))
    assert [(rank.steps, rank.data_s) for rank in row.ranks] == [(count, 0.5 * count)]


@given(COUNTS, st.integers(1, 11))
def test_total_goes_on_from_what_an_earlier_sampler_wrote(energy: list[int], at: int) -> None:
    """Two samplers of one attempt count as one, but for what grew between them."""
    some = rows(energy, energy)
    first, second = RunningTotal(), RunningTotal()
    for row in some[:at]:
        first.add_row(row)
    second.total = first.total
    for row in some[at:]:
        second.add_row(row)
    parts = grown(energy[:at]) + grown(energy[at : len(some)])
    assert second.total is not None
    assert second.total.row.gpus[0].counters == {GpuCounter.energy_j: parts}


@given(st.lists(st.tuples(COUNTS, COUNTS), min_size=1, max_size=4))
def test_totals_of_attempts_add_up(attempts: list[tuple[list[int], list[int]]]) -> None:
    """Counters of all attempts are the sums of those of each."""
    totals = []
    for energy, cpu in attempts:
        running = RunningTotal()
        for row in rows(energy, cpu):
            running.add_row(row)
        assert running.total is not None
        totals.append(running.total)
    merged = reduce(merge_totals, totals)
    expected = sum(total.row.gpus[0].counters[GpuCounter.energy_j] for total in totals)
    assert merged.row.gpus[0].counters == {GpuCounter.energy_j: expected}


STEPS = st.builds(
    RankSteps,
    rank=st.integers(0, 3),
    gpu=st.sampled_from([None, "GPU-1"]),
    group=st.sampled_from(["", "stage-1"]),
    first_step=st.integers(0, 100),
    steps=st.integers(1, 100),
    seconds=st.integers(1, 100),
    data_s=st.none() | st.integers(0, 10),
    own_s=st.none() | st.integers(0, 10),
    phases=st.dictionaries(st.sampled_from(["forward", "data/é"]), st.integers(0, 10)),
)


@given(st.lists(STEPS, max_size=8))
def test_steps_survive_json_and_merge_to_their_sums(reports: list[RankSteps]) -> None:
    """What ranks reported is read back as it was, and no step is lost by merging."""
    merged = sum_step_reports_by_rank(reports)
    assert sum(one.steps for one in merged) == sum(report.steps for report in reports)
    assert sum(one.seconds for one in merged) == sum(report.seconds for report in reports)
    assert len({(one.rank, one.group) for one in merged}) == len(merged)
    row = TelemetryRow(start=START, end=START, ranks=merged)
    for record in (row, TelemetryTotal(row=row)):
        assert decode_telemetry(encode_telemetry(record)) == record


def clock(late: timedelta) -> datetime:
    """Return the time, so much later."""
    return datetime.now(UTC) + late


def test_sampler_writes_what_ranks_report_and_a_total_that_has_all(tmp_path: Path) -> None:
    """Reports of ranks are in rows and in the last total, also after the sampler began anew."""
    attempt = AttemptPaths(tmp_path / "1")
    make_private_folder(attempt.folder)
    settings = Observe(interval_s=0.5, row_s=0.5, measure_gpus=False)
    report = RankSteps(rank=1, node="n1", first_step=5, steps=10, seconds=2.0, data_s=0.25)
    for hours in range(2):
        sampler = NodeSampler(
            settings=settings, attempt=attempt, node="n1", now=partial(clock, timedelta(hours=hours))
        )
        sampler.record_rank_steps(report)
        sampler.start()
        assert sampler.stop(20)
    total = read_latest_telemetry(attempt, "n1").total
    assert total is not None
    both = replace(report, node="", steps=20, seconds=4.0, data_s=0.5)
    assert total.row.ranks == (both,)
    found = [
        rank
        for record in read_telemetry(attempt, "n1")
        if isinstance(record, TelemetryRow)
        for rank in record.ranks
    ]
    assert sum_step_reports_by_rank(found) == (both,)


def test_steps_are_not_measured_if_the_settings_say_so(tmp_path: Path) -> None:
    """observe.measure_steps=false writes nothing of ranks."""
    attempt = AttemptPaths(tmp_path / "1")
    make_private_folder(attempt.folder)
    settings = Observe(interval_s=0.5, row_s=0.5, measure_gpus=False, measure_steps=False)
    sampler = NodeSampler(settings=settings, attempt=attempt, node="n1")
    sampler.record_rank_steps(RankSteps(rank=0, steps=1, seconds=1.0))
    sampler.start()
    assert sampler.stop(20)
    total = read_latest_telemetry(attempt, "n1").total
    assert total is not None
    assert total.row.ranks == ()
