"""What was asked for and not used: CPUs, memory, time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpckit.model.diagnosis.verdict import EvidenceValue, Verdict, VerdictKind, VerdictSeverity
from hpckit.planning.diagnosis.evidence import RunAllocation, RunEvidence, judged_hosts
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.planning.diagnosis.words import duration, gigabytes, lossless, share

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
    counts = [one.cores_busy for one in judged_hosts(evidence, limits)]
    known = [one for one in counts if one is not None]
    cores = asked.cpus_per_node
    if not known or not cores:
        return
    used = max(known)
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
    peaks = [one.memory_peak_bytes for one in judged_hosts(evidence, limits)]
    known = [one for one in peaks if one is not None]
    size = asked.memory_bytes_per_node
    if not known or not size:
        return
    used = max(known)
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
        VerdictKind.overallocated,
        VerdictSeverity.low,
        (message, remedy),
        resource=what,
        **found,
    )
