"""What the GPUs do: nothing, too little at a time, or as much as they can. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.model.counted import format_short_list
from hpckit.model.diagnosis.verdict import Verdict, VerdictKind, VerdictSeverity
from hpckit.planning.diagnosis.evidence import (
    GpuUse,
    RunEvidence,
    StepSummary,
    gpu_busy_share,
    list_ranks_with_enough_steps,
    list_well_sampled_gpus,
    mean_cpu_pressure_if_high,
    mean_of_known,
    summarize_steps,
)
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.planning.diagnosis.words import (
    MORE_CPUS,
    MOST_NAMED,
    build_verdict_rated_by_loss,
    build_verdict_without_loss,
    format_percentage,
)


def detect_idle_gpus(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if GPUs are hardly used and no wait of their ranks explains it."""
    gpus = [gpu for gpu in list_well_sampled_gpus(evidence, limits) if gpu_busy_share(gpu) is not None]
    idle = [
        gpu
        for gpu in gpus
        if _is_gpu_idle(gpu, limits) and not _do_waits_explain_idle_gpu(gpu, evidence, limits)
    ]
    if not idle:
        return
    used = mean_of_known(map(gpu_busy_share, idle)) or 0.0
    names = format_short_list([f"{gpu.uuid} on {gpu.node}" for gpu in idle], MOST_NAMED)
    message = (
        f"{len(idle)} of {len(gpus)} GPUs were busy {format_percentage(used)} of the time while they "
        f"were allocated ({names}); other jobs cannot use them."
    )
    yield build_verdict_rated_by_loss(
        VerdictKind.gpu_idle,
        (1 - used) * len(idle) / len(gpus),
        (message, _suggest_using_idle_gpus(len(idle), len(gpus))),
        limits,
        idle_gpus=len(idle),
        gpus=len(gpus),
        utilization_share=used,
        memory_peak_bytes=max((gpu.memory_peak_bytes or 0 for gpu in idle), default=None),
    )


def _is_gpu_idle(one: GpuUse, limits: Thresholds) -> bool:
    used = gpu_busy_share(one)
    return used is not None and used < limits.idle_utilization


def _do_waits_explain_idle_gpu(one: GpuUse, evidence: RunEvidence, limits: Thresholds) -> bool:
    """Whether starts, restarts and waits of its ranks are nearly all the time it was not busy."""
    away = _start_and_restart_time_share(evidence)
    waits = [
        ((rank.data_s or 0.0) + (rank.checkpoint_s or 0.0) + (rank.waiting_s or 0.0)) / rank.seconds
        for rank in list_ranks_with_enough_steps(evidence, limits)
        if rank.gpu == one.uuid
    ]
    if not waits and not away:
        return False
    waited = away + (1 - away) * (mean_of_known(waits) or 0.0)
    return waited + (gpu_busy_share(one) or 0.0) >= limits.explained_share


def _start_and_restart_time_share(evidence: RunEvidence) -> float:
    """Return the share of time in which no rank could train: starts and restarts."""
    times = evidence.times
    if times is None or times.running_s <= 0:
        return 0.0
    return min(max((times.start_s + times.restart_s) / times.running_s, 0.0), 1.0)


def _suggest_using_idle_gpus(idle: int, gpus: int) -> str:
    if idle == gpus:
        return (
            "Check that the program puts model and data on a GPU (runtime.device=cuda fails if "
            "there is none), or ask for CPUs only: resources=cpu."
        )
    return (
        "Start a rank for each GPU (resources.tasks_per_node = resources.gpus_per_node), or ask "
        "for fewer: resources.gpus_per_node."
    )


def detect_launch_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if ranks are busy with their own work, and their GPUs are not."""
    gpus = _list_gpus_known_to_be_busy(evidence, limits)
    steps = summarize_steps(evidence, limits)
    if not gpus or steps is None or steps.own_share is None or steps.own_share < limits.own_share:
        return
    active, measured = _mean_gpu_activity(gpus)
    trained = 1 - _start_and_restart_time_share(evidence)
    if active is not None:
        active = min(active / trained, 1.0) if trained > 0 else 1.0
    limit = limits.low_sm_activity if measured == "sm_activity" else limits.low_utilization
    if active is None or active >= limit or _mean_dram_activity(gpus) >= limits.dram_activity:
        return
    what = "multiprocessors" if measured == "sm_activity" else "kernels"
    message = (
        f"Ranks spent {format_percentage(steps.own_share)} of each step on their own work, but the "
        f"GPUs' {what} were active only {format_percentage(active)}: the program gives them work too "
        "slowly, or in pieces that are too small."
    )
    pressure = mean_cpu_pressure_if_high(evidence, limits)
    if pressure is not None:
        message += f" Tasks of these nodes waited {format_percentage(pressure)} of the time for a CPU."
    fewer_launches = (
        "Raise the batch size, use torch.compile (mode='reduce-overhead' records CUDA graphs), and "
        "avoid what waits for the GPU in each step: .item(), .cpu(), printing losses."
    )
    remedy = fewer_launches if pressure is None else MORE_CPUS
    yield build_verdict_rated_by_loss(
        VerdictKind.launch_bound,
        steps.own_share * (1 - active),
        (message, remedy),
        limits,
        own_share=steps.own_share,
        activity_share=active,
        measured=measured,
        power_w=mean_of_known(gpu.power_w for gpu in gpus),
        cpu_pressure=pressure,
    )


def detect_memory_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if the bandwidth of the GPUs' memory is nearly used up."""
    gpus = _list_gpus_known_to_be_busy(evidence, limits)
    if not _is_memory_bound(gpus, limits):
        return
    dram, tensor = _mean_dram_activity(gpus), mean_of_known(gpu.tensor_activity for gpu in gpus)
    message = (
        f"The GPUs' memory moved data {format_percentage(dram)} of the time (about 80 % is the most "
        "that is possible)"
    )
    message += "" if tensor is None else f", their tensor cores worked {format_percentage(tensor)}"
    remedy = (
        "Move less: bfloat16, fused kernels (torch.compile, fused optimizers), FlashAttention. "
        "A faster GPU helps by its memory bandwidth, not by its FLOPS."
    )
    yield build_verdict_without_loss(
        VerdictKind.memory_bound,
        VerdictSeverity.low,
        (f"{message}: memory bandwidth limits the run.", remedy),
        dram_activity_share=dram,
        tensor_activity_share=tensor,
    )


def detect_compute_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a remark if the GPUs compute all the time: nothing is wrong."""
    gpus = _list_gpus_known_to_be_busy(evidence, limits)
    if _is_memory_bound(gpus, limits) or _is_much_time_spent_waiting(
        summarize_steps(evidence, limits), limits
    ):
        return
    active, measured = _mean_gpu_activity(gpus)
    if active is None or not _are_gpus_saturated(active, measured, gpus, limits):
        return
    message = (
        f"The GPUs were active {format_percentage(active)} of the time: their speed limits the steps, "
        "and nothing else slows these down."
    )
    remedy = (
        "Nothing has to be done about steps. To be faster: lower precision (bfloat16, FP8), "
        "torch.compile, or more GPUs."
    )
    yield build_verdict_without_loss(
        VerdictKind.compute_bound,
        VerdictSeverity.info,
        (message, remedy),
        activity_share=active,
        measured=measured,
        tensor_activity_share=mean_of_known(gpu.tensor_activity for gpu in gpus),
        power_limit_share=_mean_share_of_power_limit(gpus),
    )


def _are_gpus_saturated(active: float, measured: str, gpus: Sequence[GpuUse], limits: Thresholds) -> bool:
    if measured == "sm_activity":
        return active >= limits.high_sm_activity
    power = _mean_share_of_power_limit(gpus)
    strong = power is not None and power >= limits.high_power_share
    return strong and active >= limits.high_utilization


def _list_gpus_known_to_be_busy(evidence: RunEvidence, limits: Thresholds) -> list[GpuUse]:
    return [
        gpu
        for gpu in list_well_sampled_gpus(evidence, limits)
        if gpu_busy_share(gpu) is not None and not _is_gpu_idle(gpu, limits)
    ]


def _is_much_time_spent_waiting(steps: StepSummary | None, limits: Thresholds) -> bool:
    if steps is None:
        return False
    others = steps.least_waiting_share or 0.0
    return steps.data_loss >= limits.data_share or others >= limits.waiting_share


def _mean_gpu_activity(gpus: Sequence[GpuUse]) -> tuple[float | None, str]:
    """Return the mean activity, and which measurement it is: the better one that is known."""
    active = mean_of_known(gpu.sm_activity for gpu in gpus)
    if active is not None:
        return active, "sm_activity"
    return mean_of_known(gpu.utilization for gpu in gpus), "utilization"


def _mean_dram_activity(gpus: Sequence[GpuUse]) -> float:
    return mean_of_known(gpu.dram_activity for gpu in gpus) or 0.0


def _is_memory_bound(gpus: Sequence[GpuUse], limits: Thresholds) -> bool:
    dram, tensor = _mean_dram_activity(gpus), mean_of_known(gpu.tensor_activity for gpu in gpus)
    return dram >= limits.dram_activity and (tensor is None or tensor < dram)


def _mean_share_of_power_limit(gpus: Sequence[GpuUse]) -> float | None:
    return mean_of_known(
        gpu.power_w / gpu.power_limit_w for gpu in gpus if gpu.power_w is not None and gpu.power_limit_w
    )
