"""Promises of the time limit's watch: it is asked for again, and left ahead of in time."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from hpckit.model.cluster.allocation import AttemptLimits
from hpckit.runtime.supervisor import deadline as time_limit
from hpckit.runtime.supervisor.deadline import Deadline

LEAD_S = 60.0


class Scheduler:
    """Says one thing after the other, the last one for good; None is no answer."""

    def __init__(self, *left_s: float | None) -> None:
        self.answers = [
            None if one is None else AttemptLimits(end_s=time.monotonic() + one) for one in left_s
        ]
        self.asked = 0

    def ask(self) -> AttemptLimits | None:
        """Answer."""
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "_TICK_S", 0.01)
    monkeypatch.setattr(time_limit, "_FRESH_S", 0.0)


def leaves(scheduler: Scheduler, *, within_s: float = 0.3, stepping: bool = True) -> bool:
    """Return whether ranks are told to leave within a moment."""
    limit = Deadline(lead=timedelta(seconds=LEAD_S), ask=scheduler.ask)

    async def watch() -> bool:
        await limit.ask_scheduler_for_limits()
        try:
            step = timedelta() if stepping else None
            await asyncio.wait_for(limit.await_time_to_leave(lambda: step), within_s)
        except TimeoutError:
            return False
        return True

    return asyncio.run(watch())


def test_limit_is_left_ahead_of_by_the_lead() -> None:
    """With less left than the lead, ranks leave; with more they do not."""
    assert leaves(Scheduler(LEAD_S - 1), within_s=10)
    assert not leaves(Scheduler(LEAD_S + 100))


def test_limit_that_was_raised_is_not_left_for() -> None:
    """Just before leaving the scheduler is asked once more: `scontrol update TimeLimit`."""
    scheduler = Scheduler(LEAD_S - 1, LEAD_S + 100)
    assert not leaves(scheduler)
    assert scheduler.asked == 2


def test_limit_is_left_for_where_the_last_question_has_no_answer() -> None:
    """A scheduler that is away at that moment changes nothing."""
    assert leaves(Scheduler(LEAD_S - 1, None), within_s=10)


def test_limit_that_was_lowered_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for again now and then."""
    monkeypatch.setattr(time_limit, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(time_limit, "polling_pause_s", lambda interval_s, *_: interval_s)
    assert leaves(Scheduler(LEAD_S + 1000, LEAD_S - 1), within_s=10)


def test_limit_is_waited_for_where_nothing_could_be_saved() -> None:
    """A command that tells of no steps runs on until the very limit."""
    assert not leaves(Scheduler(1), stepping=False)
