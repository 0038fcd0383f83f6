"""Promises of hpckit.model.history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpckit.model import events
from hpckit.model.history import LaunchHistory, build_launch_history
from hpckit.model.plan import JobSpec

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def job(plan_of_one_job: Callable[..., Any]) -> JobSpec:
    """Return a job of three runs."""
    spec: JobSpec = plan_of_one_job(Path("/f"), runs=3).jobs[0]
    return spec


@pytest.fixture
def more(job: JobSpec) -> JobSpec:
    """Return what a resume of runs 1 and 2 adds."""
    return replace(job, index=1, name="more", runs=(1, 2))


def told(job: JobSpec, *history: events.Event) -> LaunchHistory:
    """Return the history after job 0 was submitted as 7, and this."""
    return build_launch_history([job], [events.Submitted(at=AT, job_index=0, job="7"), *history])


def added(job: JobSpec) -> events.JobAdded:
    """Return that a job was added, of runs that had one attempt each."""
    return events.JobAdded(at=AT, job=job, after=(1,) * len(job.runs))


def test_history_gives_resumed_runs_to_their_new_job(job: JobSpec, more: JobSpec) -> None:
    """From the resume on the old Slurm job is none of theirs; then the new one is."""
    history = told(job, added(more))
    assert history.slurm_jobs == {0: "7_0"}
    assert [history.count_attempts_before_job(run) for run in range(3)] == [0, 1, 1]
    history.apply_event(events.Submitted(at=AT, job_index=1, job="9"))
    assert history.slurm_jobs == {0: "7_0", 1: "9_0", 2: "9_1"}
    assert [history.find_job_of_run(run).index for run in range(3)] == [0, 1, 1]


def test_history_forgets_a_cancellation_before_a_resume_only(job: JobSpec, more: JobSpec) -> None:
    """What was cancelled before is wanted again; what is cancelled after is not."""
    wish = events.CancelRequested(at=AT, runs=(0, 1))
    assert told(job, wish, added(more)).cancelled == {0}
    assert told(job, added(more), wish).cancelled == {0, 1}


def test_history_takes_back_a_resume_that_was_refused(job: JobSpec, more: JobSpec) -> None:
    """Refused, the runs are what they were: their earlier attempts are their latest."""
    refused = events.SubmitRefused(at=AT, job_index=1, message="no")
    history = told(job, added(more), refused)
    assert [history.count_attempts_before_job(run) for run in range(3)] == [0, 0, 0]
    assert history.refused == {1: "no", 2: "no"}


def test_history_knows_whose_turn_a_local_run_is(job: JobSpec, more: JobSpec) -> None:
    """A further executor takes the runs it was started for; the others stay where they are."""
    first = events.LocalStarted(at=AT, host="h", pid=1, started="1")
    second = events.LocalStarted(at=AT, host="h", pid=2, started="2", jobs=(1,))
    history = told(job, first, added(more), second)
    assert {run: one.pid for run, one in history.executors.items()} == {0: 1, 1: 2, 2: 2}


def test_history_reads_the_same_with_added_jobs_known_before(job: JobSpec, more: JobSpec) -> None:
    """A launch read before the resume and one read after it understand the events alike."""
    event = added(more)
    before, after = build_launch_history([job], [event]), build_launch_history([job, more], [event])
    assert before == after


def test_history_passes_over_jobs_nobody_knows(job: JobSpec, more: JobSpec) -> None:
    """Events about jobs of a newer record change nothing, and raise nothing."""
    stray = added(replace(more, index=5))
    history = told(job, stray, events.SubmitRefused(at=AT, job_index=5, message="no"))
    assert history == told(job)


def successor(job: JobSpec, index: int, after: int) -> events.JobAdded:
    """Return that run 1 was given a job behind its present one, in its attempt `after`."""
    added_job = replace(job, index=index, name=f"s{index}", runs=(1,))
    return events.JobAdded(at=AT, job=added_job, after=(after,), successor=True)


def test_history_leaves_a_run_with_its_job_while_a_successor_waits(job: JobSpec) -> None:
    """The successor is known, and changes nothing of the run: not its job, not a cancellation."""
    wish = events.CancelRequested(at=AT, runs=(1,))
    queued = events.Submitted(at=AT, job_index=1, job="9")
    history = told(job, wish, successor(job, 1, 1), queued)
    assert (history.slurm_jobs[1], history.find_job_of_run(1).index) == ("7_1", 0)
    assert history.find_successor_job(1) == "9"
    assert history.cancelled == {1}
    assert history.count_attempts_before_job(1) == 0


def test_history_makes_a_successor_the_run_s_job_when_it_has_one_itself(job: JobSpec) -> None:
    """The second successor is queued by an attempt of the first."""
    queued = events.Submitted(at=AT, job_index=1, job="9")
    history = told(job, successor(job, 1, 1), queued, successor(job, 2, 2))
    assert (history.slurm_jobs[1], history.find_job_of_run(1).index) == ("9", 1)
    assert history.count_attempts_before_job(1) == 1
    assert history.find_successor_job(1) is None


def test_history_forgets_a_successor_that_was_dropped_or_overtaken(job: JobSpec, more: JobSpec) -> None:
    """Refused or dropped it was never the run's; a resume takes its place."""
    dropped = events.SubmitRefused(at=AT, job_index=1, message="dropped")
    history = told(job, successor(job, 1, 1), dropped)
    assert (history.successors, history.refused) == ({}, {})
    assert history.slurm_jobs[1] == "7_1"
    resumed = told(job, successor(job, 1, 1), added(replace(more, index=2)))
    assert resumed.successors == {}


def test_history_takes_a_job_without_runs_for_the_auto_resume_job(job: JobSpec) -> None:
    """The latest one counts, and it is nobody's job."""
    auto_resume_jobs = [replace(job, index=index, name="j", runs=()) for index in (1, 2)]
    first, second = (events.JobAdded(at=AT, job=one, after=()) for one in auto_resume_jobs)
    queued = events.Submitted(at=AT, job_index=1, job="9")
    assert told(job, first).auto_resume_job is None
    assert told(job, first, queued).auto_resume_job == "9"
    history = told(job, first, queued, second)
    assert (history.auto_resume, history.auto_resume_job) == (2, None)
    assert history.slurm_jobs == {0: "7_0", 1: "7_1", 2: "7_2"}


def test_history_counts_jobs_that_never_began(job: JobSpec, more: JobSpec) -> None:
    """Jobs in a row in which no attempt began; one that began, or a resume by hand, starts anew."""

    def given(index: int, after: int, *, fresh: bool = False) -> tuple[events.Event, ...]:
        again = replace(more, index=index, runs=(1,))
        return (
            events.JobAdded(at=AT, job=again, after=(after,), fresh=fresh),
            events.Submitted(at=AT, job_index=index, job=str(index)),
        )

    idle = (*given(1, 0), *given(2, 0))
    assert told(job, *idle).idle[1] == 2
    assert told(job, *idle, *given(3, 1)).idle[1] == 0
    by_hand = told(job, *idle, *given(3, 0, fresh=True))
    assert (by_hand.idle[1], by_hand.fresh) == (0, {1: 0})
    assert told(job, *given(1, 2, fresh=True)).fresh == {1: 2}
