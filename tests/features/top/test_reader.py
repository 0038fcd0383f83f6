"""What `hpckit top` reads: the record as it grows, few files, and nothing twice."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_world import NOW, START, make_context

from hpckit.features.top import metric_curve
from hpckit.features.top.frame import TopColumn
from hpckit.features.top.metric_curve import GrowingFile
from hpckit.features.top.reader import TopReader, TopRequest
from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import ClusterKind
from hpckit.model.states import RoundAction, RunState
from hpckit.model.telemetry.json_form import encode_telemetry
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.vocabulary import (
    GaugeSpread,
    GpuDevice,
    GpuGauge,
    GpuRow,
    GpuVendor,
    TelemetryRecord,
    TelemetryRow,
    TelemetrySegment,
)
from hpckit.record import store
from hpckit.record.launches import Launch
from hpckit.views import launch_view
from hpckit.views.scheduler import Scheduler, SchedulerReply


@dataclass(slots=True, kw_only=True)
class Clock:
    """The time, which tests move."""

    now: datetime = NOW
    errors: io.StringIO = field(default_factory=io.StringIO)

    def reader(self, launch: Launch, folder: Path) -> TopReader:
        """Return a reader of a launch."""
        context = make_context(folder, stderr=self.errors, now=lambda: self.now, sleep=lambda _: None)
        return TopReader(launch=launch, context=context)


def tell(path: Path, *records: TelemetryRecord) -> None:
    """Append records to a telemetry file."""
    with path.open("a") as file:
        file.writelines(json.dumps(encode_telemetry(record)) + "\n" for record in records)


def measured(at: datetime, busy: float, power: float, step_s: float) -> TelemetryRow:
    """Return a row of half a minute: one GPU, one rank."""

    def spread(value: float) -> GaugeSpread:
        return GaugeSpread(min=value, mean=value, max=value, p95=value, count=6)

    gauges = {GpuGauge.busy_share: spread(busy), GpuGauge.power_w: spread(power)}
    return TelemetryRow(
        start=at - timedelta(seconds=30),
        end=at,
        gpus=(GpuRow(uuid="u", samples=6, gauges=gauges),),
        ranks=(RankSteps(rank=0, steps=10, seconds=10 * step_s),),
    )


@pytest.fixture
def running(desk: Any, writer: Any) -> Launch:
    """Return a launch of three runs, of which the first is running on n1 and n2."""
    launch: Launch = desk.freeze(sweep=[("lr=0.1",), ("lr=0.2",), ("lr=0.3",)])
    attempt = writer(launch=launch)
    attempt.start()
    attempt.metrics(0, loss=3.0, accuracy=0.1)
    attempt.metrics(1, loss=2.0)
    attempt.log(0, "hello\nworld\n")
    return launch


def test_frame_of_a_running_run_has_all_that_is_known(running: Launch, desk: Any) -> None:
    """Steps, metrics, the end of the log of rank 0, events; the running run is selected."""
    reader = Clock().reader(running, desk.folder)
    first = reader.read_frame(TopRequest()).detail
    assert first is not None
    assert (first.loading, first.points) == (True, ())
    frame = reader.load_selected_curve(TopRequest())
    assert [row.cells[TopColumn.state] for row in frame.rows] == ["running", "pending", "pending"]
    assert frame.rows[0].cells[TopColumn.step] == "2"
    assert (frame.metric, frame.metrics) == ("loss", ("loss", "accuracy"))
    detail = frame.detail
    assert detail is not None
    assert (detail.index, detail.log, detail.log_title) == (0, ("hello", "world"), "log of rank 0")
    assert detail.points == ((0.0, 3.0), (1.0, 2.0))
    assert [line.split(" ", 1)[1] for line in detail.events] == [
        *("attempt 1 began on elsewhere", "round 0: 2 ranks on n[1-2]")
    ]
    assert detail.title == ".0 running on n1 and 1 more lr=0.1"
    assert not detail.loading
    other = reader.rebuild_frame(TopRequest(selected=2, metric="accuracy")).detail
    assert other is not None
    assert (other.index, other.points, other.log, other.loading) == (2, (), (), False)


def test_what_was_added_is_read_and_nothing_twice(
    running: Launch, desk: Any, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The curve grows by its new rows, the log by its end; unchanged files are not opened."""
    reader = Clock().reader(running, desk.folder)
    reader.read_frame(TopRequest())
    reader.load_selected_curve(TopRequest())
    attempt = writer(launch=running)
    attempt.metrics(2, loss=1.0)
    with running.paths.run(0).attempt(1).metrics.open("a") as file:
        file.write('{"step": 3, "loss": 0.')  # a line that is being written
    attempt.log(0, "hello\nworld\nagain\n")
    opened: list[Path] = []

    def read_rows(path: Path, **given: Any) -> Any:
        opened.append(path)
        return store.read_rows_with_offsets(path, **given)

    monkeypatch.setattr(metric_curve, "read_rows_with_offsets", read_rows)
    detail = reader.read_frame(TopRequest()).detail
    assert detail is not None
    assert detail.points == ((0.0, 3.0), (1.0, 2.0), (2.0, 1.0))
    assert detail.log[-1] == "again"
    with running.paths.run(0).attempt(1).metrics.open("a") as file:
        file.write("5}\n")
    detail = reader.read_frame(TopRequest()).detail
    assert detail is not None
    assert detail.points[-1] == (3.0, 0.5)
    opened.clear()
    reader.read_frame(TopRequest())
    assert opened == []


def test_restart_undoes_steps_of_the_curve(running: Launch, desk: Any, writer: Any) -> None:
    """A new round from step 1: what the first round did there is gone."""
    reader = Clock().reader(running, desk.folder)
    reader.read_frame(TopRequest())
    attempt = writer(launch=running)
    at = START + timedelta(minutes=2)
    failure = Failure(cause=Cause.exception, message="boom")
    attempt.tell(
        events.RoundEnded(
            at=at, round=0, first_step=0, step=1, action=RoundAction.new_round, failure=failure
        ),
        events.RoundStarted(at=at, round=1, world_size=2, nodes=("n1", "n2")),
        events.StepReached(at=at, round=1, step=1),
    )
    attempt.metrics(1, loss=7.0, round=1)
    detail = reader.read_frame(TopRequest()).detail
    assert detail is not None
    assert detail.loading
    detail = reader.load_selected_curve(TopRequest()).detail
    assert detail is not None
    assert detail.points == ((0.0, 3.0), (1.0, 7.0))
    assert "boom" in "\n".join(detail.events)


def test_telemetry_of_visible_runs_becomes_step_time_gpu_and_power(running: Launch, desk: Any) -> None:
    """The newest row of each node counts; the index of a GPU comes from the head of the file."""
    clock = Clock()
    reader = clock.reader(running, desk.folder)
    attempt = running.paths.run(0).attempt(1)
    device = GpuDevice(uuid="u", vendor=GpuVendor.nvidia, index=5, name="H100")
    for node, power in (("n1", 300.0), ("n2", 400.0)):
        head = TelemetrySegment(node=node, start=NOW, row_s=30)
        old = measured(NOW - timedelta(seconds=30), 0.1, 1.0, 9.0)
        tell(attempt.newest_telemetry_file(node), head, device, old, measured(NOW, 0.5, power, 0.25))
    reader.read_frame(TopRequest())
    cells = reader.rebuild_frame(TopRequest()).rows[0].cells
    assert [cells[name] for name in (TopColumn.step_time, TopColumn.gpu, TopColumn.power)] == [
        *("0.25", "50 %", "700")
    ]
    detail = reader.rebuild_frame(TopRequest()).detail
    assert detail is not None
    assert [(gpu.node, gpu.index) for gpu in detail.activity.gpus] == [("n1", 5), ("n2", 5)]
    clock.now += timedelta(seconds=30)
    tell(attempt.newest_telemetry_file("n1"), measured(clock.now, 0.9, 310.0, 0.5))
    cells = reader.read_frame(TopRequest()).rows[0].cells
    assert (cells[TopColumn.gpu], cells[TopColumn.power]) == ("70 %", "710")
    clock.now += timedelta(minutes=6)
    cells = reader.read_frame(TopRequest()).rows[0].cells
    assert cells[TopColumn.gpu] == "", "a node that has measured nothing for minutes is not shown"


def test_step_time_is_seen_from_progress_without_telemetry(running: Launch, desk: Any, writer: Any) -> None:
    """Ten steps in five seconds."""
    clock = Clock()
    reader = clock.reader(running, desk.folder)
    assert reader.read_frame(TopRequest()).rows[0].cells[TopColumn.step_time] == ""
    clock.now += timedelta(seconds=5)
    writer(launch=running).metrics(11, loss=0.5)
    assert reader.read_frame(TopRequest()).rows[0].cells[TopColumn.step_time] == "0.5"


def test_change_of_any_run_is_an_event(running: Launch, desk: Any, writer: Any) -> None:
    """Also of runs that are not selected; and the log is that of the rank that failed."""
    reader = Clock().reader(running, desk.folder)
    reader.read_frame(TopRequest())
    other = writer(launch=running, index=1)
    other.start()
    other.log(0, "fine\n")
    other.log(1, "boom\n")
    other.fail(rank=1)
    detail = reader.read_frame(TopRequest(selected=0)).detail
    assert detail is not None
    assert detail.events[-1].endswith("run 1: pending → failed (exception)")
    failed = reader.rebuild_frame(TopRequest(selected=1)).detail
    assert failed is not None
    assert (failed.log, failed.log_title) == (("boom",), "log of rank 1")


def test_scheduler_is_asked_at_the_rhythm_of_status_watch(
    desk: Any, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty looks in a minute ask once; a Slurm that does not answer is a warning in the frame."""
    launch = desk.freeze(kind=ClusterKind.slurm)
    desk.tell(launch, events.Submitted(at=START, job_index=0, job="7"))
    writer(launch=launch).start(job="7")
    clock = Clock()
    asked: list[datetime] = []

    def ask_scheduler(*_: object) -> tuple[SchedulerReply, ...]:
        asked.append(clock.now)
        return (SchedulerReply(scheduler=Scheduler.unreachable, warning="Slurm is away"),)

    monkeypatch.setattr(launch_view, "ask_scheduler", ask_scheduler)
    reader = clock.reader(launch, desk.folder)
    for _ in range(30):
        frame = reader.read_frame(TopRequest())
        clock.now += timedelta(seconds=2)
    assert asked == [NOW + timedelta(seconds=2)]
    assert frame.warning == "Slurm is away"


def test_goodput_is_counted_for_few_runs_a_look(desk: Any, writer: Any) -> None:
    """Each account reads all events of a run: of many visible runs, some at each look."""
    launch = desk.freeze(sweep=[(f"seed={number}",) for number in range(12)])
    for number in range(12):
        attempt = writer(launch=launch, index=number)
        attempt.start()
        attempt.tell(events.StepReached(at=START + timedelta(minutes=2), round=0, step=0))
        attempt.metrics(5, loss=1.0)
        attempt.complete()
    reader = Clock().reader(launch, desk.folder)
    request = TopRequest(visible=tuple(range(12)))
    counts = []
    for _ in range(4):
        rows = reader.read_frame(request).rows
        counts.append(sum(bool(row.cells[TopColumn.goodput]) for row in rows))
    assert counts == [5, 10, 12, 12]
    assert all(row.state is RunState.completed for row in rows)


def test_growing_file_follows_a_file_that_is_replaced_or_cut(tmp_path: Path) -> None:
    """By its inode and its size; of a long file only the end is read at first."""
    path = tmp_path / "rows.jsonl"
    file = GrowingFile(path=path)
    assert list(file.read_new_rows()) == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert list(file.read_new_rows()) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\ndamaged\n{"a": 4}\n')
    assert list(file.read_new_rows()) == [{"a": 3}, {"a": 4}]
    other = tmp_path / "other"
    other.write_text('{"b": 1}\n' * 20)
    other.rename(path)
    assert list(file.read_new_rows()) == [{"b": 1}] * 20
    path.write_text('{"c": 1}\n')
    assert list(file.read_new_rows()) == [{"c": 1}]
    path.write_text("".join(f'{{"d": {number}}}\n' for number in range(100)))
    assert list(GrowingFile(path=path, most=25).read_new_rows()) == [{"d": 98}, {"d": 99}]
