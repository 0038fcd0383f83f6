"""Promises of hpckit.planning.eta."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.states import RunState
from hpckit.planning.eta import RunDuration, estimate_completion

MINUTE = timedelta(minutes=1)


def runs(state: RunState, *minutes: float | None) -> list[RunDuration]:
    """Return runs in this state that have lasted so long."""
    return [
        RunDuration(state=state, elapsed=None if minute is None else minute * MINUTE) for minute in minutes
    ]


def test_estimate_shares_the_rest_among_those_that_run() -> None:
    """Four more of ten minutes, and two at half time, on two places: 25 minutes."""
    sweep = [
        *runs(RunState.completed, 10, 10),
        *runs(RunState.running, 5, 5),
        *runs(RunState.pending, None, None, None, None),
    ]
    found = estimate_completion(sweep)
    assert found.remaining == 25 * MINUTE
    assert found.share == pytest.approx(3 / 8)


def test_estimate_takes_a_run_that_lasts_for_one_of_the_long_ones() -> None:
    """A run that has outlasted the short ones goes on as long as the long ones did."""
    sweep = [*runs(RunState.completed, 1, 1, 9, 11), *runs(RunState.running, 6)]
    assert estimate_completion(sweep).remaining == 4 * MINUTE


def test_estimate_counts_steps_where_runs_tell_them() -> None:
    """A run alone, at step 653 of 700: nearly done, and its pace says for how long."""
    alone = RunDuration(state=RunState.running, elapsed=MINUTE, done=653 / 700, left=MINUTE / 14)
    found = estimate_completion([alone])
    assert found.share == pytest.approx(653 / 700)
    assert found.remaining == MINUTE / 14


def test_estimate_takes_runs_that_wait_for_as_long_as_those_that_tell_their_pace() -> None:
    """Two at half time beside two that wait: those two after them, on their two places."""
    half = RunDuration(state=RunState.running, elapsed=5 * MINUTE, done=0.5, left=5 * MINUTE)
    requeued = RunDuration(state=RunState.pending, elapsed=None, done=0.2)
    found = estimate_completion([half, half, requeued, *runs(RunState.pending, None)])
    assert found.remaining == 15 * MINUTE
    assert found.share == pytest.approx(1.2 / 4)
    assert estimate_completion([half, *runs(RunState.running, 3)]).remaining is None


@pytest.mark.parametrize(
    "sweep",
    [
        [*runs(RunState.running, 5), *runs(RunState.pending, None)],
        [*runs(RunState.completed, 5), *runs(RunState.pending, None)],
        [*runs(RunState.failed, 5), *runs(RunState.running, 5)],
    ],
)
def test_estimate_is_silent_where_nothing_tells(sweep: list[RunDuration]) -> None:
    """Before a run has completed, and while none runs, the end is not known."""
    assert estimate_completion(sweep).remaining is None


def test_estimate_of_what_is_over_is_nothing() -> None:
    """When all have ended, however, there is nothing to come."""
    found = estimate_completion([*runs(RunState.completed, 5), *runs(RunState.failed, 1)])
    assert (found.share, found.remaining) == (1.0, timedelta(0))
    assert estimate_completion([]).share == 1.0


LASTING = st.builds(
    RunDuration,
    state=st.sampled_from(RunState),
    elapsed=st.none() | st.timedeltas(timedelta(0), timedelta(days=30)),
)


@given(sweep=st.lists(LASTING))
def test_estimate_stays_within_bounds(sweep: list[RunDuration]) -> None:
    """Whatever the runs: a share from 0 to 1, a rest that is not negative, 1 only at the end."""
    found = estimate_completion(sweep)
    assert 0 <= found.share <= 1
    assert found.remaining is None or found.remaining >= timedelta(0)
    if all(one.state not in (RunState.pending, RunState.running) for one in sweep):
        assert (found.share, found.remaining) == (1.0, timedelta(0))
