"""Promises of hpckit.planning.recovery.budget."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import Recovery
from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.states import RoundAction, RunState, parse_slurm_state
from hpckit.planning.recovery.budget import build_ledger_of_ended_run, explain_no_automatic_restart

AT = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = Recovery(
    restarts={"launcher_lost": 5, "node_lost": 5, "preempted": 100, "host_oom": 1, "time_limit": 2}
)


def view(*, slurm: str | None = None, **fields: Any) -> RunView:
    """Return a run whose first attempt our record has not seen end, as Slurm calls it."""
    known = {"state": RunState.running, "attempt": 1, "started_at": AT, "job": "7", **fields}
    record = RunRecord(id="demo.0", index=0, overrides=(), folder="/f", **known)
    seen = None
    if slurm is not None:
        seen = Observation(job="7", state=parse_slurm_state(slurm), seen_at=AT)
    return RunView(record=record, observation=seen, asked=True)


def began(attempt: int) -> events.AttemptStarted:
    """Return that an attempt began."""
    return events.AttemptStarted(
        at=AT + timedelta(minutes=attempt),
        attempt=attempt,
        job="7",
        restart_count=0,
        host="n1",
        pid=1,
        started="1",
    )


def lost(attempt: int, step: int | None = None) -> tuple[events.Event, ...]:
    """Return an attempt that lost its supervisor at this step, as it is read back."""
    failure = Failure(cause=Cause.launcher_lost, message="", signature=Cause.launcher_lost)
    at = AT + timedelta(minutes=attempt)
    ended = events.RoundEnded(
        at=at, round=0, first_step=None, step=step, action=RoundAction.end, failure=failure
    )
    last = events.AttemptEnded(at=at, state=RunState.interrupted, exit_code=1, failure=failure)
    return began(attempt), ended, last


@pytest.mark.parametrize(
    ("slurm", "cause"),
    [
        ("NODE_FAIL", Cause.node_lost),
        ("BOOT_FAIL", Cause.node_lost),
        ("TIMEOUT", Cause.time_limit),
        ("PREEMPTED", Cause.preempted),
        ("OUT_OF_MEMORY", Cause.host_oom),
        ("FAILED", Cause.launcher_lost),
        ("COMPLETED", Cause.launcher_lost),
        (None, Cause.launcher_lost),
    ],
)
def test_cause_is_slurm_s_where_our_record_has_no_final_event(slurm: str | None, cause: Cause) -> None:
    """The supervisor said nothing: what Slurm says of its job is why, else it was lost."""
    ledger, failure = build_ledger_of_ended_run(view(slurm=slurm), (began(1),))
    assert failure.cause is cause
    assert [(entry.attempt, entry.cause) for entry in ledger.entries] == [(1, cause)]


def test_cause_is_what_the_supervisor_was_told_where_slurm_is_silent() -> None:
    """A notice was the last that was heard of it."""
    told = events.NoticeHeard(at=AT, signal="SIGTERM", cause=Cause.preempted)
    _, failure = build_ledger_of_ended_run(view(slurm="FAILED"), (began(1), told))
    assert failure.cause is Cause.preempted


def test_cause_of_our_record_counts_once() -> None:
    """An end that was recorded is in the ledger already, also where Slurm has another word."""
    failure = Failure(cause=Cause.host_oom, message="", signature="x")
    ended = events.RoundEnded(
        at=AT, round=0, first_step=None, step=None, action=RoundAction.end, failure=failure
    )
    last = events.AttemptEnded(at=AT, state=RunState.failed, exit_code=1, failure=failure)
    seen = view(slurm="FAILED", state=RunState.failed, failure=failure)
    ledger, found = build_ledger_of_ended_run(seen, (began(1), ended, last))
    assert found == failure
    assert len(ledger.entries) == 1
    # Where no round ever began, the end stands in the attempt's final event alone.
    ledger, _ = build_ledger_of_ended_run(seen, (began(1), last))
    assert len(ledger.entries) == 1


def test_budget_is_that_of_all_attempts() -> None:
    """Two ends like this one before it, without getting further, and it is enough."""
    seen = view(attempt=3)
    assert explain_no_automatic_restart(view(attempt=2), (*lost(1), began(2)), POLICY) is None
    reason = explain_no_automatic_restart(seen, (*lost(1), *lost(2), began(3)), POLICY)
    assert reason == "the same failure 3 times without getting further"


def test_budget_is_refilled_by_a_step_further_than_ever() -> None:
    """What the attempt had reached counts, also where nobody could record its end."""
    history = (*lost(1, 5), *lost(2, 5), began(3))
    assert explain_no_automatic_restart(view(attempt=3, step=5), history, POLICY) is not None
    assert explain_no_automatic_restart(view(attempt=3, step=6), history, POLICY) is None


def test_budget_has_nothing_for_what_the_policy_does_not_name() -> None:
    """The cause is named."""
    failure = Failure(cause=Cause.exception, message="ValueError: boom", signature="x")
    seen = view(state=RunState.failed, failure=failure)
    assert (
        explain_no_automatic_restart(seen, (began(1),), POLICY)
        == "no restart after exception, by its recovery"
    )


def test_budget_counts_jobs_in_which_nothing_began() -> None:
    """No attempt tells of them: the launch's own record does."""
    waiting = view(slurm="FAILED", state=RunState.pending, attempt=0, started_at=None)
    assert explain_no_automatic_restart(waiting, (), POLICY, idle=1) is None
    assert explain_no_automatic_restart(waiting, (), POLICY, idle=2) is not None


def test_budget_is_not_asked_for_a_cancelled_run() -> None:
    """Who resumes those has said so."""
    seen = view(state=RunState.cancelled, cancel_requested=True)
    assert explain_no_automatic_restart(seen, (*lost(1), *lost(2), *lost(3)), Recovery()) is None
