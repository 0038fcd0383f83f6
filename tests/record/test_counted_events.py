"""Promises of hpckit.record.counted_events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hpckit.model import events
from hpckit.model.failure import Cause
from hpckit.model.states import RunState
from hpckit.record.counted_events import read_events_for_restart_budget
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import Launch
from hpckit.record.store import append_event, make_private_folder, write_json

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def launch(frozen: Callable[[], Launch]) -> Launch:
    """Return a launch of one run."""
    return frozen()


def begin(launch: Launch, number: int, *, step: int | None = None, end: bool = False) -> None:
    """Write an attempt, at a step, that has said its final event or not."""
    paths = launch.paths.run(0).attempt(number)
    make_private_folder(paths.folder)
    at = AT + timedelta(minutes=number)
    append_event(
        paths.events,
        events.AttemptStarted(at=at, attempt=number, job=None, restart_count=0, host="h", pid=1, started="1"),
    )
    if step is not None:
        write_json(paths.progress, {"round": 0, "step": step})
    if end:
        append_event(paths.events, events.AttemptEnded(at=at, state=RunState.failed, exit_code=1))


def told(history: tuple[events.Event, ...]) -> list[str]:
    """Return the kinds of events."""
    return [event.kind for event in history]


def test_attempts_without_a_final_event_are_given_one(launch: Launch) -> None:
    """Those that are over, at the step they had noted; the latest may still go on."""
    begin(launch, 1, step=7)
    begin(launch, 2, end=True)
    begin(launch, 3)
    history = read_events_for_restart_budget(launch, 0)
    assert told(history) == [
        *("attempt_started", "round_ended", "attempt_ended"),
        *("attempt_started", "attempt_ended"),
        "attempt_started",
    ]
    ended = history[1]
    assert isinstance(ended, events.RoundEnded)
    assert ended.step == 7
    assert ended.failure is not None
    assert ended.failure.cause is Cause.launcher_lost


def test_attempts_before_one_are_all_over(launch: Launch) -> None:
    """A supervisor asks for what was before its own attempt."""
    begin(launch, 1)
    begin(launch, 2)
    assert told(read_events_for_restart_budget(launch, 0, before=2)) == [
        *("attempt_started", "round_ended", "attempt_ended")
    ]


def test_attempts_that_were_told_to_stop_ended_of_that(launch: Launch) -> None:
    """The last thing heard is why, where nothing else is known."""
    begin(launch, 1)
    path = launch.paths.run(0).attempt(1).events
    append_event(path, events.NoticeHeard(at=AT, signal="SIGTERM", cause=Cause.preempted))
    _, _, ended, _ = read_events_for_restart_budget(launch, 0, before=2)
    assert isinstance(ended, events.RoundEnded)
    assert ended.failure is not None
    assert ended.failure.cause is Cause.preempted


def test_attempts_before_a_resume_by_hand_do_not_count(launch: Launch) -> None:
    """Somebody has fixed something; a resume that nobody asked for changes nothing."""
    for number in (1, 2, 3):
        begin(launch, number, end=True)
    job = launch.jobs[0]
    for index, (after, fresh) in enumerate([(1, True), (2, False)], 1):
        added = events.JobAdded(
            at=AT, job=replace(job, index=index, name=f"j{index}"), after=(after,), fresh=fresh
        )
        record_launch_event(launch.paths, added)
    history = read_events_for_restart_budget(launch, 0)
    attempts = [one.attempt for one in history if isinstance(one, events.AttemptStarted)]
    assert attempts == [2, 3]
