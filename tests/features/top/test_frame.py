"""The view models of `hpckit top`: rows, filters, orders, columns, and harmless texts."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hpckit.features.top.detail import (
    format_event,
    format_events,
    format_gpus_and_ranks,
    format_last_log_lines,
    format_plot_title,
    list_state_changes,
    update_step_from_curve,
)
from hpckit.features.top.frame import (
    GpuNow,
    RunActivity,
    TopColumn,
    TopDetail,
    build_gpu_snapshot,
    build_top_rows,
    compute_mean_step_s,
    format_launch_and_progress,
    list_metric_names,
)
from hpckit.features.top.order import (
    TopOrder,
    choose_fitting_columns,
    filter_and_sort_rows,
    find_filled_columns,
)
from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.states import RoundAction, RunState
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.vocabulary import GaugeSpread, GpuDevice, GpuGauge, GpuRow, GpuVendor
from hpckit.report.live import Progress
from hpckit.report.rows import LaunchHead, RunRow

AT = datetime(2026, 1, 1, tzinfo=UTC)
EVIL = "\x1b]0;owned\x07[red]\x1b[2J\u202e[/red]\nline"


def row(index: int, **given: Any) -> RunRow:
    """Return a running run."""
    fields: dict[str, Any] = {
        "run": f"demo.{index}",
        "overrides": (f"lr=0.{index}", "params.seed=1"),
        "state": RunState.running,
        "job": None,
        "slurm_state": None,
        "reason": "",
        "attempt": 1,
        "round": 0,
        "step": 10 * index,
        "nodes": ("n1",),
        "exit_code": None,
        "failure": None,
        "metrics": {"loss": 1.0 / (index + 1)},
        "started_at": None,
        "ended_at": None,
        "note": "",
    }
    return RunRow(index=index, **{**fields, **given})


ACTIVITY = RunActivity(
    step_s=0.25,
    gpus=(
        GpuNow(node="n1", index=0, utilization=0.9, power_w=400.0),
        GpuNow(node="n1", index=1, utilization=0.7, power_w=300.0),
    ),
)


def test_row_shows_what_a_run_does_while_it_runs() -> None:
    """Means of utilization, sums of power; an ended run keeps its results and does nothing."""
    rows = [row(0, total=5000), row(1, state=RunState.completed)]
    first, second = build_top_rows(rows, {0: ACTIVITY, 1: ACTIVITY}, {0: 0.931}, metric="loss")
    assert [first.cells[name] for name in TopColumn] == [
        *("0", "lr=0.0 seed=1", "running", "", "1/5000", "0.25", "1", "93 %", "80 %", "700")
    ]
    assert second.cells[TopColumn.gpu] == second.cells[TopColumn.power] == ""
    assert second.cells[TopColumn.metric] == "0.5"
    assert second.values[TopColumn.step_time] is None


def test_failures_are_told_first_and_why() -> None:
    """A terminal of 80 columns cuts the end of the line, and failures are what one looks for."""
    states = [RunState.completed] * 180 + [RunState.failed] * 20
    head = LaunchHead(id="a-1", name="a", folder="/o/a-1", created_at=AT)
    progress = Progress(at=AT, states=tuple(states), share=1.0, remaining=None)
    _, line = format_launch_and_progress(head, progress, 200)
    assert line.endswith("200 runs: 20 failed, 180 completed")
    lost = Failure(cause=Cause.node_lost, message="")
    (one,) = build_top_rows([row(0, state=RunState.failed, failure=lost)], {}, {}, metric="")
    assert one.cells[TopColumn.cause] == "node_lost"


def test_filter_takes_words_of_overrides_and_states() -> None:
    """KEY=GLOB as in `--override`; other words as parts; all words have to match."""
    rows = build_top_rows([row(0), row(1), row(2, state=RunState.failed)], {}, {}, metric="")
    order = TopOrder()

    def found(words: str) -> list[int]:
        return [one.index for one in filter_and_sort_rows(rows, words, order)]

    assert found("") == [0, 1, 2]
    assert found("lr=0.1") == [1]
    assert found("lr=1e-1") == [1]
    assert found("seed=1 failed") == [2]
    assert found("lr=0.[01]") == [0, 1]
    assert found("nothing") == found("=x") == []


def test_order_is_by_value_and_what_has_none_comes_last() -> None:
    """In both directions; NaN counts as no value; states are in their own order."""
    metrics = [{"loss": 0.3}, {"loss": math.nan}, {}, {"loss": 0.1}]
    states = [RunState.failed, RunState.running, RunState.pending, RunState.completed]
    rows = build_top_rows(
        [
            row(place, metrics=one, state=state)
            for place, (one, state) in enumerate(zip(metrics, states, strict=True))
        ],
        *({}, {}),
        metric="loss",
    )

    def found(column: TopColumn, *, descending: bool = False) -> list[int]:
        order = TopOrder(column=column, descending=descending)
        return [one.index for one in filter_and_sort_rows(rows, "", order)]

    assert found(TopColumn.metric) == [3, 0, 1, 2]
    assert found(TopColumn.metric, descending=True) == [0, 3, 1, 2]
    assert found(TopColumn.state) == [2, 1, 3, 0]
    assert found(TopColumn.run, descending=True) == [3, 2, 1, 0]


def test_each_press_of_sort_is_another_order_until_all_were_shown() -> None:
    """Every column in both directions, then the first again."""
    order, seen = TopOrder(), []
    for _ in range(2 * len(TopColumn)):
        seen.append((order.column, order.descending))
        order = order.next_order
    assert len(set(seen)) == 2 * len(TopColumn)
    assert order == TopOrder()
    assert replace(order, descending=True).description == "run, largest first"


@pytest.mark.parametrize("width", range(5, 160))
def test_columns_fit(width: int) -> None:
    """Whatever the width; a wide table has all columns."""
    columns = choose_fitting_columns(width)
    assert sum(size + 1 for _, size in columns) <= width
    assert columns[0][0] is TopColumn.run
    assert width < 104 or [name for name, _ in columns] == list(TopColumn)


def test_empty_columns_make_room() -> None:
    """Without GPUs there is room for the step time at 47 characters."""
    filled = find_filled_columns(build_top_rows([row(0)], {0: RunActivity(step_s=1.0)}, {}, metric="loss"))
    assert TopColumn.gpu not in filled
    assert TopColumn.step_time in dict(choose_fitting_columns(47, filled))
    assert TopColumn.step_time not in dict(choose_fitting_columns(47))


def test_hostile_texts_are_shown_and_not_obeyed() -> None:
    """Control characters are escaped, brackets stay what they are, and a line stays one line."""
    hostile = row(0, run=EVIL, overrides=(f"name={EVIL}",), metrics={EVIL: 0.5})
    (one,) = build_top_rows([hostile], {}, {}, metric=EVIL)
    texts = [one.run, *one.cells.values()]
    texts += [format_plot_title(TopDetail(index=0, title="", metric=EVIL, points=((0.0, 1.0),)))]
    texts += format_last_log_lines(f"before\n{EVIL}\n", 10)
    texts += format_events([(AT, EVIL)], 5)
    texts += format_gpus_and_ranks(RunActivity(gpus=(GpuNow(node=EVIL, index=None),)))
    for text in texts:
        assert not set(text) & {"\x1b", "\x07", "\n", "\u202e"}, text
    assert any("[red]" in text for text in texts)


def test_log_shows_last_lines_as_a_terminal_would() -> None:
    """Colours go, what a progress bar drew over goes, trailing blank lines go."""
    text = "a\n\x1b[31mred\x1b[0m\n10%\r50%\r100%\nx\ty\r\n\n\n"
    assert format_last_log_lines(text, 3) == ("red", "100%", "x    y")
    assert format_last_log_lines("", 3) == ()


def test_log_lines_of_run_logger_leave_room_for_their_message() -> None:
    """The pane says whose log it is, and the day is today."""
    line = "2026-11-23 13:37:28,232 rank=0 INFO resumed at step 600"
    assert format_last_log_lines(line, 3) == ("13:37:28 INFO resumed at step 600",)
    assert format_last_log_lines("2026-11-23 mine rank=0", 3) == ("2026-11-23 mine rank=0",)


def test_table_is_at_the_step_of_the_curve() -> None:
    """Metrics are often ahead of what a run says of itself; steps of the user's own count not."""
    rows = [row(0, step=581, total=700), row(1, step=3, total=700)]

    def steps(last: float) -> list[int | None]:
        detail = TopDetail(index=0, title="", points=((0.0, 1.0), (last, 0.5)))
        return [one.step for one in update_step_from_curve(rows, detail)]

    assert steps(613.0) == [613, 3]
    assert steps(100_000.0) == steps(5.0) == [581, 3]
    assert update_step_from_curve(rows, None) == rows


def test_gpu_is_read_from_its_latest_row() -> None:
    """Means of gauges; without NVML's utilization that of the counters; absent stays absent."""

    def spread(value: float) -> GaugeSpread:
        return GaugeSpread(min=0, mean=value, max=value * 2, p95=value)

    gauges = {
        GpuGauge.graphics_share: spread(0.5),
        GpuGauge.memory_used_bytes: spread(40 * 2**30),
        GpuGauge.power_w: spread(312.4),
        GpuGauge.temperature_c: spread(61.0),
    }
    device = GpuDevice(uuid="u", vendor=GpuVendor.nvidia, index=3, name="H100", memory_bytes=80 * 2**30)
    known = build_gpu_snapshot("n1", GpuRow(uuid="u", samples=1, gauges=gauges), device)
    assert format_gpus_and_ranks(RunActivity(gpus=(known,))) == ["GPU 3 50 % 40/80 GiB 312 W 61° n1"]
    bare = build_gpu_snapshot("n1", GpuRow(uuid="u", samples=1), None)
    assert format_gpus_and_ranks(RunActivity(gpus=(bare,))) == ["GPU n1"]
    assert format_gpus_and_ranks(RunActivity()) == ["nothing was measured yet"]


def test_step_time_is_over_all_ranks() -> None:
    """Seconds by steps, ranks without steps left out; lines come in order of ranks."""
    ranks = (
        RankSteps(rank=1, node="n1", steps=10, seconds=3.0, data_s=0.3, waiting_s=1.5),
        RankSteps(rank=0, node="n1", steps=10, seconds=1.0),
        RankSteps(rank=2, node="n1", steps=0, seconds=0.0),
    )
    assert compute_mean_step_s(ranks) == 0.2
    assert compute_mean_step_s(()) is None
    assert format_gpus_and_ranks(RunActivity(ranks=ranks)) == [
        *("rank 0 0.1 s n1", "rank 1 0.3 s data 10 % wait 50 % n1", "rank 2 n1")
    ]
    narrow = format_gpus_and_ranks(RunActivity(ranks=ranks), 31)
    assert narrow == ["r0 0.1 s", "r1 0.3 s data 10 % wait 50 %", "r2"]


def test_events_count_steps_as_tables_do() -> None:
    """From 1: the save after the last of 600 steps is that of step 600, which is the next one."""
    saved = events.CheckpointSaved(at=AT, round=0, step=600, size=1, stall_s=0.1, duration_s=2.0)
    assert format_event(saved) == "saved step 600 in 2.0 s"
    assert format_event(events.StepReached(at=AT, round=1, step=0)) == "round 1: first step 1"


def test_changes_of_states_become_events_in_order_of_time() -> None:
    """Runs that were not known before, and those that did not change, say nothing."""
    failure = Failure(cause=Cause.cuda_oom, message="out of memory")
    rows = [row(0, state=RunState.failed, failure=failure), row(1), row(2)]
    changes = list_state_changes({0: RunState.running, 1: RunState.running}, rows, AT)
    assert changes == [(AT, "run 0: running → failed (cuda_oom)")]
    earlier = (AT - timedelta(seconds=1), "attempt 1 began")
    lines = format_events([*changes, earlier], 5)
    assert [line.split(" ", 1)[1] for line in lines] == [earlier[1], changes[0][1]]


def test_metrics_that_can_be_drawn_are_numbers() -> None:
    """Texts and truth values are no curve."""
    rows = [row(0, metrics={"note": "x", "ok": True, "loss": 1}), row(1, metrics={"acc": 0.5})]
    assert list_metric_names(rows) == ("loss", "acc")


def test_every_event_of_a_run_has_words_or_is_left_out() -> None:
    """The ends, notices and rounds of a run are told with their reasons."""
    failure = Failure(cause=Cause.hang, message="no step began")
    ended = events.RoundEnded(
        at=AT, round=0, first_step=0, step=7, action=RoundAction.new_round, failure=failure
    )
    assert format_event(ended) == "round 0 ended (hang: no step began); next: new round"
    started = events.RoundStarted(at=AT, round=1, world_size=1, nodes=("n1",))
    assert format_event(started) == "round 1: 1 rank on n1"
    asked = events.CancelRequested(at=AT, runs=(0, 1, 2))
    assert format_event(asked) == "cancellation of runs 0-2"
    joined = events.AgentJoined(at=AT, node="n1", node_rank=0, pid=1)
    assert format_event(joined) == ""
