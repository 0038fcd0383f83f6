"""Promises of the save interval."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as some

from hpckit.model.launch import Checkpoint
from hpckit.model.save_cost import SaveCost
from hpckit.runtime.rank.save_interval import WRITING, Cadence, young


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


def cost(stall_s: float, duration_s: float = 0.0) -> SaveCost:
    """Return what a save costs."""
    return SaveCost(stall=timedelta(seconds=stall_s), duration=timedelta(seconds=duration_s))


def test_cadence_that_was_handed_a_cost_does_not_begin_blind() -> None:
    """A save that took ten minutes in an earlier round is not made in the first seconds of this."""
    clock = Clock()
    cadence = Cadence(settings=Checkpoint(), clock=clock, known=cost(0.1, 600))
    clock.now += 600 / WRITING - 1
    assert not cadence.due(1)
    clock.now += 1
    assert cadence.due(1)


def test_cadence_follows_the_measured_cost() -> None:
    """A save four times as dear comes half as often."""
    clock = Clock()
    cadence = Cadence(settings=Checkpoint(failure_hours=24), clock=clock)
    assert cadence.interval == timedelta(seconds=5), "the first save tells what one costs"
    cadence.known = cost(1)
    cadence.began(5)
    first = cadence.interval
    cadence.known = cost(4)
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


_seconds = some.floats(0, 36_000).map(lambda seconds: timedelta(seconds=seconds))


@given(stall=_seconds, duration=_seconds, hours=some.floats(0.01, 10_000))
def test_cadence_is_bounded_by_stall_and_by_bandwidth(
    stall: timedelta, duration: timedelta, hours: float
) -> None:
    """Saves are never closer than Young's interval, nor so close that writing takes a tenth."""
    cadence = Cadence(settings=Checkpoint(failure_hours=hours), clock=Clock())
    cadence.known = SaveCost(stall=stall, duration=duration)
    assert cadence.interval >= young(stall, timedelta(hours=hours))
    assert duration <= cadence.interval * WRITING + timedelta(microseconds=1)
    unbounded = Cadence(settings=Checkpoint(failure_hours=hours), clock=Clock())
    unbounded.known = SaveCost(stall=stall, duration=timedelta(0))
    assert cadence.interval == max(unbounded.interval, duration / WRITING)


@given(durations=some.lists(some.floats(0.1, 3_000), min_size=3, max_size=30))
def test_cadence_leaves_nine_tenths_of_the_time_to_others(durations: list[float]) -> None:
    """Whatever saves take, ten times that passes from one to the next, however cheap stalls are."""
    clock = Clock()
    clock.now = 0.0
    cadence = Cadence(settings=Checkpoint(), clock=clock)
    for step, taken in enumerate(durations):
        begun = clock.now
        cadence.began(step)
        clock.now += taken
        cadence.known = cost(0.05, taken)
        while not cadence.due(step + 1):
            clock.now += max(taken, 1.0)
        assert taken <= (clock.now - begun) * WRITING + 1e-6


@given(
    stall=_seconds, duration=_seconds, steps=some.integers(1, 1000), minutes=some.floats(0.1, 60)
)
def test_cadence_keeps_an_interval_that_the_user_states(
    stall: timedelta, duration: timedelta, steps: int, minutes: float
) -> None:
    """An interval in steps or minutes is kept as stated, whatever saves take."""
    by_minutes = Cadence(settings=Checkpoint(interval_min=minutes), clock=Clock())
    by_steps = Cadence(settings=Checkpoint(interval_steps=steps), clock=Clock())
    for cadence in (by_minutes, by_steps):
        cadence.known = SaveCost(stall=stall, duration=duration)
        assert cadence.stated
    assert by_minutes.interval == timedelta(minutes=minutes)
    assert by_steps.due(steps)
    assert not by_steps.due(steps - 1)
