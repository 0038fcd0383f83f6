"""What the GPUs do: nothing, too little at a time, or as much as they can. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.model.counted import listed
from hpckit.model.diagnosis.verdict import Verdict, VerdictKind, VerdictSeverity
from hpckit.planning.diagnosis.evidence import (
    GpuUse,
    RunEvidence,
    StepSummary,
    busy,
    cpu_pressure,
    judged_gpus,
    judged_ranks,
    mean,
    step_summary,
)
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.planning.diagnosis.words import MORE_CPUS, MOST_NAMED, lossless, lossy, share


def gpu_idle(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if GPUs are hardly used and no wait of their ranks explains it."""
    gpus = [gpu for gpu in judged_gpus(evidence, limits) if busy(gpu) is not None]
    idle = [gpu for gpu in gpus if _is_idle(gpu, limits) and not _explained(gpu, evidence, limits)]
    if not idle:
        return
    used = mean(map(busy, idle)) or 0.0
    names = listed([f"{gpu.uuid} on {gpu.node}" for gpu in idle], MOST_NAMED)
    message = (
        f"{len(idle)} of {len(gpus)} GPUs were busy {share(used)} of the time while they were "
        f"allocated ({names}); other jobs cannot use them."
    )
    yield lossy(
        VerdictKind.gpu_idle,
        (1 - used) * len(idle) / len(gpus),
        (message, _use_or_return(len(idle), len(gpus))),
        limits,
        idle_gpus=len(idle),
        gpus=len(gpus),
        utilization_share=used,
        memory_peak_bytes=max((gpu.memory_peak_bytes or 0 for gpu in idle), default=None),
    )


def _is_idle(one: GpuUse, limits: Thresholds) -> bool:
    used = busy(one)
    return used is not None and used < limits.idle_utilization


def _explained(one: GpuUse, evidence: RunEvidence, limits: Thresholds) -> bool:
    """Whether starts, restarts and waits of its ranks are nearly all the time it was not busy."""
    away = _away(evidence)
    waits = [
        ((rank.data_s or 0.0) + (rank.checkpoint_s or 0.0) + (rank.waiting_s or 0.0)) / rank.seconds
        for rank in judged_ranks(evidence, limits)
        if rank.gpu == one.uuid
    ]
    if not waits and not away:
        return False
    waited = away + (1 - away) * (mean(waits) or 0.0)
    return waited + (busy(one) or 0.0) >= limits.explained_share


def _away(evidence: RunEvidence) -> float:
    """Return the share of time in which no rank could train: starts and restarts."""
    times = evidence.times
    if times is None or times.running_s <= 0:
        return 0.0
    return min(max((times.start_s + times.restart_s) / times.running_s, 0.0), 1.0)


def _use_or_return(idle: int, gpus: int) -> str:
    if idle == gpus:
        return (
            "Check that the program puts model and data on a GPU (runtime.device=cuda fails if "
            "there is none), or ask for CPUs only: resources=cpu."
        )
    return (
        "Start a rank for each GPU (resources.tasks_per_node = resources.gpus_per_node), or ask "
        "for fewer: resources.gpus_per_node."
    )


def launch_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if ranks are busy with their own work, and their GPUs are not."""
    gpus = _working(evidence, limits)
    steps = step_summary(evidence, limits)
    if not gpus or steps is None or steps.own_share is None or steps.own_share < limits.own_share:
        return
    active, measured = _activity(gpus)
    trained = 1 - _away(evidence)
    if active is not None:
        active = min(active / trained, 1.0) if trained > 0 else 1.0
    limit = limits.low_sm_activity if measured == "sm_activity" else limits.low_utilization
    if active is None or active >= limit or _dram(gpus) >= limits.dram_activity:
        return
    what = "multiprocessors" if measured == "sm_activity" else "kernels"
    message = (
        f"Ranks spent {share(steps.own_share)} of each step on their own work, but the GPUs' "
        f"{what} were active only {share(active)}: the program gives them work too slowly, or in "
        "pieces that are too small."
    )
    pressure = cpu_pressure(evidence, limits)
    if pressure is not None:
        message += f" Tasks of these nodes waited {share(pressure)} of the time for a CPU."
    fewer_launches = (
        "Raise the batch size, use torch.compile (mode='reduce-overhead' records CUDA graphs), and "
        "avoid what waits for the GPU in each step: .item(), .cpu(), printing losses."
    )
    remedy = fewer_launches if pressure is None else MORE_CPUS
    yield lossy(
        VerdictKind.launch_bound,
        steps.own_share * (1 - active),
        (message, remedy),
        limits,
        own_share=steps.own_share,
        activity_share=active,
        measured=measured,
        power_w=mean(gpu.power_w for gpu in gpus),
        cpu_pressure=pressure,
    )


def memory_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if the bandwidth of the GPUs' memory is nearly used up."""
    gpus = _working(evidence, limits)
    if not _is_memory_bound(gpus, limits):
        return
    dram, tensor = _dram(gpus), mean(gpu.tensor_activity for gpu in gpus)
    message = (
        f"The GPUs' memory moved data {share(dram)} of the time (about 80 % is the most that is "
        "possible)"
    )
    message += "" if tensor is None else f", their tensor cores worked {share(tensor)}"
    remedy = (
        "Move less: bfloat16, fused kernels (torch.compile, fused optimizers), FlashAttention. "
        "A faster GPU helps by its memory bandwidth, not by its FLOPS."
    )
    yield lossless(
        VerdictKind.memory_bound,
        VerdictSeverity.low,
        (f"{message}: memory bandwidth limits the run.", remedy),
        dram_activity_share=dram,
        tensor_activity_share=tensor,
    )


def compute_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a remark if the GPUs compute all the time: nothing is wrong."""
    gpus = _working(evidence, limits)
    if _is_memory_bound(gpus, limits) or _waits(step_summary(evidence, limits), limits):
        return
    active, measured = _activity(gpus)
    if active is None or not _is_full(active, measured, gpus, limits):
        return
    message = (
        f"The GPUs were active {share(active)} of the time: their speed limits the steps, and "
        "nothing else slows these down."
    )
    remedy = (
        "Nothing has to be done about steps. To be faster: lower precision (bfloat16, FP8), "
        "torch.compile, or more GPUs."
    )
    yield lossless(
        VerdictKind.compute_bound,
        VerdictSeverity.info,
        (message, remedy),
        activity_share=active,
        measured=measured,
        tensor_activity_share=mean(gpu.tensor_activity for gpu in gpus),
        power_limit_share=_power_share(gpus),
    )


def _is_full(active: float, measured: str, gpus: Sequence[GpuUse], limits: Thresholds) -> bool:
    if measured == "sm_activity":
        return active >= limits.high_sm_activity
    power = _power_share(gpus)
    strong = power is not None and power >= limits.high_power_share
    return strong and active >= limits.high_utilization


def _working(evidence: RunEvidence, limits: Thresholds) -> list[GpuUse]:
    """Return the GPUs that are used at all."""
    return [
        gpu
        for gpu in judged_gpus(evidence, limits)
        if busy(gpu) is not None and not _is_idle(gpu, limits)
    ]


def _waits(steps: StepSummary | None, limits: Thresholds) -> bool:
    if steps is None:
        return False
    others = steps.least_waiting_share or 0.0
    return steps.data_loss >= limits.data_share or others >= limits.waiting_share


def _activity(gpus: Sequence[GpuUse]) -> tuple[float | None, str]:
    """Return the mean activity, and which measurement it is: the better one that is known."""
    active = mean(gpu.sm_activity for gpu in gpus)
    if active is not None:
        return active, "sm_activity"
    return mean(gpu.utilization for gpu in gpus), "utilization"


def _dram(gpus: Sequence[GpuUse]) -> float:
    return mean(gpu.dram_activity for gpu in gpus) or 0.0


def _is_memory_bound(gpus: Sequence[GpuUse], limits: Thresholds) -> bool:
    dram, tensor = _dram(gpus), mean(gpu.tensor_activity for gpu in gpus)
    return dram >= limits.dram_activity and (tensor is None or tensor < dram)


def _power_share(gpus: Sequence[GpuUse]) -> float | None:
    return mean(
        gpu.power_w / gpu.power_limit_w
        for gpu in gpus
        if gpu.power_w is not None and gpu.power_limit_w
    )
