"""What the run's time went to besides training: saves, restarts, a time limit. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpckit.model.counted import counted
from hpckit.model.diagnosis.verdict import Verdict, VerdictKind
from hpckit.planning.diagnosis.evidence import RunEvidence, TimeShares
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.planning.diagnosis.words import duration, lossy, share


def checkpoint_overhead(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if training stood still for saves for long."""
    times = evidence.times
    if times is None or times.running_s < limits.run_s or times.saves < limits.saves:
        return
    stalled = times.checkpoint_s / times.running_s
    if stalled < limits.checkpoint_share:
        return
    each = times.save_s if times.save_s is not None else times.checkpoint_s / times.saves
    message = (
        f"Checkpoint stalls took {share(stalled)} of {duration(times.running_s)} "
        f"({counted(times.saves, 'save')} of {duration(each)} each)."
    )
    better = _better_interval(times)
    yield lossy(
        VerdictKind.checkpoint_overhead,
        stalled,
        (message, _rarer(better)),
        limits,
        checkpoint_share=stalled,
        saves=times.saves,
        save_s=each,
        interval_s=times.interval_s,
        better_interval_s=better,
        running_s=times.running_s,
    )


def _better_interval(times: TimeShares) -> float | None:
    """Return Young's best time between saves, sqrt(2 w M), if it is longer than the present one.

    Source: Young, Communications of the ACM 17 (1974).
    """
    if times.save_s is None or times.mtbf_s is None or times.interval_s is None:
        return None
    best = math.sqrt(2 * times.save_s * times.mtbf_s)
    return best if best > times.interval_s else None


def _rarer(better: float | None) -> str:
    if better is not None:
        return (
            f"Save every {duration(better)}, which is best for how often this run failed; or leave "
            "checkpoint.interval_steps and checkpoint.interval_min unset, so that the interval "
            "follows from the measured cost."
        )
    return (
        "Save less often (checkpoint.interval_min), or leave the interval unset: it then follows "
        "from the measured cost and checkpoint.mtbf_hours. Or save to faster storage: "
        "checkpoint.dir."
    )


def restarts(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if restarts and repeated steps took long."""
    times = evidence.times
    if times is None or times.running_s < limits.run_s:
        return
    interruptions = sum(times.failures.values()) + times.planned
    lost = (times.restart_s + times.redone_s) / times.running_s
    if not interruptions or lost < limits.restart_share:
        return
    message = (
        f"Restarts took {duration(times.restart_s)} and repeated steps "
        f"{duration(times.redone_s)}: {share(lost)} of {duration(times.running_s)} "
        f"({_counts(times)})."
    )
    yield lossy(
        VerdictKind.restarts,
        lost,
        (message, _cheaper(times)),
        limits,
        lost_share=lost,
        restart_s=times.restart_s,
        redone_s=times.redone_s,
        failures=sum(times.failures.values()),
        planned=times.planned,
        running_s=times.running_s,
    )


def _counts(times: TimeShares) -> str:
    words = [f"{count} {cause}" for cause, count in times.failures.items()]
    words += [f"{times.planned} planned"] if times.planned else []
    return ", ".join(words)


def _cheaper(times: TimeShares) -> str:
    cause = next(iter(times.failures), None)
    first = "" if cause is None else f"See what failed most ({cause}): hpckit logs. "
    if times.redone_s > times.restart_s:
        return (
            f"{first}Save more often, so that less has to be repeated: checkpoint.interval_min, or "
            "a checkpoint.mtbf_hours that is as low as measured."
        )
    return (
        f"{first}Shorten the start: stage data and containers on the node, keep the caches of "
        "torch.compile (TORCHINDUCTOR_CACHE_DIR), and keep a spare node: resources.spare_nodes=1."
    )
