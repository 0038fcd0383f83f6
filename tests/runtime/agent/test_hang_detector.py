"""Promises of the hang judge, on made-up traces of steps."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.model.failure import StalledRank
from hpckit.runtime.agent.hang_detector import ENOUGH_STEPS, StepWatch

TICK = 1.0
TELL = 0.1
FLOOR_S, FIRST_S = 5.0, 600.0


def new_watch(floor_s: float = FLOOR_S, first_s: float = FIRST_S) -> StepWatch:
    """Return a watch that knows nothing yet."""
    return StepWatch(floor_s=floor_s, factor=3, first_s=first_s)


def heard(durations: Iterable[float]) -> Iterator[tuple[int, float]]:
    """Yield the steps that a rank tells of, and when: at most every 0.1 s."""
    at, told = 0.0, -TELL
    for step, duration in enumerate(durations):
        if at - told >= TELL:
            told = at
            yield step, at
        at += duration


def judge(watch: StepWatch, trace: Iterable[tuple[int, float]], ranks: int = 1) -> StalledRank | None:
    """Play a trace on all ranks, judging every tick; returns the first stall."""
    tick = 0.0
    for step, at in trace:
        while tick < at:
            if (stall := watch.find_stalled_rank(tick)) is not None:
                return stall
            tick += TICK
        for rank in range(ranks):
            watch.note_step_begin(rank, step, at)
    return None


def steady(seconds: float, count: int = 100) -> list[tuple[int, float]]:
    """Return a trace of equal steps."""
    return [(step, step * seconds) for step in range(count)]


def first_stall(watch: StepWatch, since: float, until: float) -> tuple[float, StalledRank] | None:
    """Judge every tick from then on; returns when the first stall was seen, and the stall."""
    now = since
    while now < until:
        if (stall := watch.find_stalled_rank(now)) is not None:
            return now, stall
        now += TICK
    return None


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    median=st.sampled_from([0.004, 0.05, 0.4, 1.0, 3.0]),
    sigma=st.floats(0, 0.35),
    every=st.integers(40, 400),
    seed=st.integers(0, 2**16),
)
def test_noisy_steps_and_regular_saves_are_no_hang(
    median: float, sigma: float, every: int, seed: int
) -> None:
    """Lognormal steps, every so many ten times as long for a save: never judged a hang.

    The floor is what a user sets for the longest pause that the run has not shown yet.
    """
    draw = random.Random(seed)  # noqa: S311
    durations = [
        median * draw.lognormvariate(0, sigma) * (10 if step % every == every - 1 else 1)
        for step in range(2000)
    ]
    watch = new_watch(floor_s=max(FLOOR_S, 12 * 3 * median))
    assert judge(watch, heard(durations), ranks=2) is None


@settings(max_examples=40, deadline=None)
@given(seconds=st.floats(0.1, 20), count=st.integers(ENOUGH_STEPS + 2, 300))
def test_silence_is_found_within_the_limit_and_a_tick(seconds: float, count: int) -> None:
    """A rank that stops stepping is judged one tick after its limit at the latest."""
    watch = new_watch()
    trace = steady(seconds, count)
    assert judge(watch, trace) is None
    last = trace[-1][1]
    found = first_stall(watch, last, last + 1000)
    assert found is not None
    limit = max(5.0, 3 * seconds)
    assert found[1].step == count - 1
    assert found[1].limit_s == pytest.approx(limit)
    assert limit < found[0] - last <= limit + TICK + 1e-6


def test_short_steps_are_known_after_as_many_steps_not_messages() -> None:
    """A rank that tells ten times a second of thirty steps a second, and stops after two seconds.

    Else a hang in a run's first seconds would last for as long as a first step may.
    """
    trace = list(heard([1 / 30] * 60))
    assert len(trace) <= ENOUGH_STEPS
    watch = new_watch()
    assert judge(watch, trace) is None
    last = trace[-1][1]
    found = first_stall(watch, last, last + 700)
    assert found is not None
    assert found[1].limit_s == FLOOR_S


def test_fewer_steps_are_no_measure() -> None:
    """The first steps compile: until enough of them are known, only their own limit holds."""
    trace = list(heard([1 / 30] * 15))
    watch = new_watch()
    assert judge(watch, trace) is None
    last = trace[-1][1]
    assert first_stall(watch, last, last + FIRST_S) is None


def test_limit_grows_with_the_run_s_own_steps() -> None:
    """Steps of a minute are no hang by a floor of seconds."""
    watch = new_watch()
    assert judge(watch, steady(60)) is None
    found = first_stall(watch, 99 * 60, 100_000)
    assert found is not None
    assert found[1].limit_s == 180


def test_what_the_run_came_back_from_may_come_again() -> None:
    """One long evaluation in many hundred steps is remembered, and then may last twice as long."""
    trace = steady(0.5, 700)
    shifted = [(step, at + (4.9 if step > 300 else 0)) for step, at in trace]
    watch = new_watch()
    assert judge(watch, shifted) is None
    last = shifted[-1][1]
    found = first_stall(watch, last, last + 100)
    assert found is not None
    assert found[1].limit_s == pytest.approx(2 * 5.4)


def test_first_steps_are_given_the_first_limit() -> None:
    """Until the steps are known a rank may compile: `first` holds, then the learned limit."""
    watch = new_watch()
    watch.note_step_begin(0, 0, 0.0)
    assert watch.find_stalled_rank(599.0) is None
    watch = new_watch()
    watch.note_step_begin(0, 0, 0.0)
    found = first_stall(watch, 0.0, 700.0)
    assert found is not None
    assert found[1].limit_s == 600


def test_first_gap_teaches_nothing() -> None:
    """The first step compiles; minutes of that must not become the limit of all others."""
    trace = [(0, 0.0), *((step, 300 + step * 0.5) for step in range(1, 100))]
    watch = new_watch()
    assert judge(watch, trace) is None
    assert watch.learned_silence_limit_s() == 5


def test_rank_that_never_told_of_a_step_is_not_judged() -> None:
    """Code without run.steps() has no heartbeat to miss."""
    watch = new_watch()
    judge(watch, steady(0.5))
    watch.note_rank_end(0)
    watch.note_pause(1)
    watch.note_resume(1, 60.0)
    assert first_stall(watch, 50.0, 100_000.0) is None


def test_rank_that_will_step_is_judged_before_its_first_one() -> None:
    """Data, compilation and restoring have `first`, from the final event on; 0 is no limit."""
    watch = new_watch()
    watch.note_work_outside_steps(0, 0.0)
    found = first_stall(watch, 0.0, 700.0)
    assert found is not None
    assert (found[1].step, found[1].over, found[1].limit_s) == (None, False, 600)
    watch.note_work_outside_steps(0, 601.0)
    assert first_stall(watch, 601.0, 1200.0) is None
    off = new_watch(first_s=0.0)
    off.note_work_outside_steps(0, 0.0)
    assert first_stall(off, 0.0, 100_000.0) is None


def test_rank_is_judged_after_its_last_step() -> None:
    """An export or upload that hangs is found by `first`, not by the limit of steps."""
    watch = new_watch()
    judge(watch, steady(0.5))
    watch.note_work_outside_steps(0, 50.0, over=True)
    found = first_stall(watch, 50.0, 1000.0)
    assert found is not None
    assert (found[1].step, found[1].over) == (99, True)
    assert 600 < found[0] - 50 <= 601 + TICK


def test_restart_knows_the_steps_of_earlier_rounds() -> None:
    """A hang in the first steps of a new round costs no more than later ones; compiling may."""
    before = new_watch()
    judge(before, [(0, 0.0), *((step, 30 + step * 0.5) for step in range(1, 100))])
    again = new_watch()
    again.take_over_learned_step_gaps(before)
    again.note_step_begin(0, 50, 0.0)
    assert first_stall(again, 0.0, 60.0) is None, "the first step took 30.5 s before"
    again.note_step_begin(0, 51, 60.0)
    again.note_step_begin(0, 52, 60.5)
    found = first_stall(again, 60.5, 1000.0)
    assert found is not None
    assert found[1].limit_s == 5


def test_usual_step_is_neither_compilation_nor_an_evaluation() -> None:
    """When a rank leaves ahead of its time limit follows from its steps alone."""
    watch = new_watch()
    trace = [(0, 0.0), *((step, 300 + step * 0.5) for step in range(1, 100))]
    judge(watch, trace)
    watch.note_pause(0)
    watch.note_resume(0, 1300.0)
    watch.note_step_begin(0, 100, 1300.5)
    assert watch.usual_step_gap_s() == pytest.approx(0.5)


def test_ended_rank_is_not_judged_by_its_late_words() -> None:
    """What a rank said may be read after its end was seen."""
    watch = new_watch()
    judge(watch, steady(0.5))
    watch.note_rank_end(0)
    watch.note_step_begin(0, 100, 50.0)
    assert first_stall(watch, 50.0, 5000.0) is None


def test_paused_rank_is_not_judged_and_teaches_nothing() -> None:
    """An evaluation of an hour that was told of is no hang and does not change the limit."""
    watch = new_watch()
    judge(watch, steady(0.5))
    watch.note_pause(0)
    assert first_stall(watch, 50.0, 3600.0) is None
    watch.note_resume(0, 3600.0)
    assert watch.find_stalled_rank(3604.0) is None
    watch.note_step_begin(0, 100, 3604.5)
    assert watch.learned_silence_limit_s() == 5
    found = first_stall(watch, 3605.0, 4000.0)
    assert found is not None
    assert found[0] < 3611


def test_pause_goes_on_through_steps() -> None:
    """A rank that asked not to be judged is not, though it may step."""
    watch = new_watch()
    watch.note_pause(0)
    judge(watch, steady(0.5))
    assert first_stall(watch, 50.0, 5000.0) is None
    assert watch.learned_silence_limit_s() == 5


def test_silent_rank_is_named_among_others() -> None:
    """One rank's silence is judged though all others step on."""
    watch = new_watch()
    judge(watch, steady(0.5), ranks=4)
    stalls = []
    for step in range(100, 120):
        for rank in (0, 1, 3):
            watch.note_step_begin(rank, step, step * 0.5)
        stalls.append(watch.find_stalled_rank(step * 0.5))
    seen = [stall for stall in stalls if stall is not None]
    assert {(stall.rank, stall.step) for stall in seen} == {(2, 99)}
    assert stalls[0] is None


def test_time_in_which_the_judge_was_stopped_does_not_count() -> None:
    """A suspended machine or a stopped agent hears nothing, and must not call that a hang."""
    watch = new_watch()
    judge(watch, steady(0.5))
    assert watch.find_stalled_rank(50.0) is None
    assert watch.find_stalled_rank(3650.0) is None
    watch.note_step_begin(0, 100, 3650.2)
    assert watch.find_stalled_rank(3651.0) is None
    assert watch.learned_silence_limit_s() == 5
    found = first_stall(watch, 3652.0, 3700.0)
    assert found is not None


def test_slow_judge_still_judges() -> None:
    """Where calls come further apart than the floor, hangs are found all the same."""
    watch = new_watch()
    for step, at in steady(0.5):
        watch.note_step_begin(0, step, at)
    stalls = [watch.find_stalled_rank(50.0 + 60 * call) for call in range(5)]
    assert stalls[-1] is not None


def test_memory_is_bounded() -> None:
    """A run of a million steps is judged by its last thousand gaps."""
    watch = new_watch()
    for step, at in steady(10.0, 50) + [(step, 500 + step * 0.2) for step in range(5000)]:
        watch.note_step_begin(0, step, at)
    assert len(watch._gaps) == 1000  # noqa: SLF001
    assert watch.learned_silence_limit_s() == pytest.approx(20)
