"""Verdicts on speed are about steps, and those on a GPU about all ranks that use it."""

from __future__ import annotations

from typing import Any

import pytest

from hpckit.model.diagnosis.verdict import VerdictKind
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.planning.diagnosis.diagnose import diagnose_run
from hpckit.planning.diagnosis.evidence import GpuUse, RunEvidence, TimeShares


def steps(seconds: float = 100.0, *, gpu: str = "A", rank: int = 0, **parts: Any) -> RankSteps:
    """Return the steps of a rank."""
    parts = {"data_s": 0.0, "checkpoint_s": 0.0, "waiting_s": 0.0, **parts}
    return RankSteps(rank=rank, node="n1", gpu=gpu, steps=1000, seconds=seconds, **parts)


def used(seconds: float = 100.0, **measured: Any) -> GpuUse:
    """Return the use of a GPU."""
    return GpuUse(uuid="A", node="n1", seconds=seconds, samples=100, **measured)


FULL = {"utilization": 0.99, "sm_activity": 0.92}


@pytest.mark.parametrize(
    ("evidence", "kinds"),
    [
        (
            RunEvidence(
                ranks=(steps(40.0, own_s=39.6),),
                gpus=(used(utilization=0.396, sm_activity=0.396),),
                times=TimeShares(running_s=100, start_s=60, productive_s=40),
            ),
            set(),
        ),
        (
            RunEvidence(
                ranks=(steps(own_s=99.0),),
                gpus=(used(1000, utilization=0.099),),
                times=TimeShares(
                    running_s=1000, restart_s=880, start_s=20, productive_s=100, failures={"hang": 2}
                ),
            ),
            {VerdictKind.restarts},
        ),
        (
            RunEvidence(ranks=(steps(own_s=99.0, data_s=50.0),), gpus=(used(**FULL),)),
            {VerdictKind.compute_bound},
        ),
        (
            RunEvidence(ranks=(steps(own_s=99.0),), gpus=(used(utilization=0.9, sm_activity=0.2),)),
            {VerdictKind.launch_bound},
        ),
    ],
    ids=["start-up", "restarts", "asynchronous", "launch-bound"],
)
def test_verdicts_on_speed_are_about_steps(evidence: RunEvidence, kinds: set[VerdictKind]) -> None:
    """What GPUs do while a run starts, or while they compute anyway, slows no step."""
    assert {one.kind for one in diagnose_run(evidence)} == kinds


@pytest.mark.parametrize("turn", [1, -1])
def test_two_ranks_on_a_gpu_are_both_asked_why_it_is_idle(turn: int) -> None:
    """The order of ranks decides nothing."""
    ranks = (steps(own_s=99.0), steps(rank=1, own_s=5.0, data_s=95.0))[::turn]
    found = diagnose_run(RunEvidence(ranks=ranks, gpus=(used(utilization=0.05),)))
    assert VerdictKind.gpu_idle in {one.kind for one in found}
