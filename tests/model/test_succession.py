"""Promises of hpckit.views.launch_view."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.states import RunState, parse_slurm_state
from hpckit.views.launch_view import switch_to_successor_job

AT = datetime(2026, 1, 1, tzinfo=UTC)


def seen(job: str, slurm: str) -> Observation:
    """Return what Slurm says of a job."""
    return Observation(job=job, state=parse_slurm_state(slurm), seen_at=AT)


def view(state: RunState, slurm: str) -> RunView:
    """Return a run in the first attempt of job 7."""
    record = RunRecord(
        id="demo.0",
        index=0,
        overrides=(),
        folder="/f",
        job="7",
        state=state,
        attempt=1,
        started_at=AT,
        exit_code=None if state is RunState.running else 1,
    )
    return RunView(record=record, observation=seen("7", slurm), asked=True)


@pytest.mark.parametrize(
    ("present", "successor"),
    [
        (view(RunState.running, "RUNNING"), "PENDING"),
        (view(RunState.interrupted, "COMPLETING"), "PENDING"),
        (view(RunState.completed, "COMPLETED"), "PENDING"),
        (view(RunState.failed, "FAILED"), "CANCELLED"),
        (view(RunState.failed, "FAILED"), None),
    ],
    ids=["it lives", "it is being cleared away", "completed", "dropped", "forgotten"],
)
def test_run_stays_with_its_present_job(present: RunView, successor: str | None) -> None:
    """While that lives, when it has completed, and when the successor is no more."""
    assert switch_to_successor_job(present, None if successor is None else seen("9", successor)) is present


@pytest.mark.parametrize(("slurm", "state"), [("PENDING", "pending"), ("RUNNING", "running")])
def test_run_is_its_successor_s_when_the_present_job_is_over(slurm: str, state: str) -> None:
    """The run waits, or starts, in its next job; the old end is not its end."""
    found: Any = switch_to_successor_job(view(RunState.running, "NODE_FAIL"), seen("9", slurm))
    assert (found.state, found.record.job, found.record.attempt) == (state, "9", 1)
    assert not found.can_no_longer_change
    assert found.exit_code is None
