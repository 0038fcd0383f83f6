"""Promises of the save interval."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as some

from hpckit.model.goodput import SaveCost
from hpckit.model.launch import Checkpoint
from hpckit.runtime.rank.checkpointing import WRITING, SaveInterval, compute_young_interval


class Clock:
    """A clock that tests turn."""

    now = 0.0

    def __call__(self) -> float:
        """Return monotonic seconds."""
        return self.now


def test_young_is_the_square_root_law() -> None:
    """1 s of stall and a failure a day: a save every 416 s; never more often than every 5 s."""
    assert round(compute_young_interval(timedelta(seconds=1), timedelta(days=1)).total_seconds()) == 416
    assert compute_young_interval(timedelta(0), timedelta(days=1)) == timedelta(seconds=5)


def cost(stall_s: float, duration_s: float = 0.0) -> SaveCost:
    """Return what a save costs."""
    return SaveCost(stall=timedelta(seconds=stall_s), duration=timedelta(seconds=duration_s))


def test_save_interval_that_was_handed_a_cost_does_not_begin_blind() -> None:
    """A save that took ten minutes in an earlier round is not made in the first seconds of this."""
    clock = Clock()
    save_interval = SaveInterval(settings=Checkpoint(), clock=clock, known=cost(0.1, 600))
    clock.now += 600 / WRITING - 1
    assert not save_interval.is_due(1)
    clock.now += 1
    assert save_interval.is_due(1)


def test_save_interval_follows_the_measured_cost() -> None:
    """A save four times as dear comes half as often."""
    clock = Clock()
    save_interval = SaveInterval(settings=Checkpoint(mtbf_hours=24), clock=clock)
    assert save_interval.interval == timedelta(seconds=5), "the first save tells what one costs"
    save_interval.known = cost(1)
    save_interval.restart_at_step(5)
    first = save_interval.interval
    save_interval.known = cost(4)
    save_interval.restart_at_step(10)
    assert save_interval.interval / first == 2
    clock.now += save_interval.interval.total_seconds() - 1
    assert not save_interval.is_due(11)
    clock.now += 1
    assert save_interval.is_due(11)


def test_save_interval_counts_steps_or_minutes_where_told() -> None:
    """Fixed steps or minutes win over the measured interval; steps count from the restored one."""
    clock = Clock()
    by_steps = SaveInterval(settings=Checkpoint(interval_steps=5), clock=clock)
    by_steps.restart_at_step(12)
    assert [step for step in range(12, 20) if by_steps.is_due(step)] == [17, 18, 19]
    by_minutes = SaveInterval(settings=Checkpoint(interval_min=2), clock=clock)
    clock.now += 119
    assert not by_minutes.is_due(1)
    clock.now += 1
    assert by_minutes.is_due(1)


_seconds = some.floats(0, 36_000).map(lambda seconds: timedelta(seconds=seconds))


@given(stall=_seconds, duration=_seconds, hours=some.floats(0.01, 10_000))
def test_save_interval_is_bounded_by_stall_and_by_bandwidth(
    stall: timedelta, duration: timedelta, hours: float
) -> None:
    """Saves are never closer than Young's interval, nor so close that writing takes a tenth."""
    save_interval = SaveInterval(settings=Checkpoint(mtbf_hours=hours), clock=Clock())
    save_interval.known = SaveCost(stall=stall, duration=duration)
    assert save_interval.interval >= compute_young_interval(stall, timedelta(hours=hours))
    assert duration <= save_interval.interval * WRITING + timedelta(microseconds=1)
    unbounded = SaveInterval(settings=Checkpoint(mtbf_hours=hours), clock=Clock())
    unbounded.known = SaveCost(stall=stall, duration=timedelta(0))
    assert save_interval.interval == max(unbounded.interval, duration / WRITING)


@given(durations=some.lists(some.floats(0.1, 3_000), min_size=3, max_size=30))
def test_save_interval_leaves_nine_tenths_of_the_time_to_others(durations: list[float]) -> None:
    """Whatever saves take, ten times that passes from one to the next, however cheap stalls are."""
    clock = Clock()
    clock.now = 0.0
    save_interval = SaveInterval(settings=Checkpoint(), clock=clock)
    for step, taken in enumerate(durations):
        begun = clock.now
        save_interval.restart_at_step(step)
        clock.now += taken
        save_interval.known = cost(0.05, taken)
        while not save_interval.is_due(step + 1):
            clock.now += max(taken, 1.0)
        assert taken <= (clock.now - begun) * WRITING + 1e-6


@given(stall=_seconds, duration=_seconds, steps=some.integers(1, 1000), minutes=some.floats(0.1, 60))
def test_save_interval_keeps_an_interval_that_the_user_states(
    stall: timedelta, duration: timedelta, steps: int, minutes: float
) -> None:
    """An interval in steps or minutes is kept as stated, whatever saves take."""
    by_minutes = SaveInterval(settings=Checkpoint(interval_min=minutes), clock=Clock())
    by_steps = SaveInterval(settings=Checkpoint(interval_steps=steps), clock=Clock())
    for save_interval in (by_minutes, by_steps):
        save_interval.known = SaveCost(stall=stall, duration=duration)
        assert save_interval.is_set_by_user
    assert by_minutes.interval == timedelta(minutes=minutes)
    assert by_steps.is_due(steps)
    assert not by_steps.is_due(steps - 1)
