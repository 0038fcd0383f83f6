"""What the run's time went to besides training: waits for data and ranks, saves, restarts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpckit.model.counted import counted
from hpckit.model.diagnosis.verdict import Verdict, VerdictKind, VerdictSeverity
from hpckit.model.failure import Cause, Trait
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.parallel.layout import Layout
from hpckit.planning.diagnosis.evidence import (
    RunEvidence,
    TimeShares,
    busy,
    judged_gpus,
    judged_hosts,
    mean,
    step_summary,
)
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.planning.diagnosis.words import duration, gigabytes, lossless, lossy, share


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
        (message, _rarer(times, better, evidence.settings)),
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


def _rarer(times: TimeShares, better: float | None, chosen: LaunchConfig) -> str:
    key = _interval_key(chosen)
    if better is not None:
        left = f"set {key}=null" if key else "leave the interval to hpckit"
        return (
            f"Save every {duration(better)}{_as_set(times, better, chosen)}, which is best for "
            f"how often this run failed; or {left}, so that the interval follows from the measured "
            "cost."
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


def _interval_key(chosen: LaunchConfig) -> str:
    """Return the key by which the user set how often to save; empty if hpckit chooses."""
    if chosen.checkpoint.interval_steps is not None:
        return "checkpoint.interval_steps"
    return "" if chosen.checkpoint.interval_min is None else "checkpoint.interval_min"


def _as_set(times: TimeShares, better: float, chosen: LaunchConfig) -> str:
    """Return an interval as the user set it: `, checkpoint.interval_steps=40`."""
    interval_steps = chosen.checkpoint.interval_steps
    if interval_steps is not None and times.interval_s:
        steps = max(round(interval_steps * better / times.interval_s), 1)
        return f" (checkpoint.interval_steps={steps})"
    if chosen.checkpoint.interval_min is not None:
        return f" (checkpoint.interval_min={better / 60:.2g})"
    return ""


def restarts(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
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
        f"Restarts took {duration(times.restart_s)} and repeated steps "
        f"{duration(times.redone_s)}: {share(lost)} of {duration(times.running_s)} "
        f"({', '.join(counts)})."
    )
    if _unnoticed(times):
        message += f" It took {duration(times.unnoticed_s)} of this to notice the failures."
    yield lossy(
        VerdictKind.restarts,
        lost,
        (message, _cheaper(times, evidence.settings)),
        limits,
        lost_share=lost,
        restart_s=times.restart_s,
        unnoticed_s=times.unnoticed_s,
        redone_s=times.redone_s,
        failures=sum(times.failures.values()),
        planned=times.planned,
        running_s=times.running_s,
    )


def _unnoticed(times: TimeShares) -> bool:
    """Return whether waiting for failures to be noticed is the largest part of what was lost."""
    return times.unnoticed_s > (times.restart_s + times.redone_s) / 2


def _cheaper(times: TimeShares, chosen: LaunchConfig) -> str:
    cause = next(iter(times.failures), None)
    first = "" if cause is None else f"Its most frequent failure was {cause}: {_where(cause)}. "
    if _unnoticed(times):
        return (
            f"{first}Notice it sooner: a hang is sure after runtime.hang_min_s without a step "
            "(runtime.hang_first_s before steps are known), a collective gives up at the time-out"
            " of its process group. While a run stands still, hpckit stacks shows where."
        )
    if times.redone_s > times.restart_s:
        how = "checkpoint.interval_min, or a checkpoint.mtbf_hours that is as low as measured"
        if key := _interval_key(chosen):
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


def _where(cause: str) -> str:
    """Return where one sees why runs failed like that."""
    if Cause(cause).has(Trait.external) and not Cause(cause).planned:
        return "hpckit report shows when and where; it came from outside, so logs do not show why"
    return "hpckit logs shows why"


_HALF_BUSY = 0.5
_WAITING_FOR_DISKS = 0.2
"""Share of time in which some task waited for input or output: the storage is slow."""


def input_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if ranks wait for data."""
    steps = step_summary(evidence, limits)
    if steps is None or steps.data_share is None or steps.data_loss < limits.data_share:
        return
    gpus = mean(map(busy, judged_gpus(evidence, limits)))
    data_s = steps.data_share * steps.step_s
    message = (
        f"Ranks waited {share(steps.data_share)} of each step for data "
        f"({duration(data_s)} of {duration(steps.step_s)})"
    )
    message += "." if gpus is None else f"; the GPUs were busy {share(gpus)}."
    yield lossy(
        VerdictKind.input_bound,
        steps.data_loss,
        (message, _faster_input(evidence, limits)),
        limits,
        data_share=steps.data_share,
        data_s=data_s,
        step_s=steps.step_s,
        gpu_busy_share=gpus,
        **_input_side(evidence, limits),
    )


def _input_side(evidence: RunEvidence, limits: Thresholds) -> dict[str, float | None]:
    hosts = judged_hosts(evidence, limits)
    return {
        "cores": mean(host.cores for host in hosts),
        "cores_busy": mean(host.cores_busy for host in hosts),
        "io_pressure_share": mean(host.io_pressure for host in hosts),
    }


def _faster_input(evidence: RunEvidence, limits: Thresholds) -> str:
    side = _input_side(evidence, limits)
    cores, used, pressure = side["cores"], side["cores_busy"], side["io_pressure_share"]
    if pressure is not None and pressure >= _WAITING_FOR_DISKS:
        return (
            f"Stage the data on the node's disk, or in fewer and larger files: tasks waited "
            f"{share(pressure)} of the time for storage."
        )
    if cores is None or used is None:
        return (
            "Raise num_workers or prefetch_factor of the DataLoader, or stage the data on the "
            "node's disk."
        )
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


def communication_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield verdicts if ranks wait long in collectives, or if these use a slow network."""
    yield from _long_waits(evidence, limits)
    yield from _slow_network(evidence)


def _slow_network(evidence: RunEvidence) -> Iterator[Verdict]:
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
    yield lossless(
        VerdictKind.communication_bound,
        VerdictSeverity.high,
        (message, remedy),
        network=nccl.network,
        infiniband_ports=ports,
        nccl_version=nccl.version,
        reason=nccl.reason or None,
    )


def _long_waits(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if even the rank that waits least waits long in collectives."""
    steps = step_summary(evidence, limits)
    waiting = None if steps is None else steps.least_waiting_share
    if steps is None or waiting is None or waiting < limits.waiting_share:
        return
    nodes = {rank.node for rank in evidence.ranks}
    hosts = judged_hosts(evidence, limits)
    network = mean(host.network_bytes_per_s for host in hosts)
    message = (
        f"Every one of {steps.ranks} ranks waited {share(waiting)} or more of each step in "
        f"collectives ({duration(waiting * steps.step_s)} of {duration(steps.step_s)})"
    )
    traffic = "" if network is None else f"; {gigabytes(network)}/s per node over the network"
    yield lossy(
        VerdictKind.communication_bound,
        waiting,
        (f"{message}{traffic}.", _less_communication(evidence, len(nodes))),
        limits,
        waiting_share=waiting,
        step_s=steps.step_s,
        nodes=len(nodes),
        network_bytes_per_s=network,
        nvlink_bytes_per_s=mean(gpu.nvlink_bytes_per_s for gpu in evidence.gpus),
        pcie_bytes_per_s=mean(gpu.pcie_bytes_per_s for gpu in evidence.gpus),
    )


def _less_communication(evidence: RunEvidence, nodes: int) -> str:
    words = _by_layout(evidence.layout or Layout())
    if all(rank.gpu is None for rank in evidence.ranks):
        return (
            f"{words} Ranks on CPUs also wait for each other if they share cores: take fewer of "
            "them (resources.tasks_per_node). What they wait says little of GPUs."
        )
    if nodes > 1:
        return f"{words} See with NCCL_DEBUG=INFO that NCCL uses the fast network (NET/IB)."
    return f"{words} See with `nvidia-smi topo -m` that the GPUs are connected by NVLink."


def _by_layout(layout: Layout) -> str:
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
