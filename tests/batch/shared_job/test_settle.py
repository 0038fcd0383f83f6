"""Promises of hpckit.batch.shared_job.settle: what becomes of attempts that have ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpckit.batch.shared_job.settle import SharedJobEnds
from hpckit.model import events
from hpckit.model.launch import Recovery
from hpckit.model.plan import SharedJobSpec
from hpckit.record.attempts import read_events_by_attempt
from hpckit.record.claims import ClaimHolder, claim_run, list_claimed_runs
from hpckit.record.launches import Launch, read_run_records

HOLDER = ClaimHolder(job="7", restart_count=0, host="elsewhere", pid=1, started="1")


@pytest.fixture
def ends(desk: Any) -> SharedJobEnds:
    """Return who sees to the runs of a job in which a lost supervisor is forgiven once."""
    recovery = Recovery(requeue=True, restarts={"launcher_lost": 1})
    launch: Launch = desk.freeze(sweep=(("a=1",), ("a=2",)), recovery=recovery)
    (job,) = launch.jobs
    shared_job = SharedJobSpec(runs_per_job=2, runs_per_gpu=1, slots=2, jobs=1, each=job.resources)
    shared = replace(job, requeue=True, shared_job=shared_job)
    claims = launch.paths.packed_job_claims_folder(0)
    assert all(claim_run(claims, run, HOLDER) for run in job.runs)
    return SharedJobEnds(launch=launch, job=shared, claims=claims)


def states(ends: SharedJobEnds) -> list[str]:
    """Return how the runs stand by our record."""
    return [record.state.value for record in read_run_records(ends.launch)]


def test_earlier_start_s_runs_are_given_back_unless_they_are_over(ends: SharedJobEnds, writer: Any) -> None:
    """A job that died with its node leaves one run completed and one without a final event."""
    writer(launch=ends.launch, index=0).start(job="7")
    writer(launch=ends.launch, index=0).complete()
    writer(launch=ends.launch, index=1).start(job="7")
    for run in (0, 1):
        ends.finish_or_release_claimed_run(run)
    assert list_claimed_runs(ends.claims) == {0}
    assert states(ends) == ["completed", "interrupted"]
    (attempt,) = read_events_by_attempt(ends.launch.paths.run(1))
    (end,) = [event for event in attempt[1] if isinstance(event, events.AttemptEnded)]
    assert end.failure is not None
    assert end.failure.cause == "launcher_lost"


def test_run_that_was_taken_and_never_begun_is_given_back(ends: SharedJobEnds) -> None:
    """The node died in between; nothing is recorded of it."""
    ends.finish_or_release_claimed_run(1)
    assert list_claimed_runs(ends.claims) == {0}
    assert states(ends) == ["pending", "pending"]


def test_supervisor_that_is_lost_beyond_the_budget_ends_its_run(ends: SharedJobEnds, writer: Any) -> None:
    """The first time it is forgiven, the second time the run has failed, and nobody takes it."""
    ends_of_run = [(frozenset({0}), "interrupted"), (frozenset({0, 1}), "failed")]
    for attempt, (left, state) in enumerate(ends_of_run, 1):
        claim_run(ends.claims, 1, HOLDER)
        writer(launch=ends.launch, index=1, attempt=attempt).start(job="7")
        fine = ends.finish_or_release_exited_run(1, before=attempt - 1, code=-9, stopped=False)
        assert (fine, list_claimed_runs(ends.claims), states(ends)[1]) == (attempt == 1, left, state)


def test_run_that_nobody_began_is_no_success(ends: SharedJobEnds) -> None:
    """Its supervisor could not even begin: it is not tried for ever, unless the job is to end."""
    assert not ends.finish_or_release_exited_run(0, before=0, code=1, stopped=False)
    assert ends.finish_or_release_exited_run(1, before=0, code=-15, stopped=True)
    assert list_claimed_runs(ends.claims) == {0}
