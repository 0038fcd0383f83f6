"""Promises of planning.notices and report.notice: when a notice is due, and what it says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.run import PRUNED, RunRecord, RunView
from hpckit.model.search import Direction, Sweep
from hpckit.model.settings import NoticeKind
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.notices import (
    is_run_over,
    notice_kind_for_attempt_end,
    notice_kind_for_final_state,
    notice_kinds_for_event,
    was_new_attempt_decided,
)
from hpckit.report.notice import NoticeWriter

AT = datetime(2026, 1, 2, tzinfo=UTC)
WRITER = NoticeWriter(launch="a-1", folder="/l", named="a-1", at=AT)


def record(index: int = 0, **values: object) -> RunRecord:
    """Return the record of a run."""
    known: dict[str, object] = {"state": RunState.completed, "attempt": 1, "started_at": AT}
    base = {"id": f"a-1.{index}", "index": index, "overrides": (), "folder": "/l"}
    return RunRecord(**{**base, **known, **values})  # type: ignore[arg-type]


def ended(action: RoundAction, cause: Cause = Cause.exception) -> events.RoundEnded:
    """Return the end of a round."""
    failure = Failure(cause=cause, message="boom")
    return events.RoundEnded(at=AT, round=0, first_step=0, step=3, action=action, failure=failure)


@pytest.mark.parametrize(
    ("state", "continues", "kind"),
    [
        (RunState.completed, False, NoticeKind.completed),
        (RunState.failed, False, NoticeKind.failed),
        (RunState.failed, True, NoticeKind.failed),
        (RunState.interrupted, False, NoticeKind.failed),
        (RunState.interrupted, True, None),
        (RunState.cancelled, False, None),
        (RunState.running, False, None),
    ],
)
def test_end_of_an_attempt(state: RunState, continues: bool, kind: NoticeKind | None) -> None:  # noqa: FBT001  # parametrised
    """An interruption is told of only if nothing continues the run; a cancellation never is."""
    assert notice_kind_for_attempt_end(state, continues=continues) is kind


def test_rest_of_a_launch_tells_of_lost_runs() -> None:
    """When nothing continues, a run whose end nobody recorded counts as failed."""
    assert notice_kind_for_final_state(RunState.unknown) is NoticeKind.failed
    assert notice_kind_for_final_state(RunState.interrupted) is NoticeKind.failed
    assert notice_kind_for_final_state(RunState.cancelled) is None


def test_events_of_an_attempt() -> None:
    """The first round of the first attempt is no restart; a hang is told of when it is noticed."""
    start = events.RoundStarted(at=AT, round=0, world_size=1, nodes=("n",))
    again = events.RoundStarted(at=AT, round=1, world_size=1, nodes=("n",))
    assert notice_kinds_for_event(start, 1) == ()
    assert notice_kinds_for_event(start, 2) == (NoticeKind.resumed,)
    assert notice_kinds_for_event(again, 1) == (NoticeKind.resumed,)
    assert notice_kinds_for_event(ended(RoundAction.new_round, Cause.hang), 1) == (NoticeKind.stalled,)
    assert notice_kinds_for_event(ended(RoundAction.new_round), 1) == ()


def test_attempt_that_asks_for_another_one() -> None:
    """The last round decides."""
    assert was_new_attempt_decided([ended(RoundAction.new_round), ended(RoundAction.new_attempt)])
    assert not was_new_attempt_decided([ended(RoundAction.new_attempt), ended(RoundAction.end)])
    assert not was_new_attempt_decided([])


@pytest.mark.parametrize(
    ("values", "continues", "over"),
    [
        ({}, True, True),
        ({"state": RunState.running}, False, False),
        ({"state": RunState.interrupted}, True, False),
        ({"state": RunState.interrupted}, False, True),
        ({"state": RunState.pending, "started_at": None}, False, False),
        ({"state": RunState.pending, "started_at": None, "job": "1", "cancel_requested": True}, False, True),
    ],
)
def test_run_is_over(values: dict[str, object], continues: bool, over: bool) -> None:  # noqa: FBT001  # parametrised
    """A run that was cancelled before it began is over, whatever Slurm would say."""
    assert is_run_over(RunView(record=record(0, **values)), continues=continues) is over


def test_text_of_a_failure_has_cause_place_progress_and_command() -> None:
    """All that one needs to decide whether to look now; control characters are shown."""
    failure = Failure(cause=Cause.exception, message="ValueError: \x1b[31mboom", rank=3, node="n2", step=7)
    failed = record(
        state=RunState.failed, attempt=2, failure=failure, step=7, total=10, metrics={"loss": 0.25}
    )
    notice = WRITER.build_run_notice(NoticeKind.failed, failed, "-002")
    assert notice.key == "failed-00000-002"
    assert notice.title == "a-1.0 failed"
    assert notice.text.splitlines() == [
        "exception, rank 3 on n2: ValueError: \\x1b[31mboom",
        "attempt 2, step 8 of 10",
        "loss 0.25",
        "hpckit logs a-1.0",
    ]
    assert (notice.cause, notice.rank, notice.node, notice.step) == ("exception", 3, "n2", 7)


def test_text_of_a_launch_counts_runs_and_names_the_best() -> None:
    """The best is that of the configured metric; pruned and failed runs do not count."""
    failure = Failure(cause=Cause.cuda_oom, message="x")
    views = [
        RunView(record=record(0, metrics={"loss": 0.5})),
        RunView(record=record(1, metrics={"loss": 0.25}, attempt=3)),
        RunView(record=record(2, metrics={"loss": 0.1}, reason=PRUNED)),
        RunView(record=record(3, metrics={"loss": 0.0}, state=RunState.failed, failure=failure)),
    ]
    notice = WRITER.build_launch_over_notice(views, Sweep(metric="loss"))
    assert notice.key == "finished-00006"
    assert notice.title == "a-1 finished: 3 completed, 1 failed"
    assert notice.text.splitlines() == ["cuda_oom: 1 run", "best: a-1.1  loss 0.25", "hpckit status a-1"]
    most = WRITER.build_launch_over_notice(views, Sweep(metric="loss", direction=Direction.maximize))
    assert "best: a-1.0" in most.text
    assert "best" not in WRITER.build_launch_over_notice(views, Sweep()).text


def test_text_of_a_launch_counts_what_was_cancelled_before_it_began() -> None:
    """Like `status`: nobody asked Slurm, but the wish alone says that such a run will not run."""
    waiting = {"state": RunState.pending, "attempt": 0, "started_at": None, "job": "7_1"}
    views = [RunView(record=record(0)), RunView(record=record(1, **waiting, cancel_requested=True))]
    notice = WRITER.build_launch_over_notice(views, Sweep())
    assert notice.title == "a-1 finished: 1 completed, 1 cancelled"
    assert notice.counts == {"completed": 1, "cancelled": 1}
