"""Promises of hpckit.model.history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpckit.model import events
from hpckit.model.history import LaunchHistory, read_history
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
    return read_history([job], [events.Submitted(at=AT, job_index=0, job="7"), *history])


def added(job: JobSpec) -> events.JobAdded:
    """Return that a job was added, of runs that had one attempt each."""
    return events.JobAdded(at=AT, job=job, after=(1,) * len(job.runs))


def test_history_gives_resumed_runs_to_their_new_job(job: JobSpec, more: JobSpec) -> None:
    """From the resume on the old Slurm job is none of theirs; then the new one is."""
    history = told(job, added(more))
    assert history.slurm_jobs == {0: "7_0"}
    assert [history.attempts_before(run) for run in range(3)] == [0, 1, 1]
    history.take(events.Submitted(at=AT, job_index=1, job="9"))
    assert history.slurm_jobs == {0: "7_0", 1: "9_0", 2: "9_1"}
    assert [history.job_of(run).index for run in range(3)] == [0, 1, 1]


def test_history_forgets_a_cancellation_before_a_resume_only(job: JobSpec, more: JobSpec) -> None:
    """What was cancelled before is wanted again; what is cancelled after is not."""
    wish = events.CancelRequested(at=AT, runs=(0, 1))
    assert told(job, wish, added(more)).cancelled == {0}
    assert told(job, added(more), wish).cancelled == {0, 1}


def test_history_takes_back_a_resume_that_was_refused(job: JobSpec, more: JobSpec) -> None:
    """Refused, the runs are what they were: their earlier attempts are their latest."""
    refused = events.SubmitRefused(at=AT, job_index=1, message="no")
    history = told(job, added(more), refused)
    assert [history.attempts_before(run) for run in range(3)] == [0, 0, 0]
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
    before, after = read_history([job], [event]), read_history([job, more], [event])
    assert before == after


def test_history_passes_over_jobs_nobody_knows(job: JobSpec, more: JobSpec) -> None:
    """Events about jobs of a newer record change nothing, and raise nothing."""
    stray = added(replace(more, index=5))
    history = told(job, stray, events.SubmitRefused(at=AT, job_index=5, message="no"))
    assert history == told(job)
