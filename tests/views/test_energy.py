"""What a run used is counted once: over attempts, other GPUs, neighbours and broken drivers."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cli_world import START, Desk
from report_launches import gathered

from hpckit.model import events
from hpckit.model.launch import Cluster, ClusterKind
from hpckit.model.states import RunState
from hpckit.model.telemetry.json_form import encode_telemetry
from hpckit.model.telemetry.usage import EnergySum
from hpckit.model.telemetry.vocabulary import (
    GaugeSpread,
    GpuCounter,
    GpuGauge,
    GpuRow,
    TelemetryRow,
    TelemetrySegment,
    TelemetryTotal,
)
from hpckit.observe.aggregate import RunningTotal, add_later_rows_to_total
from hpckit.observe.segments import SegmentWriter, close_segment, coarsen_segment
from hpckit.planning.diagnosis.usage import sum_run_energy, summarize_gpu_use
from hpckit.record.launches import Launch
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import append_event, append_json_lines, make_private_folder
from hpckit.record.telemetry import list_closed_segments, read_latest_telemetry
from hpckit.views.telemetry import read_resource_usage_of_run

pytestmark = pytest.mark.whole

HOUR = timedelta(hours=1)
WATTS = 300.0


def attempt(  # noqa: PLR0913  # facts of one attempt
    launch: Launch,
    run: int,
    number: int,
    begin: datetime,
    gpu: str,
    *,
    counted: bool = True,
    own_s: float | None = None,
) -> None:
    """Write an attempt of an hour that used one GPU at 300 W, with others beside it."""
    paths = launch.paths.run(run).attempt(number)
    make_private_folder(paths.folder)
    began = events.AttemptStarted(
        at=begin, attempt=number, job=None, restart_count=0, host="n1", pid=1, started="1"
    )
    ended = events.AttemptEnded(at=begin + HOUR, state=RunState.completed, exit_code=0)
    for event in (began, ended):
        append_event(paths.events, event)
    power = GaugeSpread(min=WATTS, mean=WATTS, max=WATTS, p95=WATTS, count=720)
    counters = {GpuCounter.energy_j: WATTS * 3600} if counted else {}
    counters |= {} if own_s is None else {GpuCounter.own_s: own_s}
    row = GpuRow(uuid=gpu, samples=720, gauges={GpuGauge.power_w: power}, counters=counters)
    total = TelemetryTotal(row=TelemetryRow(start=begin, end=begin + HOUR, gpus=(row,)))
    file = paths.newest_telemetry_file("n1")
    append_json_lines(file, encode_telemetry(TelemetrySegment(node="n1", start=begin, row_s=60)))
    append_json_lines(file, encode_telemetry(total))


def energy(launch: Launch, run: int = 0) -> EnergySum:
    """Return what a run used."""
    return sum_run_energy(read_resource_usage_of_run(launch, run).attempts)


def totals(desk: Desk, launch: Launch) -> dict[int, float]:
    """Return the joules of each run, as its report says them."""
    found = {}
    for row in gathered(desk, launch).rows:
        assert row.findings is not None
        found[row.index] = row.findings.energy.energy.total_j
    return found


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("second", ["GPU-A", "GPU-B"])
def test_another_gpu_in_a_later_attempt_doubles_nothing(desk: Desk, second: str, *, counted: bool) -> None:
    """Two attempts of an hour are two GPU hours, whichever GPUs of the node they had."""
    launch = desk.freeze()
    attempt(launch, 0, 1, START, "GPU-A", counted=counted)
    attempt(launch, 0, 2, START + 5 * HOUR, second, counted=counted)
    found = energy(launch)
    assert found.gpu_s == 7200
    assert found.total_j == pytest.approx(2 * WATTS * 3600)
    assert sum(one.seconds for one in summarize_gpu_use(read_resource_usage_of_run(launch, 0).nodes)) == 7200


def test_an_attempt_without_a_counter_is_estimated(desk: Desk) -> None:
    """The counter of another attempt says nothing of it."""
    launch = desk.freeze()
    attempt(launch, 0, 1, START, "GPU-A")
    attempt(launch, 0, 2, START + 5 * HOUR, "GPU-A", counted=False)
    found = energy(launch)
    assert found.total_j == pytest.approx(2 * WATTS * 3600)
    assert found.estimated_share == pytest.approx(0.5)


@pytest.mark.parametrize("totals", [0, 1])
def test_rows_that_no_total_has_yet_count(desk: Desk, totals: int) -> None:
    """A sampler that was killed has written eight rows that it had not added."""
    launch = desk.freeze()
    paths = launch.paths.run(0).attempt(1)
    make_private_folder(paths.folder)
    file = paths.newest_telemetry_file("n1")
    append_json_lines(file, encode_telemetry(TelemetrySegment(node="n1", start=START, row_s=30)))
    running, minute = RunningTotal(), timedelta(minutes=1)
    for number in range(18):
        counters = {GpuCounter.energy_j: 5000.0 + 600 * number}
        power = GaugeSpread(min=10, mean=10, max=10, p95=10, count=12)
        gpu = GpuRow(uuid="A", samples=12, gauges={GpuGauge.power_w: power}, counters=counters)
        begin = START + number * minute
        row = TelemetryRow(start=begin, end=begin + minute, gpus=(gpu,))
        append_json_lines(file, encode_telemetry(row))
        running.add_row(row)
        if totals and number == 9:
            assert running.total is not None
            append_json_lines(file, encode_telemetry(running.total))
    found = energy(launch)
    assert (found.gpu_s, found.total_j) == (18 * 60, 17 * 600)


def hour_of_rows(attempt: AttemptPaths, begin: datetime, count: int, *jumps: int) -> TelemetryRow:
    """Write rows of 30 s and 1 kJ as a sampler does, with a total every ten; then be killed.

    Before the rows `jumps` the clock is set back. Returns the last row.
    """
    writer = SegmentWriter(attempt=attempt, node="n1", row_s=30.0, max_mb=60.0)
    running, at = RunningTotal(), begin
    for number in range(count):
        at += timedelta(seconds=30) - (timedelta(hours=7) if number in jumps else timedelta())
        counters = {GpuCounter.energy_j: 1000.0 * number}
        gpu = GpuRow(uuid="A", samples=6, gauges={}, counters=counters)
        row = TelemetryRow(start=at - timedelta(seconds=30), end=at, gpus=(gpu,))
        running.add_row(row)
        writer.append_record(row, at)
        assert running.total is not None
        writer.total = running.total
        if number % 10 == 9:
            writer.append_total(running.total, at)
    return row


def known(attempt: AttemptPaths) -> tuple[float, float]:
    """Return joules and seconds."""
    total = add_later_rows_to_total(read_latest_telemetry(attempt, "n1"))
    assert total is not None
    return total.row.gpus[0].counters[GpuCounter.energy_j], total.measured_or_span_s


def test_rows_behind_the_last_total_survive_that_their_file_ages(tmp_path: Path) -> None:
    """A coarser file ends with a total of all of it."""
    attempt = AttemptPaths(make_private_folder(tmp_path / "001"))
    hour_of_rows(attempt, START, 25)
    assert known(attempt) == (24_000, 750)
    close_segment(attempt, "n1")
    (file,) = list_closed_segments(attempt, "n1")
    coarsen_segment(file, 300.0)
    assert known(attempt) == (24_000, 750)


def test_a_clock_that_is_set_back_loses_no_energy(tmp_path: Path) -> None:
    """Files are in the order in which they were written, whatever the clock said."""
    first, second = (AttemptPaths(make_private_folder(tmp_path / f"{one:03d}")) for one in (1, 2))
    row = hour_of_rows(first, START, 300, 100, 200)
    later = SegmentWriter(attempt=second, node="n1", row_s=30.0, max_mb=60.0, earlier=(first,))
    later.append_record(row, row.end + timedelta(minutes=5))
    assert len(list_closed_segments(first, "n1")) >= 3
    total = read_latest_telemetry(first, "n1").total
    assert total is not None
    assert total.row.gpus[0].counters[GpuCounter.energy_j] == 299_000


@pytest.mark.parametrize("jump", [-1, 10])
def test_a_segment_that_has_just_begun_knows_what_was_before(tmp_path: Path, jump: int) -> None:
    """A new file in the middle of ten rows, also by a clock that is set back."""
    attempt = AttemptPaths(make_private_folder(tmp_path / "001"))
    hour_of_rows(attempt, START + timedelta(hours=5, minutes=52), 18, jump)
    joules, seconds = known(attempt)
    assert seconds == 18 * 30
    assert joules >= 16_000, "the increase up to a file's first row may be unknown, no more"


def test_a_resume_changes_the_energy_of_no_other_run(desk: Desk) -> None:
    """Runs that were beside each other share what they measured then, and only then.

    With cluster.max_parallel=2 both measure all GPUs: each has half, also for `status`.
    """
    cluster = Cluster(kind=ClusterKind.local, max_parallel=2)
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)], cluster=cluster)
    for run in (0, 1):
        attempt(launch, run, 1, START, "GPU-A", own_s=1800.0)
    before = totals(desk, launch)
    assert before == pytest.approx({0: WATTS * 1800, 1: WATTS * 1800})
    said = json.loads(desk.say("status", launch.id, "--json", "--goodput").out)
    assert said["energy"]["total_j"] == pytest.approx(WATTS * 3600)
    assert said["energy"]["gpu_hours"] == pytest.approx(1)
    assert [one["telemetry"]["energy_j"] for one in said["runs"]] == [WATTS * 1800] * 2
    attempt(launch, 0, 2, START + 5 * HOUR, "GPU-A", own_s=3600.0)
    after = totals(desk, launch)
    assert after[1] == pytest.approx(before[1])
    assert sum(after.values()) == pytest.approx(2 * WATTS * 3600)


def test_telemetry_without_samples_is_damaged(desk: Desk) -> None:
    """It is left out, and divides nothing."""
    launch = desk.freeze()
    for number in (1, 2):
        attempt(launch, 0, number, START + 5 * number * HOUR, "GPU-A")
        file = launch.paths.run(0).attempt(number).newest_telemetry_file("n1")
        file.write_text(file.read_text().replace('"samples":[720]', '"samples":[0]'))
        assert '"samples":[0]' in file.read_text()
    assert read_resource_usage_of_run(launch, 0).nodes == ()
