"""What the run's time went to besides training: waits for data and ranks, saves, restarts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpckit.model.counted import format_count
from hpckit.model.diagnosis.verdict import Verdict, VerdictKind, VerdictSeverity
from hpckit.model.failure import Cause, Trait
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.parallel.layout import Layout
from hpckit.planning.diagnosis.evidence import (
    RunEvidence,
    TimeShares,
    gpu_busy_share,
    list_well_sampled_gpus,
    list_well_sampled_hosts,
    mean_of_known,
    summarize_steps,
)
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.planning.diagnosis.words import (
    build_verdict_rated_by_loss,
    build_verdict_without_loss,
    format_duration,
    format_gigabytes,
    format_percentage,
)


def detect_checkpoint_overhead(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if training stood still for saves for long."""
    times = evidence.times
    if times is None or times.running_s < limits.run_s or times.saves < limits.saves:
        return
    stalled = times.checkpoint_s / times.running_s
    if stalled < limits.checkpoint_share:
        return
    each = times.save_s if times.save_s is not None else times.checkpoint_s / times.saves
    message = (
        f"Checkpoint stalls took {format_percentage(stalled)} of {format_duration(times.running_s)} "
        f"({format_count(times.saves, 'save')} of {format_duration(each)} each)."
    )
    better = _optimal_save_interval_if_longer(times)
    yield build_verdict_rated_by_loss(
        VerdictKind.checkpoint_overhead,
        stalled,
        (message, _suggest_rarer_saves(times, better, evidence.settings)),
        limits,
        checkpoint_share=stalled,
        saves=times.saves,
        save_s=each,
        interval_s=times.interval_s,
        better_interval_s=better,
        running_s=times.running_s,
    )


def _optimal_save_interval_if_longer(times: TimeShares) -> float | None:
    """Return Young's best time between saves, sqrt(2 w M), if it is longer than the present one.

    Source: Young, Communications of the ACM 17 (1974).
    """
    if times.save_s is None or times.mtbf_s is None or times.interval_s is None:
        return None
    best = math.sqrt(2 * times.save_s * times.mtbf_s)
    return best if best > times.interval_s else None


def _suggest_rarer_saves(times: TimeShares, better: float | None, chosen: LaunchConfig) -> str:
    key = _find_save_interval_key(chosen)
    if better is not None:
        left = f"set {key}=null" if key else "leave the interval to hpckit"
        return (
            f"Save every {format_duration(better)}{_format_save_interval(times, better, chosen)}, "
            f"which is best for how often this run failed; or {left}, so that the interval follows "
            "from the measured cost."
        )
    if key:
        return (
            f"Save less often (a larger {key}), or set {key}=null: the interval then follows from "
            "the measured cost and checkpoint.mtbf_hours. Or save to faster storage: "
            "checkpoint.dir."
        )
    return (
        "Save to faster storage: checkpoint.dir. The interval follows from the measured cost and "
        "checkpoint.mtbf_hours: if failures are rarer, set that higher."
    )


def _find_save_interval_key(chosen: LaunchConfig) -> str:
    """Return the key by which the user set how often to save; empty if hpckit chooses."""
    if chosen.checkpoint.interval_steps is not None:
        return "checkpoint.interval_steps"
    return "" if chosen.checkpoint.interval_min is None else "checkpoint.interval_min"


def _format_save_interval(times: TimeShares, better: float, chosen: LaunchConfig) -> str:
    """Return an interval as the user set it: `, checkpoint.interval_steps=40`."""
    interval_steps = chosen.checkpoint.interval_steps
    if interval_steps is not None and times.interval_s:
        steps = max(round(interval_steps * better / times.interval_s), 1)
        return f" (checkpoint.interval_steps={steps})"
    if chosen.checkpoint.interval_min is not None:
        return f" (checkpoint.interval_min={better / 60:.2g})"
    return ""


def detect_costly_restarts(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if restarts and repeated steps took long."""
    times = evidence.times
    if times is None or times.running_s < limits.run_s:
        return
    interruptions = sum(times.failures.values()) + times.planned
    lost = (times.restart_s + times.redone_s) / times.running_s
    if not interruptions or lost < limits.restart_share:
        return
    counts = [f"{count} {cause}" for cause, count in times.failures.items()]
    counts += [f"{times.planned} planned"] if times.planned else []
    message = (
        f"Restarts took {format_duration(times.restart_s)} and repeated steps "
        f"{format_duration(times.redone_s)}: {format_percentage(lost)} of "
        f"{format_duration(times.running_s)} ({', '.join(counts)})."
    )
    if _is_most_time_lost_to_detection(times):
        message += f" It took {format_duration(times.unnoticed_s)} of this to notice the failures."
    yield build_verdict_rated_by_loss(
        VerdictKind.restarts,
        lost,
        (message, _suggest_cheaper_restarts(times, evidence.settings)),
        limits,
        lost_share=lost,
        restart_s=times.restart_s,
        unnoticed_s=times.unnoticed_s,
        redone_s=times.redone_s,
        failures=sum(times.failures.values()),
        planned=times.planned,
        running_s=times.running_s,
    )


def _is_most_time_lost_to_detection(times: TimeShares) -> bool:
    return times.unnoticed_s > (times.restart_s + times.redone_s) / 2


def _suggest_cheaper_restarts(times: TimeShares, chosen: LaunchConfig) -> str:
    cause = next(iter(times.failures), None)
    first = (
        ""
        if cause is None
        else f"Its most frequent failure was {cause}: {_suggest_command_showing_cause(cause)}. "
    )
    if _is_most_time_lost_to_detection(times):
        return (
            f"{first}Notice it sooner: a hang is sure after runtime.hang_min_s without a step "
            "(runtime.hang_first_s before steps are known), a collective gives up at the time-out"
            " of its process group. While a run stands still, hpckit stacks shows where."
        )
    if times.redone_s > times.restart_s:
        how = "checkpoint.interval_min, or a checkpoint.mtbf_hours that is as low as measured"
        if key := _find_save_interval_key(chosen):
            now = chosen.checkpoint.interval_steps or chosen.checkpoint.interval_min
            how = f"a smaller {key} than {now:g}"
        return f"{first}Save more often, so that less has to be repeated: {how}."
    caches = "keep the caches of torch.compile (TORCHINDUCTOR_CACHE_DIR)"
    if chosen.cluster.kind is ClusterKind.local:
        return f"{first}Shorten the start: keep data on a local disk, and {caches}."
    # A spare takes the place of a lost node; a preemption takes all of them.
    helps = not chosen.resources.spare_nodes and bool(times.failures)
    spare = "" if not helps else ", and keep a spare node: resources.spare_nodes=1"
    return f"{first}Shorten the start: stage data and containers on the node, {caches}{spare}."


def _suggest_command_showing_cause(cause: str) -> str:
    if Cause(cause).has_trait(Trait.external) and not Cause(cause).planned:
        return "hpckit report shows when and where; it came from outside, so logs do not show why"
    return "hpckit logs shows why"


_HALF_BUSY = 0.5
_WAITING_FOR_DISKS = 0.2
"""Share of time in which some task waited for input or output: the storage is slow."""


def detect_input_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if ranks wait for data."""
    steps = summarize_steps(evidence, limits)
    if steps is None or steps.data_share is None or steps.data_loss < limits.data_share:
        return
    gpus = mean_of_known(map(gpu_busy_share, list_well_sampled_gpus(evidence, limits)))
    data_s = steps.data_share * steps.step_s
    message = (
        f"Ranks waited {format_percentage(steps.data_share)} of each step for data "
        f"({format_duration(data_s)} of {format_duration(steps.step_s)})"
    )
    message += "." if gpus is None else f"; the GPUs were busy {format_percentage(gpus)}."
    yield build_verdict_rated_by_loss(
        VerdictKind.input_bound,
        steps.data_loss,
        (message, _suggest_faster_input(evidence, limits)),
        limits,
        data_share=steps.data_share,
        data_s=data_s,
        step_s=steps.step_s,
        gpu_busy_share=gpus,
        **_mean_host_load(evidence, limits),
    )


def _mean_host_load(evidence: RunEvidence, limits: Thresholds) -> dict[str, float | None]:
    hosts = list_well_sampled_hosts(evidence, limits)
    return {
        "cores": mean_of_known(host.cores for host in hosts),
        "cores_busy": mean_of_known(host.cores_busy for host in hosts),
        "io_pressure_share": mean_of_known(host.io_pressure for host in hosts),
    }


def _suggest_faster_input(evidence: RunEvidence, limits: Thresholds) -> str:
    side = _mean_host_load(evidence, limits)
    cores, used, pressure = side["cores"], side["cores_busy"], side["io_pressure_share"]
    if pressure is not None and pressure >= _WAITING_FOR_DISKS:
        return (
            f"Stage the data on the node's disk, or in fewer and larger files: tasks waited "
            f"{format_percentage(pressure)} of the time for storage."
        )
    if cores is None or used is None:
        return "Raise num_workers or prefetch_factor of the DataLoader, or stage the data on the node's disk."
    counts = f"{used:.0f} of {cores:.0f} CPUs of a node were busy"
    if used > _HALF_BUSY * cores:
        return (
            "Ask for more CPUs (resources.cpus_per_task) and as many workers, or do less work "
            f"for each sample, such as decoding beforehand ({counts})."
        )
    return (
        f"Raise num_workers or prefetch_factor of the DataLoader ({counts}), or stage the data on "
        "the node's disk."
    )


def detect_communication_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield verdicts if ranks wait long in collectives, or if these use a slow network."""
    yield from _detect_collective_waits(evidence, limits)
    yield from _detect_slow_network(evidence)


def _detect_slow_network(evidence: RunEvidence) -> Iterator[Verdict]:
    """Yield a verdict if NCCL uses sockets although the nodes have InfiniBand."""
    ports = max((host.infiniband_ports or 0 for host in evidence.hosts), default=0)
    nccl = evidence.nccl
    if nccl is None or not nccl.uses_sockets or not ports:
        return
    why = f" NCCL says: {nccl.reason}." if nccl.reason else ""
    message = (
        f"NCCL connects the nodes over sockets, though {ports} InfiniBand ports of a node are "
        f"active: collectives between nodes take several times as long.{why}"
    )
    remedy = (
        "Let NCCL find the adapters: libibverbs in the container or environment, no "
        "NCCL_IB_DISABLE=1, NCCL_IB_HCA and NCCL_SOCKET_IFNAME as the site says; memlock "
        "unlimited (ulimit -l)."
    )
    yield build_verdict_without_loss(
        VerdictKind.communication_bound,
        VerdictSeverity.high,
        (message, remedy),
        network=nccl.network,
        infiniband_ports=ports,
        nccl_version=nccl.version,
        reason=nccl.reason or None,
    )


def _detect_collective_waits(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if even the rank that waits least waits long in collectives."""
    steps = summarize_steps(evidence, limits)
    waiting = None if steps is None else steps.least_waiting_share
    if steps is None or waiting is None or waiting < limits.waiting_share:
        return
    nodes = {rank.node for rank in evidence.ranks}
    hosts = list_well_sampled_hosts(evidence, limits)
    network = mean_of_known(host.network_bytes_per_s for host in hosts)
    message = (
        f"Every one of {steps.ranks} ranks waited {format_percentage(waiting)} or more of each step in "
        f"collectives ({format_duration(waiting * steps.step_s)} of "
        f"{format_duration(steps.step_s)})"
    )
    traffic = "" if network is None else f"; {format_gigabytes(network)}/s per node over the network"
    yield build_verdict_rated_by_loss(
        VerdictKind.communication_bound,
        waiting,
        (f"{message}{traffic}.", _suggest_less_communication(evidence, len(nodes))),
        limits,
        waiting_share=waiting,
        step_s=steps.step_s,
        nodes=len(nodes),
        network_bytes_per_s=network,
        nvlink_bytes_per_s=mean_of_known(gpu.nvlink_bytes_per_s for gpu in evidence.gpus),
        pcie_bytes_per_s=mean_of_known(gpu.pcie_bytes_per_s for gpu in evidence.gpus),
    )


def _suggest_less_communication(evidence: RunEvidence, nodes: int) -> str:
    words = _suggest_layout_change(evidence.layout or Layout())
    if all(rank.gpu is None for rank in evidence.ranks):
        return (
            f"{words} Ranks on CPUs also wait for each other if they share cores: take fewer of "
            "them (resources.tasks_per_node). Their waits say little about GPUs."
        )
    if nodes > 1:
        return f"{words} See with NCCL_DEBUG=INFO that NCCL uses the fast network (NET/IB)."
    return f"{words} See with `nvidia-smi topo -m` that the GPUs are connected by NVLink."


def _suggest_layout_change(layout: Layout) -> str:
    """Return what makes the axes of a layout communicate less, the one that does so most first."""
    if layout.is_data_parallel:
        return (
            "Raise the batch of a rank, in parts if its memory is too small "
            "(parallel.microbatches; no_sync in a loop of your own), communicate in bfloat16, and "
            "overlap it with the backward pass (DDP's bucket_cap_mb)."
        )
    found = []
    if layout.tensor > 1:
        found.append("Take a smaller parallel.tensor: it communicates several times in each layer.")
    if layout.context > 1:
        found.append("Take a smaller parallel.context: each layer passes on keys and values.")
    if layout.pipeline > 1:
        found.append(
            f"Take more parallel.microbatches: of {layout.pipeline} stages each waits for the "
            f"others during {layout.pipeline - 1} parts of the batch, however many there are."
        )
    if layout.shard > 1:
        found.append(
            "Give a rank more rows of the batch, or shard over fewer ranks (parallel.shard; "
            "parallel=hsdp shards within a node): each pass gathers all parameters."
        )
    return " ".join(found)
