"""Promises of hpckit.model.pool: a run of a shared job is told by what there is of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from hpckit.model.pool import derive_view_in_shared_job
from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.states import RunState, parse_slurm_state

AT = datetime(2026, 1, 1, tzinfo=UTC)
POOL = ("7_0", "7_1")
BEGUN: dict[str, Any] = {"attempt": 1, "started_at": AT, "job": "7_0"}


def found(slurm: tuple[str | None, str | None], restarts: int = 0, **record: Any) -> RunView:
    """Return a run in the pool while Slurm says so of its two jobs."""
    fields = {"job": "7", **record}
    known = RunRecord(id="demo.0", index=0, overrides=(), folder="/f", **fields)
    observations = {
        job: Observation(job=job, state=parse_slurm_state(said), seen_at=AT, restarts=restarts)
        for job, said in zip(POOL, slurm, strict=True)
        if said is not None
    }
    asked = any(slurm)
    present = RunView(record=known, observation=observations.get(known.job or ""), asked=asked)
    return derive_view_in_shared_job(present, POOL, observations, asked=asked)


@pytest.mark.parametrize("slurm", [("RUNNING", "PENDING"), ("COMPLETED", "RUNNING")])
def test_run_waits_while_a_job_lives(slurm: tuple[str, str]) -> None:
    """Whether it was never begun, or was interrupted: a slot may take it."""
    fresh = found(slurm)
    interrupted = found(slurm, state=RunState.interrupted, exit_code=143, **BEGUN)
    assert [one.state for one in (fresh, interrupted)] == [RunState.pending] * 2
    assert not fresh.can_no_longer_change
    assert not interrupted.can_no_longer_change
    assert (interrupted.record.attempt, interrupted.exit_code) == (1, None)


def test_run_that_is_cancelled_while_it_waits_is_over() -> None:
    """No slot takes it any more, whatever its jobs do."""
    view = found(("RUNNING", "RUNNING"), cancel_requested=True)
    assert (view.state, view.can_no_longer_change) == (RunState.cancelled, True)


@pytest.mark.parametrize("state", [RunState.completed, RunState.failed, RunState.cancelled])
@pytest.mark.parametrize("slurm", ["PENDING", "RUNNING", "CANCELLED", "FAILED"])
def test_end_of_a_run_is_its_own(state: RunState, slurm: str) -> None:
    """Its job goes on with others, is requeued for them, or ends badly because of them."""
    view = found((slurm, "RUNNING"), restarts=1, state=state, exit_code=0, **BEGUN)
    assert (view.state, view.can_no_longer_change) == (state, True)


def test_running_run_is_lost_with_its_own_job_alone() -> None:
    """It goes on while that one does, waits where that is queued again, and is lost with it."""
    states = [
        found((slurm, other), restarts=restarts, state=RunState.running, **BEGUN).state
        for slurm, other, restarts in [
            ("RUNNING", "FAILED", 0),
            ("PENDING", "RUNNING", 1),
            ("NODE_FAIL", "RUNNING", 0),
        ]
    ]
    assert states == [RunState.running, RunState.pending, RunState.interrupted]


@pytest.mark.parametrize(
    ("slurm", "state"),
    [
        (("COMPLETED", "COMPLETED"), RunState.unknown),
        (("COMPLETED", "NODE_FAIL"), RunState.interrupted),
        (("CANCELLED", "COMPLETED"), RunState.cancelled),
        ((None, "COMPLETED"), RunState.unknown),
    ],
)
def test_run_that_nobody_began_is_what_became_of_its_jobs(
    slurm: tuple[str | None, str | None], state: RunState
) -> None:
    """With the last of them it is over, so that `resume` finds it."""
    view = found(slurm)
    assert (view.state, view.can_no_longer_change) == (state, True)


def test_run_is_told_by_our_record_while_slurm_is_away() -> None:
    """Nobody answers: what waits waits, what ended has ended."""
    assert found((None, None)).state is RunState.pending
    ended = found((None, None), state=RunState.failed, exit_code=1, **BEGUN)
    assert (ended.state, ended.can_no_longer_change) == (RunState.failed, True)
