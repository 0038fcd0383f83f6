"""Sums and means over the ranks and GPUs of a run that have enough samples. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.planning.diagnosis.evidence import GpuUse, HostUse, RunEvidence
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.values import dataclass

CPU_PRESSURE = 0.2
"""Share of time in which some task waited for a CPU: they are too few, or others use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """What a step of the run consists of; shares of the step, None where no rank knows.

    `data_loss` is what waiting for data costs: a GPU that computes meanwhile loses nothing. GPUs
    without a rank do not count there.
    `least_waiting_share` is that of the rank that waits least for others, None with one rank.
    """

    ranks: int
    step_s: float
    data_share: float | None
    data_loss: float
    least_waiting_share: float | None
    own_share: float | None


def judged_ranks(evidence: RunEvidence, limits: Thresholds) -> list[RankSteps]:
    """Return the ranks with enough steps."""
    return [
        one for one in evidence.ranks if one.steps >= limits.steps and one.seconds >= limits.steps_s
    ]


def step_summary(evidence: RunEvidence, limits: Thresholds) -> StepSummary | None:
    """Return the summary of the steps of all ranks; None without enough steps."""
    ranks = judged_ranks(evidence, limits)
    if not ranks:
        return None
    waits = [one.waiting_s / one.seconds for one in ranks if one.waiting_s is not None]
    data_share = _weighted(ranks, lambda one: one.data_s)
    gpus = judged_gpus(evidence, limits)
    own = {one.gpu for one in ranks}
    used = mean(map(busy, [one for one in gpus if one.uuid in own] or gpus)) or 0.0
    return StepSummary(
        ranks=len(ranks),
        step_s=sum(one.seconds for one in ranks) / sum(one.steps for one in ranks),
        data_share=data_share,
        data_loss=min(data_share or 0.0, max(1 - used, 0.0)),
        least_waiting_share=min(waits) if len(ranks) > 1 and len(waits) == len(ranks) else None,
        own_share=_weighted(ranks, lambda one: one.computing_s),
    )


def _weighted(
    ranks: Sequence[RankSteps], seconds: Callable[[RankSteps], float | None]
) -> float | None:
    known = [(found, one.seconds) for one in ranks if (found := seconds(one)) is not None]
    return sum(part for part, _ in known) / sum(whole for _, whole in known) if known else None


def judged_gpus(evidence: RunEvidence, limits: Thresholds) -> list[GpuUse]:
    """Return the GPUs with enough samples."""
    return [one for one in evidence.gpus if one.samples >= limits.samples]


def judged_hosts(evidence: RunEvidence, limits: Thresholds) -> list[HostUse]:
    """Return the nodes with enough samples."""
    return [one for one in evidence.hosts if one.samples >= limits.samples]


def cpu_pressure(evidence: RunEvidence, limits: Thresholds) -> float | None:
    """Return the mean share of time in which tasks waited for a CPU; None if that is little."""
    found = mean(one.cpu_pressure for one in judged_hosts(evidence, limits))
    return found if found is not None and found >= CPU_PRESSURE else None


def busy(one: GpuUse) -> float | None:
    """Return how busy a GPU is: its utilization, or its SM activity where that is unknown."""
    return one.sm_activity if one.utilization is None else one.utilization


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known; None if nothing is."""
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None
