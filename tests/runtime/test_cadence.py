"""Promises of the save interval."""

from __future__ import annotations

from datetime import timedelta

from hpckit.model.launch import Checkpoint
from hpckit.runtime.cadence import Cadence, young


class Clock:
    """A clock that tests turn."""

    now = 0.0

    def __call__(self) -> float:
        """Return monotonic seconds."""
        return self.now


def test_young_is_the_square_root_law() -> None:
    """1 s of stall and a failure a day: a save every 416 s; never more often than every 5 s."""
    assert round(young(timedelta(seconds=1), timedelta(days=1)).total_seconds()) == 416
    assert young(timedelta(0), timedelta(days=1)) == timedelta(seconds=5)


def test_cadence_follows_the_measured_cost() -> None:
    """A save four times as dear comes half as often."""
    clock = Clock()
    cadence = Cadence(settings=Checkpoint(failure_hours=24), clock=clock)
    assert cadence.interval == timedelta(seconds=5), "the first save tells what one costs"
    cadence.cost = timedelta(seconds=1)
    cadence.began(5)
    first = cadence.interval
    cadence.cost = timedelta(seconds=4)
    cadence.began(10)
    assert cadence.interval / first == 2
    clock.now += cadence.interval.total_seconds() - 1
    assert not cadence.due(11)
    clock.now += 1
    assert cadence.due(11)


def test_cadence_counts_steps_or_minutes_where_told() -> None:
    """Fixed steps or minutes win over the measured interval; steps count from the restored one."""
    clock = Clock()
    by_steps = Cadence(settings=Checkpoint(interval_steps=5), clock=clock)
    by_steps.began(12)
    assert [step for step in range(12, 20) if by_steps.due(step)] == [17, 18, 19]
    by_minutes = Cadence(settings=Checkpoint(interval_min=2), clock=clock)
    clock.now += 119
    assert not by_minutes.due(1)
    clock.now += 1
    assert by_minutes.due(1)
