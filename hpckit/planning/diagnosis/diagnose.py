"""All rules, and the verdicts that they find on a run. Pure.

A rule says nothing about what is unknown, or was not measured often enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hpckit.model.diagnosis.verdict import Verdict, VerdictKind, VerdictSeverity
from hpckit.planning.diagnosis import gpu_rules, hardware_rules, time_rules
from hpckit.planning.diagnosis.evidence import RunEvidence
from hpckit.planning.diagnosis.thresholds import DEFAULT, Thresholds
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisRule:
    """One rule, and what docs/explanations/verdicts.md says about it.

    `measured` is what is compared with the `thresholds` (names of fields of Thresholds).
    """

    kind: VerdictKind
    find: Callable[[RunEvidence, Thresholds], Iterable[Verdict]]
    measured: str
    thresholds: tuple[str, ...]
    remedy: str


RULES = (
    DiagnosisRule(
        kind=VerdictKind.input_bound,
        find=time_rules.detect_input_bound,
        measured="share of a step in which ranks wait for the next batch, mean over ranks",
        thresholds=("data_share", "steps", "steps_s"),
        remedy="more or faster workers, data on the node's disk, fewer and larger files",
    ),
    DiagnosisRule(
        kind=VerdictKind.communication_bound,
        find=time_rules.detect_communication_bound,
        measured=(
            "share of a step in collectives, of the rank that waits least; in NCCL's log, sockets "
            "between nodes with InfiniBand"
        ),
        thresholds=("waiting_share", "steps", "steps_s"),
        remedy="larger batches, gradient accumulation, overlap, the fast network",
    ),
    DiagnosisRule(
        kind=VerdictKind.compute_bound,
        find=gpu_rules.detect_compute_bound,
        measured="SM activity of the GPUs in use; without it, their utilization and power",
        thresholds=("high_sm_activity", "high_utilization", "high_power_share", "samples"),
        remedy="none is needed; lower precision, torch.compile or more GPUs are faster",
    ),
    DiagnosisRule(
        kind=VerdictKind.memory_bound,
        find=gpu_rules.detect_memory_bound,
        measured="used share of memory bandwidth, if larger than that of the tensor cores",
        thresholds=("dram_activity", "samples"),
        remedy="bfloat16, fused kernels, FlashAttention",
    ),
    DiagnosisRule(
        kind=VerdictKind.launch_bound,
        find=gpu_rules.detect_launch_bound,
        measured="SM activity (without it, utilization) while ranks do their own work",
        thresholds=("own_share", "low_sm_activity", "low_utilization", "samples", "steps"),
        remedy="larger batches, torch.compile, CUDA graphs, fewer waits for the GPU; more CPUs if tasks wait",
    ),
    DiagnosisRule(
        kind=VerdictKind.gpu_idle,
        find=gpu_rules.detect_idle_gpus,
        measured="utilization of each allocated GPU, if no wait of its rank explains it",
        thresholds=("idle_utilization", "explained_share", "samples"),
        remedy="a rank for each GPU, or fewer GPUs",
    ),
    DiagnosisRule(
        kind=VerdictKind.throttled,
        find=hardware_rules.detect_throttling,
        measured="share of time with lower clocks for heat, or for the power limit",
        thresholds=("heat_share", "power_share", "samples"),
        remedy="report the node and leave it out; a low power limit is the site's",
    ),
    DiagnosisRule(
        kind=VerdictKind.straggler,
        find=hardware_rules.detect_stragglers,
        measured="a rank's own time per step, against the median of its peers'",
        thresholds=(
            *("straggler_excess", "straggler_step_share", "straggler_noise", "window_s"),
            *("window_steps", "windows", "slow_windows", "least_windows"),
        ),
        remedy="leave the node out, or ask for more CPUs, as its hardware says",
    ),
    DiagnosisRule(
        kind=VerdictKind.checkpoint_overhead,
        find=time_rules.detect_checkpoint_overhead,
        measured="checkpoint stall, as a share of the time on the nodes",
        thresholds=("checkpoint_share", "saves", "run_s"),
        remedy="save less often, or leave that to hpckit; faster storage",
    ),
    DiagnosisRule(
        kind=VerdictKind.restarts,
        find=time_rules.detect_costly_restarts,
        measured="restarts and repeated steps, as a share of the time on the nodes",
        thresholds=("restart_share", "run_s"),
        remedy="save more often, start faster, repair what fails most",
    ),
    DiagnosisRule(
        kind=VerdictKind.overallocated,
        find=hardware_rules.detect_overallocation,
        measured="mean of busy CPUs, peak memory, time of a completed run",
        thresholds=(
            *("cpu_share", "spare_cores", "memory_share", "spare_memory_gb", "time_share"),
            *("spare_time_s", "samples", "run_s"),
        ),
        remedy="ask for what the message suggests",
    ),
)
"""A rule for each kind of verdict."""

_OF_SPEED = frozenset(
    {
        *(VerdictKind.input_bound, VerdictKind.communication_bound, VerdictKind.compute_bound),
        *(VerdictKind.memory_bound, VerdictKind.launch_bound, VerdictKind.gpu_idle),
    }
)

_SEVERITIES = tuple(VerdictSeverity)
_KINDS = tuple(VerdictKind)


def diagnose_run(evidence: RunEvidence, limits: Thresholds = DEFAULT) -> tuple[Verdict, ...]:
    """Return the verdicts on a run: the most severe, and then the largest loss, first."""
    rules = [rule for rule in RULES if evidence.trained or rule.kind not in _OF_SPEED]
    found = [verdict for rule in rules for verdict in rule.find(evidence, limits)]
    return tuple(sorted(found, key=_verdict_sort_key))


def _verdict_sort_key(one: Verdict) -> tuple[int, float, int, str]:
    return _SEVERITIES.index(one.severity), -one.loss, _KINDS.index(one.kind), one.message
