"""Promises of model.run: how an attempt ended that could not say so."""

from __future__ import annotations

from datetime import UTC, datetime

from hpckit.model import events
from hpckit.model.failure import Cause
from hpckit.model.run import failure_of_unended_attempt
from hpckit.model.states import RunState

AT = datetime(2026, 1, 1, tzinfo=UTC)
BEGAN = events.AttemptStarted(at=AT, attempt=1, job=None, restart_count=0, host="h", pid=1, started="1")
TOLD = events.NoticeHeard(at=AT, signal="SIGTERM", cause=Cause.preempted)
ENDED = events.AttemptEnded(at=AT, state=RunState.completed, exit_code=0, failure=None)


def test_final_event_is_missing_where_an_attempt_began_and_did_not_end() -> None:
    """It was lost, or what it was told became of it; the attempt before it does not count."""
    for history, cause in (
        ([BEGAN], Cause.launcher_lost),
        ([BEGAN, TOLD], Cause.preempted),
        ([BEGAN, TOLD, ENDED, BEGAN], Cause.launcher_lost),
    ):
        failure = failure_of_unended_attempt(history)
        assert failure is not None
        assert (failure.cause, failure.signature) == (cause, cause)


def test_final_event_is_not_missing_where_there_is_one_or_need_be_none() -> None:
    """What never began has nothing to say, and what has ended has said it."""
    assert [failure_of_unended_attempt(one) for one in ([], [TOLD], [BEGAN, TOLD, ENDED])] == [None] * 3
