"""Promises of hpckit.planning.recovery.resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.plan import JobSpec
from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.states import Judgement, RunState, Standing, parse_slurm_state
from hpckit.planning.recovery.resume import (
    Known,
    build_resumed_jobs,
    choose_runs_to_resume,
    classify_run_for_resume,
)
from hpckit.report.pending import format_resume_decision

AT = datetime(2026, 1, 1, tzinfo=UTC)


def view(index: int = 0, *, slurm: str | None = None, **fields: Any) -> RunView:
    """Return the view of a run whose job Slurm calls so; null where Slurm does not know it."""
    fields.setdefault("job", f"7_{index}")
    record = RunRecord(id=f"demo.{index}", index=index, overrides=(), folder="/f", **fields)
    seen = None
    if slurm is not None:
        seen = Observation(job=f"7_{index}", state=parse_slurm_state(slurm), seen_at=AT)
    return RunView(record=record, observation=seen, asked=record.job is not None)


def begun(state: RunState, **fields: Any) -> dict[str, Any]:
    """Return the fields of a record whose attempt came to this."""
    return {"state": state, "attempt": 1, "started_at": AT, **fields}


@pytest.mark.parametrize(
    ("seen", "resumed"),
    [
        (view(slurm="COMPLETED", **begun(RunState.completed)), False),
        (view(slurm="FAILED", **begun(RunState.failed)), True),
        (view(slurm="TIMEOUT", **begun(RunState.running)), True),
        (view(slurm="NODE_FAIL", **begun(RunState.interrupted)), True),
        (view(slurm="RUNNING", **begun(RunState.interrupted)), False),
        (view(slurm="PENDING"), False),
        (view(slurm="RUNNING", **begun(RunState.running)), False),
        (view(**begun(RunState.running)), True),
        (view(slurm="COMPLETED"), True),
        (view(slurm="CANCELLED"), False),
    ],
    ids=[
        "completed",
        "failed",
        "time limit",
        "node lost",
        "may be requeued",
        "waits",
        "runs",
        "forgotten by Slurm",
        "Slurm is content but no supervisor spoke",
        "cancelled",
    ],
)
def test_choice_takes_what_is_over_without_having_completed(seen: RunView, *, resumed: bool) -> None:
    """Failed, interrupted and lost runs are resumed once nobody else will start them again."""
    choice = choose_runs_to_resume([seen], Known(), cancelled=False)
    assert choice.resumed == ((0,) if resumed else ())
    assert len(choice.skipped) == (0 if resumed else 1)


def test_choice_takes_cancelled_runs_where_asked_to() -> None:
    """Cancelled counts only when it is said."""
    seen = view(slurm="CANCELLED")
    assert choose_runs_to_resume([seen], Known(), cancelled=True).resumed == (0,)
    assert choose_runs_to_resume([seen], Known(), cancelled=False).open == ()


def test_choice_takes_what_nobody_was_given_but_not_what_somebody_may_have() -> None:
    """A run that was never submitted is missing; one of unknown fate is left to doctor."""
    seen = [view(index, job=None) for index in range(2)]
    choice = choose_runs_to_resume(seen, Known(unsubmitted={0, 1}, doubtful={1}), cancelled=False)
    assert choice.resumed == (0,)
    assert choice.skipped[0].why.standing is Standing.unconfirmed
    assert choice.open == ()


def test_choice_names_what_still_goes_on() -> None:
    """Runs that wait, run or may come back are open; ended ones are not."""
    seen = [
        view(0, slurm="PENDING"),
        view(1, slurm="RUNNING", **begun(RunState.running)),
        view(2, slurm="PENDING", **begun(RunState.interrupted)),
        view(3, slurm="COMPLETED", **begun(RunState.completed)),
    ]
    assert choose_runs_to_resume(seen, Known(), cancelled=False).open == (0, 1, 2)


@pytest.fixture
def job(plan_of_one_job: Callable[..., Any]) -> Callable[..., JobSpec]:
    """Return a maker of jobs with these resources."""

    def make(**resources: Any) -> JobSpec:
        spec: JobSpec = plan_of_one_job(Path("/f"), runs=8, **resources).jobs[0]
        return spec

    return make


def test_jobs_are_compact_and_keep_their_resources(job: Callable[..., JobSpec]) -> None:
    """Runs that ask the same share a job without gaps; indices and names go on from the last."""
    small, large = job(mem_gb=1), replace(job(mem_gb=2), index=1)
    jobs = build_resumed_jobs(
        "demo", (1, 4, 6), job_of=lambda run: large if run == 4 else small, begun={1, 4, 6}, first_index=2
    )
    assert [(one.index, one.name, one.runs) for one in jobs] == [(2, "demo-2", (1, 6)), (3, "demo-3", (4,))]
    assert [one.resources for one in jobs] == [small.resources, large.resources]


@pytest.mark.parametrize(
    ("dependency", "left"),
    [("afterok:12", None), ("singleton", "singleton"), ("afterok:12,singleton", "singleton")],
)
def test_jobs_drop_a_dependency_that_has_been_met(
    job: Callable[..., JobSpec], dependency: str, left: str | None
) -> None:
    """What a run depended on came about before its first attempt; before that it still counts."""
    spec = job(dependency=dependency)
    jobs = build_resumed_jobs("demo", (0, 1), job_of=lambda _: spec, begun={0}, first_index=1)
    found = {run: one.resources.dependency for one in jobs for run in one.runs}
    assert found == {0: left, 1: dependency}


def test_choose_leaves_alone_what_has_used_up_its_budgets() -> None:
    """A run that could be resumed is not, where its budgets are spent, and the reason is theirs."""
    failed = view(slurm="FAILED", **begun(RunState.failed))
    choice = choose_runs_to_resume([failed], Known(spent={0: "enough is enough"}), cancelled=False)
    assert choice.resumed == ()
    spent = Judgement(standing=Standing.spent, detail="enough is enough")
    assert [one.why for one in choice.skipped] == [spent]
    assert choice.open == ()


def test_choose_still_counts_a_spent_run_as_going_on_while_slurm_has_it() -> None:
    """Budgets are about runs that have ended; one that Slurm may start again is open."""
    unsettled = view(slurm="RUNNING", **begun(RunState.interrupted))
    assert choose_runs_to_resume([unsettled], Known(spent={0: "enough"}), cancelled=False).open == (0,)


STANDINGS = {
    Standing.resumable: (view(slurm="FAILED", **begun(RunState.failed)), Known()),
    Standing.completed: (view(slurm="COMPLETED", **begun(RunState.completed)), Known()),
    Standing.waiting: (view(slurm="PENDING"), Known()),
    Standing.running: (view(slurm="RUNNING", **begun(RunState.running)), Known()),
    Standing.unsettled: (view(slurm="RUNNING", **begun(RunState.interrupted)), Known()),
    Standing.unconfirmed: (view(job=None), Known(unsubmitted={0}, doubtful={0})),
    Standing.cancelled: (view(slurm="CANCELLED"), Known()),
    Standing.spent: (view(slurm="FAILED", **begun(RunState.failed)), Known(spent={0: "enough"})),
}
OF_STAGES = {Standing.blocked, Standing.detached}
"""What a run is only by what it follows: tests/planning/test_stages.py."""


@pytest.mark.parametrize("standing", sorted(set(Standing) - OF_STAGES))
def test_every_standing_is_that_of_some_run(standing: Standing) -> None:
    """A run by itself stands in one way, and is resumed, open or left alone accordingly."""
    seen, known = STANDINGS[standing]
    assert classify_run_for_resume(seen, known, cancelled=False) is standing
    choice = choose_runs_to_resume([seen], known, cancelled=False)
    assert choice.resumed == ((0,) if standing is Standing.resumable else ())
    assert choice.open == ((0,) if standing.may_progress_by_itself else ())


@given(
    state=st.sampled_from(RunState),
    slurm=st.sampled_from([None, "PENDING", "RUNNING", "COMPLETED", "CANCELLED", "NODE_FAIL"]),
    facts=st.tuples(*[st.booleans()] * 4),
)
def test_standing_is_total(state: RunState, slurm: str | None, facts: tuple[bool, ...]) -> None:
    """Whatever is recorded and whatever Slurm says, a run stands in exactly one way."""
    unsubmitted, doubtful, spent, cancelled = facts
    known = Known(
        unsubmitted={0} if unsubmitted else (),
        doubtful={0} if doubtful else (),
        spent={0: "enough"} if spent else {},
    )
    seen = view(slurm=slurm, **begun(state))
    standing = classify_run_for_resume(seen, known, cancelled=cancelled)
    assert standing not in OF_STAGES
    assert (standing is Standing.completed) == (seen.state is RunState.completed)
    choice = choose_runs_to_resume([seen], known, cancelled=cancelled)
    assert len(choice.resumed) + len(choice.skipped) == 1


def test_every_standing_has_words_of_its_own() -> None:
    """The reason that people read: one text for each member, with what it refers to."""
    texts = [
        format_resume_decision(Judgement(standing=one, detail="it {follows} odd", follows=3))
        for one in Standing
    ]
    assert len(set(texts)) == len(Standing)
    assert all(texts)
    assert "it follows run 3: resume that one, or the whole launch" in texts
    assert "it follows another run: it {follows} odd" in texts
