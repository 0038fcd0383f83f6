"""What hardware does that is slow or sick, and what was asked for and not used. Pure.

Slow are throttled GPUs, and ranks that take longer than others; unused are CPUs, memory, time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hpckit.model.counted import format_count, format_short_list
from hpckit.model.diagnosis.verdict import EvidenceValue, Straggler, Verdict, VerdictKind, VerdictSeverity
from hpckit.planning.diagnosis.evidence import (
    CPU_PRESSURE,
    GpuUse,
    HostUse,
    RunAllocation,
    RunEvidence,
    list_well_sampled_gpus,
    list_well_sampled_hosts,
    mean_of_known,
)
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.planning.diagnosis.words import (
    MORE_CPUS,
    MOST_NAMED,
    build_verdict_rated_by_loss,
    build_verdict_without_loss,
    format_duration,
    format_gigabytes,
    format_percentage,
)

_NEARLY_ALL = 0.9


def detect_throttling(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict for heat, and one for the power limit."""
    gpus = list_well_sampled_gpus(evidence, limits)
    hot = [gpu for gpu in gpus if (gpu.heat_share or 0.0) >= limits.heat_share]
    capped = [gpu for gpu in gpus if (gpu.power_share or 0.0) >= limits.power_share]
    if hot:
        remedy = (
            f"Report it to the site, and leave the nodes out meanwhile: resources.exclude="
            f"{','.join(sorted({gpu.node for gpu in hot}))}"
        )
        yield _build_throttling_verdict(hot, gpus, "heat", remedy, limits)
    if capped:
        remedy = (
            "Nothing in the program is wrong. If the limit is below the board's own (nvidia-smi -q "
            "-d POWER), ask the site why; else lower precision does more work for each watt."
        )
        yield _build_throttling_verdict(capped, gpus, "power", remedy, limits)


def _build_throttling_verdict(
    slow: Sequence[GpuUse], gpus: Sequence[GpuUse], cause: str, remedy: str, limits: Thresholds
) -> Verdict:
    heat = cause == "heat"
    lowered = mean_of_known(gpu.heat_share if heat else gpu.power_share for gpu in slow) or 0.0
    clock = mean_of_known(gpu.clock_share for gpu in slow)
    why = "heat" if heat else "the power limit"
    at = "" if clock is None else f", to {format_percentage(clock)} of their maximum on average"
    names = format_short_list([f"{gpu.uuid} on {gpu.node}" for gpu in slow], MOST_NAMED)
    message = (
        f"{len(slow)} of {format_count(len(gpus), 'GPU')} lowered their clocks "
        f"{format_percentage(lowered)} of the time for {why}{at} ({names}); synchronous training is as "
        "slow as the slowest GPU."
    )
    found: dict[str, EvidenceValue] = {
        "cause": cause,
        "gpus": len(slow),
        "throttled_share": lowered,
        "clock_share": clock,
    }
    if clock is None or not heat:
        severity = VerdictSeverity.medium if heat else VerdictSeverity.low
        return build_verdict_without_loss(VerdictKind.throttled, severity, (message, remedy), **found)
    return build_verdict_rated_by_loss(
        VerdictKind.throttled, lowered * (1 - clock), (message, remedy), limits, **found
    )


def detect_stragglers(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict for each straggler, with what its hardware says."""
    for straggler in evidence.stragglers:
        causes = find_hardware_causes(straggler, evidence, limits)
        where = (
            f"on {straggler.node}" if straggler.gpu is None else f"with {straggler.gpu} on {straggler.node}"
        )
        where = f"{straggler.place}; {where}" if straggler.place else where
        message = (
            f"Rank {straggler.rank} ({where}) took {format_percentage(straggler.slower_by)} longer for "
            f"its own work than its peers ({format_duration(straggler.own_s)} a step, they "
            f"{format_duration(straggler.peers_s)}) in {straggler.windows} of "
            f"{format_count(straggler.judged, 'window')} looked at; the others wait for it."
        )
        message += f" {' '.join(causes)}" if causes else ""
        yield build_verdict_rated_by_loss(
            VerdictKind.straggler,
            straggler.lost_step_share,
            (
                message,
                _suggest_straggler_remedy(
                    straggler, causes, _find_normal_rank_on_node(straggler, evidence), evidence.run
                ),
            ),
            limits,
            rank=straggler.rank,
            node=straggler.node,
            gpu=straggler.gpu,
            slower_by=straggler.slower_by,
            own_s=straggler.own_s,
            peers_s=straggler.peers_s,
            step_s=straggler.step_s,
            hardware=" ".join(causes) or None,
        )


def _find_normal_rank_on_node(one: Straggler, evidence: RunEvidence) -> int | None:
    slow = {other.rank for other in evidence.stragglers} | {one.rank}
    here = (peer.rank for peer in evidence.ranks if peer.node == one.node)
    return min((rank for rank in here if rank not in slow), default=None)


def _suggest_straggler_remedy(one: Straggler, causes: Sequence[str], neighbour: int | None, run: str) -> str:
    if any("CPU" in cause for cause in causes):
        return MORE_CPUS
    if causes:
        return f"Report the node to the site, and leave it out: resources.exclude={one.node}"
    if neighbour is not None:
        ranks = ",".join(map(str, sorted((neighbour, one.rank))))
        return (
            f"Rank {neighbour} on the same node is not slow, so see what rank {one.rank} does and "
            f"others do not (files it alone writes, longer samples): hpckit profile {run} --ranks "
            f"{ranks} while it trains; of a later launch observe.profile.ranks=[{ranks}] "
            "observe.profile.at_step=100."
        )
    return (
        f"See what this rank does and others do not (files it alone writes, longer samples); if "
        f"it is slow again on {one.node} alone, leave that out: resources.exclude={one.node}"
    )


def find_hardware_causes(one: Straggler, evidence: RunEvidence, limits: Thresholds) -> tuple[str, ...]:
    """Return what the hardware of a straggler says, a sentence for each finding.

    The node as a whole says nothing if another rank on it is not slow.
    """
    causes: list[str] = []
    for gpu in evidence.gpus:
        if gpu.uuid == one.gpu:
            causes += _describe_gpu_trouble(gpu, limits)
    if _find_normal_rank_on_node(one, evidence) is None:
        for host in evidence.hosts:
            if host.node == one.node:
                causes += _describe_host_load(host)
    return tuple(causes)


def _describe_gpu_trouble(gpu: GpuUse, limits: Thresholds) -> Iterator[str]:
    heat, power = gpu.heat_share or 0.0, gpu.power_share or 0.0
    if heat >= limits.heat_share:
        yield f"Its GPU lowered its clocks for heat {format_percentage(heat)} of the time."
    if power >= limits.power_share:
        yield f"Its GPU was at its power limit {format_percentage(power)} of the time."
    if gpu.ecc_errors or gpu.remapped_rows:
        errors = format_count(gpu.ecc_errors or 0, "uncorrected memory error")
        rows = format_count(gpu.remapped_rows or 0, "remapped row")
        yield f"Its GPU had {errors} and {rows} during the run."


def _describe_host_load(host: HostUse) -> Iterator[str]:
    if host.cores and host.cores_busy is not None and host.cores_busy >= _NEARLY_ALL * host.cores:
        yield f"On its node {host.cores_busy:.0f} of {host.cores} CPUs were busy."
    elif host.cpu_pressure is not None and host.cpu_pressure >= CPU_PRESSURE:
        yield f"On its node tasks waited {format_percentage(host.cpu_pressure)} of the time for a CPU."


_MARGIN = 1.5
"""What is suggested is this many times what was used."""

_GB = 1e9
_MINUTE_S = 60


def detect_overallocation(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict for CPUs, one for memory, and one for the time limit."""
    asked = evidence.allocation
    if asked is None:
        return
    yield from _detect_unused_cpus(asked, evidence, limits)
    yield from _detect_unused_memory(asked, evidence, limits)
    yield from _detect_long_time_limit(asked, evidence, limits)


def _detect_unused_cpus(asked: RunAllocation, evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    hosts, cores = list_well_sampled_hosts(evidence, limits), asked.cpus_per_node
    used = max((host.cores_busy for host in hosts if host.cores_busy is not None), default=None)
    if used is None or not cores:
        return
    if used > limits.cpu_share * cores or cores - used < limits.spare_cores:
        return
    yield _build_overallocation_verdict(
        "cpus",
        f"On the busiest node {used:.1f} of {cores} CPUs were busy on average "
        f"({format_percentage(used / cores)}); the others could run other jobs.",
        f"Ask for fewer: resources.cpus_per_task, so that a node has about "
        f"{max(math.ceil(used * _MARGIN), 1)}; DataLoader workers need one each at times.",
        used=used,
        asked=cores,
        used_share=used / cores,
    )


def _detect_unused_memory(
    asked: RunAllocation, evidence: RunEvidence, limits: Thresholds
) -> Iterator[Verdict]:
    peaks = [host.memory_peak_bytes for host in list_well_sampled_hosts(evidence, limits)]
    used = max((peak for peak in peaks if peak is not None), default=None)
    size = asked.memory_bytes_per_node
    if used is None or not size:
        return
    if used > limits.memory_share * size or size - used < limits.spare_memory_gb * _GB:
        return
    yield _build_overallocation_verdict(
        "memory",
        f"At its peak a node used {format_gigabytes(used)} of {format_gigabytes(size)} of memory "
        f"({format_percentage(used / size)}); a smaller request starts earlier.",
        f"resources.mem_gb={max(math.ceil(used * _MARGIN / _GB), 1)} leaves a margin of 50 %.",
        used_bytes=used,
        asked_bytes=size,
        used_share=used / size,
    )


def _detect_long_time_limit(
    asked: RunAllocation, evidence: RunEvidence, limits: Thresholds
) -> Iterator[Verdict]:
    limit, used, times = asked.time_limit_s, asked.longest_attempt_s, evidence.times
    if limit is None or used is None or times is None or times.running_s < limits.run_s:
        return
    if used > limits.time_share * limit or limit - used < limits.spare_time_s:
        return
    minutes = max(math.ceil(used * _MARGIN / _MINUTE_S), 1)
    yield _build_overallocation_verdict(
        "time",
        f"The run took {format_duration(used)} of a time limit of {format_duration(limit)} "
        f"({format_percentage(used / limit)}); a shorter limit lets Slurm start it earlier, in gaps "
        "between other jobs.",
        f"resources.timeout_min={minutes} leaves a margin of 50 %.",
        used_s=used,
        asked_s=limit,
        used_share=used / limit,
    )


def _build_overallocation_verdict(what: str, message: str, remedy: str, **found: EvidenceValue) -> Verdict:
    return build_verdict_without_loss(
        VerdictKind.overallocated, VerdictSeverity.low, (message, remedy), resource=what, **found
    )
