"""Promises of hpckit.report.run_filter."""

from __future__ import annotations

import pytest

from hpckit.errors import UsageError
from hpckit.model.failure import Cause, Failure
from hpckit.model.run import RunRecord, RunView
from hpckit.model.states import RunState
from hpckit.report.run_filter import (
    RunFilter,
    format_state_and_cause_counts,
    parse_failure_causes,
    parse_run_indices,
)
from hpckit.report.selection import parse_run_filter


def view(index: int, state: RunState, cause: Cause | None = None, lr: str = "0.1") -> RunView:
    """Return a run that ended so, without a scheduler."""
    failure = None if cause is None else Failure(cause=cause, message="")
    record = RunRecord(
        id=f"demo.{index}", index=index, overrides=(f"lr={lr}",), folder="/f", state=state, failure=failure
    )
    return RunView(record=record)


RUNS = (
    view(0, RunState.completed),
    view(1, RunState.failed, Cause.nan),
    view(2, RunState.failed, Cause.cuda_oom),
    view(3, RunState.failed, Cause.nan, lr="0.2"),
    view(4, RunState.interrupted, Cause.preempted),
    view(5, RunState.cancelled),
)


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (RunFilter(), [0, 1, 2, 3, 4, 5]),
        (RunFilter(causes=parse_failure_causes(["nan"])), [1, 3]),
        (RunFilter(causes=parse_failure_causes(["oom,preempted"])), [2, 4]),
        (RunFilter(causes=parse_failure_causes(["nan", "oom"])), [1, 2, 3]),
        (RunFilter(indices=parse_run_indices("2-4", 6, "demo")), [2, 3, 4]),
        (RunFilter(basic=parse_run_filter(["failed"])), [1, 2, 3]),
        (
            RunFilter(
                basic=parse_run_filter(["failed"], ["lr=0.2"]),
                causes=parse_failure_causes(["nan"]),
                indices=parse_run_indices("1-5", 6, "demo"),
            ),
            [3],
        ),
    ],
)
def test_several_filters_narrow(wanted: RunFilter, taken: list[int]) -> None:
    """A run has to pass all of them; of one kind any is enough."""
    assert [run.record.index for run in wanted.select_runs(RUNS, "demo")] == taken


def test_filter_that_takes_nothing_says_what_there_is() -> None:
    """States and causes with their numbers, so that the next try is right."""
    wanted = RunFilter(causes=parse_failure_causes(["hang"]), words="--cause hang")
    with pytest.raises(UsageError) as caught:
        wanted.select_runs(RUNS, "demo")
    assert caught.value.message == (
        "no run of demo matches --cause hang; it has 1 completed, 3 failed, 1 cancelled, "
        "1 interrupted (causes: 2 nan, 1 cuda_oom, 1 preempted)"
    )
    assert "(causes" not in format_state_and_cause_counts(RUNS[:1])


@pytest.mark.parametrize(
    ("word", "hint"), [("nam", "did you mean nan?"), ("", "--cause oom,hang"), ("x,hang", "oom")]
)
def test_cause_that_is_none_is_refused(word: str, hint: str) -> None:
    """The error lists the causes there are."""
    with pytest.raises(UsageError, match="causes are exception, exit_code") as caught:
        parse_failure_causes([word])
    assert hint in caught.value.hint


@pytest.mark.parametrize("cause", sorted(Cause))
def test_every_cause_is_named_by_itself(cause: Cause) -> None:
    """Its whole name means this one alone."""
    assert parse_failure_causes([cause.value]) == {cause}


def test_runs_beyond_the_last_are_refused() -> None:
    """The error says which there are."""
    with pytest.raises(UsageError, match=r"there is no 6; demo has the runs 0 to 5"):
        parse_run_indices("2-6", 6, "demo")


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (RunFilter(), False),
        (RunFilter(basic=parse_run_filter(failed=True)), False),
        (RunFilter(basic=parse_run_filter(["cancelled"])), True),
        (RunFilter(indices=frozenset({1})), True),
    ],
)
def test_cancelled_runs_are_asked_for_by_name(*, wanted: RunFilter, named: bool) -> None:
    """By their state or by their indices, not by a filter that they happen to pass."""
    assert wanted.includes_cancelled is named
