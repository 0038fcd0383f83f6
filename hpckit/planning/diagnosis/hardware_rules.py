"""What hardware does that is slow or sick, and what was asked for and not used. Pure.

Slow are throttled GPUs, and ranks that take longer than others; unused are CPUs, memory, time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hpckit.model.counted import counted, listed
from hpckit.model.diagnosis.verdict import (
    EvidenceValue,
    Straggler,
    Verdict,
    VerdictKind,
    VerdictSeverity,
)
from hpckit.planning.diagnosis.evidence import (
    CPU_PRESSURE,
    GpuUse,
    HostUse,
    RunAllocation,
    RunEvidence,
    judged_gpus,
    judged_hosts,
    mean,
)
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.planning.diagnosis.words import (
    MORE_CPUS,
    MOST_NAMED,
    duration,
    gigabytes,
    lossless,
    lossy,
    share,
)

_NEARLY_ALL = 0.9


def throttled(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict for heat, and one for the power limit."""
    gpus = judged_gpus(evidence, limits)
    hot = [gpu for gpu in gpus if (gpu.heat_share or 0.0) >= limits.heat_share]
    capped = [gpu for gpu in gpus if (gpu.power_share or 0.0) >= limits.power_share]
    if hot:
        remedy = (
            f"Report it to the site, and leave the nodes out meanwhile: resources.exclude="
            f"{','.join(sorted({gpu.node for gpu in hot}))}"
        )
        yield _throttled(hot, gpus, "heat", remedy, limits)
    if capped:
        remedy = (
            "Nothing in the program is wrong. If the limit is below the board's own (nvidia-smi -q "
            "-d POWER), ask the site why; else lower precision does more work for each watt."
        )
        yield _throttled(capped, gpus, "power", remedy, limits)


def _throttled(
    slow: Sequence[GpuUse], gpus: Sequence[GpuUse], cause: str, remedy: str, limits: Thresholds
) -> Verdict:
    heat = cause == "heat"
    lowered = mean(gpu.heat_share if heat else gpu.power_share for gpu in slow) or 0.0
    clock = mean(gpu.clock_share for gpu in slow)
    why = "heat" if heat else "the power limit"
    at = "" if clock is None else f", to {share(clock)} of their maximum on average"
    names = listed([f"{gpu.uuid} on {gpu.node}" for gpu in slow], MOST_NAMED)
    message = (
        f"{len(slow)} of {counted(len(gpus), 'GPU')} lowered their clocks {share(lowered)} of the "
        f"time for {why}{at} ({names}); synchronous training is as slow as the slowest GPU."
    )
    found: dict[str, EvidenceValue] = {
        "cause": cause,
        "gpus": len(slow),
        "throttled_share": lowered,
        "clock_share": clock,
    }
    if clock is None or not heat:
        severity = VerdictSeverity.medium if heat else VerdictSeverity.low
        return lossless(VerdictKind.throttled, severity, (message, remedy), **found)
    return lossy(VerdictKind.throttled, lowered * (1 - clock), (message, remedy), limits, **found)


def straggler(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict for each straggler, with what its hardware says."""
    for one in evidence.stragglers:
        causes = hardware_causes(one, evidence, limits)
        where = f"on {one.node}" if one.gpu is None else f"with {one.gpu} on {one.node}"
        where = f"{one.place}; {where}" if one.place else where
        message = (
            f"Rank {one.rank} ({where}) took {share(one.slower_by)} longer for its own work than "
            f"its peers ({duration(one.own_s)} a step, they {duration(one.peers_s)}) in "
            f"{one.windows} of {counted(one.judged, 'window')} looked at; the others wait for it."
        )
        message += f" {' '.join(causes)}" if causes else ""
        yield lossy(
            VerdictKind.straggler,
            one.loss,
            (message, _remedy(one, causes, _neighbour(one, evidence), evidence.run)),
            limits,
            rank=one.rank,
            node=one.node,
            gpu=one.gpu,
            slower_by=one.slower_by,
            own_s=one.own_s,
            peers_s=one.peers_s,
            step_s=one.step_s,
            hardware=" ".join(causes) or None,
        )


def _neighbour(one: Straggler, evidence: RunEvidence) -> int | None:
    """Return a rank of the same node that is not slow; None if there is none."""
    slow = {other.rank for other in evidence.stragglers} | {one.rank}
    here = (peer.rank for peer in evidence.ranks if peer.node == one.node)
    return min((rank for rank in here if rank not in slow), default=None)


def _remedy(one: Straggler, causes: Sequence[str], neighbour: int | None, run: str) -> str:
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


def hardware_causes(one: Straggler, evidence: RunEvidence, limits: Thresholds) -> tuple[str, ...]:
    """Return what the hardware of a straggler says, a sentence for each finding.

    The node as a whole says nothing if another rank on it is not slow.
    """
    causes: list[str] = []
    for gpu in evidence.gpus:
        if gpu.uuid == one.gpu:
            causes += _of_gpu(gpu, limits)
    if _neighbour(one, evidence) is None:
        for host in evidence.hosts:
            if host.node == one.node:
                causes += _of_host(host)
    return tuple(causes)


def _of_gpu(gpu: GpuUse, limits: Thresholds) -> Iterator[str]:
    heat, power = gpu.heat_share or 0.0, gpu.power_share or 0.0
    if heat >= limits.heat_share:
        yield f"Its GPU lowered its clocks for heat {share(heat)} of the time."
    if power >= limits.power_share:
        yield f"Its GPU was at its power limit {share(power)} of the time."
    if gpu.ecc_errors or gpu.remapped_rows:
        errors = counted(gpu.ecc_errors or 0, "uncorrected memory error")
        rows = counted(gpu.remapped_rows or 0, "remapped row")
        yield f"Its GPU had {errors} and {rows} during the run."


def _of_host(host: HostUse) -> Iterator[str]:
    if host.cores and host.cores_busy is not None and host.cores_busy >= _NEARLY_ALL * host.cores:
        yield f"On its node {host.cores_busy:.0f} of {host.cores} CPUs were busy."
    elif host.cpu_pressure is not None and host.cpu_pressure >= CPU_PRESSURE:
        yield f"On its node tasks waited {share(host.cpu_pressure)} of the time for a CPU."


_MARGIN = 1.5
"""What is suggested is this many times what was used."""

_GB = 1e9
_MINUTE_S = 60


def overallocated(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict for CPUs, one for memory, and one for the time limit."""
    asked = evidence.allocation
    if asked is None:
        return
    yield from _cpus(asked, evidence, limits)
    yield from _memory(asked, evidence, limits)
    yield from _time(asked, evidence, limits)


def _cpus(asked: RunAllocation, evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    hosts, cores = judged_hosts(evidence, limits), asked.cpus_per_node
    used = max((host.cores_busy for host in hosts if host.cores_busy is not None), default=None)
    if used is None or not cores:
        return
    if used > limits.cpu_share * cores or cores - used < limits.spare_cores:
        return
    yield _over(
        "cpus",
        f"On the busiest node {used:.1f} of {cores} CPUs were busy on average "
        f"({share(used / cores)}); the others could run other jobs.",
        f"Ask for fewer: resources.cpus_per_task, so that a node has about "
        f"{max(math.ceil(used * _MARGIN), 1)}; DataLoader workers need one each at times.",
        used=used,
        asked=cores,
        used_share=used / cores,
    )


def _memory(asked: RunAllocation, evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    peaks = [host.memory_peak_bytes for host in judged_hosts(evidence, limits)]
    used = max((peak for peak in peaks if peak is not None), default=None)
    size = asked.memory_bytes_per_node
    if used is None or not size:
        return
    if used > limits.memory_share * size or size - used < limits.spare_memory_gb * _GB:
        return
    yield _over(
        "memory",
        f"At its peak a node used {gigabytes(used)} of {gigabytes(size)} of memory "
        f"({share(used / size)}); a smaller request starts earlier.",
        f"resources.mem_gb={max(math.ceil(used * _MARGIN / _GB), 1)} leaves half as much again.",
        used_bytes=used,
        asked_bytes=size,
        used_share=used / size,
    )


def _time(asked: RunAllocation, evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    limit, used, times = asked.time_limit_s, asked.longest_attempt_s, evidence.times
    if limit is None or used is None or times is None or times.running_s < limits.run_s:
        return
    if used > limits.time_share * limit or limit - used < limits.spare_time_s:
        return
    minutes = max(math.ceil(used * _MARGIN / _MINUTE_S), 1)
    yield _over(
        "time",
        f"The run took {duration(used)} of a time limit of {duration(limit)} "
        f"({share(used / limit)}); a shorter limit lets Slurm start it earlier, in gaps between "
        "other jobs.",
        f"resources.timeout_min={minutes} leaves half as much again.",
        used_s=used,
        asked_s=limit,
        used_share=used / limit,
    )


def _over(what: str, message: str, remedy: str, **found: EvidenceValue) -> Verdict:
    return lossless(
        VerdictKind.overallocated, VerdictSeverity.low, (message, remedy), resource=what, **found
    )
