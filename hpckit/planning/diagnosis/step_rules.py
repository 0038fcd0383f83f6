"""What the steps wait for: data, or the other ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.model.diagnosis.verdict import Verdict, VerdictKind, VerdictSeverity
from hpckit.planning.diagnosis.evidence import RunEvidence
from hpckit.planning.diagnosis.summary import (
    busy,
    judged_gpus,
    judged_hosts,
    mean,
    step_summary,
)
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.planning.diagnosis.words import duration, gigabytes, lossless, lossy, share

_HALF_BUSY = 0.5
_WAITING_FOR_DISKS = 0.2
"""Share of time in which some task waited for input or output: the storage is slow."""


def input_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if ranks wait for data."""
    steps = step_summary(evidence, limits)
    if steps is None or steps.data_share is None or steps.data_share < limits.data_share:
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
        steps.data_share,
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
        "cores": mean(one.cores for one in hosts),
        "cores_busy": mean(one.cores_busy for one in hosts),
        "io_pressure_share": mean(one.io_pressure for one in hosts),
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
    ports = max((one.infiniband_ports or 0 for one in evidence.hosts), default=0)
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
    nodes = {one.node for one in evidence.ranks}
    hosts = judged_hosts(evidence, limits)
    network = mean(one.network_bytes_per_s for one in hosts)
    message = (
        f"Every one of {steps.ranks} ranks waited {share(waiting)} or more of each step in "
        f"collectives ({duration(waiting * steps.step_s)} of {duration(steps.step_s)})"
    )
    traffic = "" if network is None else f"; {gigabytes(network)}/s per node over the network"
    yield lossy(
        VerdictKind.communication_bound,
        waiting,
        (f"{message}{traffic}.", _less_communication(len(nodes))),
        limits,
        waiting_share=waiting,
        step_s=steps.step_s,
        nodes=len(nodes),
        network_bytes_per_s=network,
        nvlink_bytes_per_s=mean(one.nvlink_bytes_per_s for one in evidence.gpus),
        pcie_bytes_per_s=mean(one.pcie_bytes_per_s for one in evidence.gpus),
    )


def _less_communication(nodes: int) -> str:
    words = (
        "Accumulate gradients over several batches (no_sync) or raise the batch of a rank, "
        "communicate in bfloat16, and overlap it with the backward pass (DDP's bucket_cap_mb)"
    )
    if nodes > 1:
        return f"{words}; see with NCCL_DEBUG=INFO that NCCL uses the fast network (NET/IB)."
    return f"{words}; see with `nvidia-smi topo -m` that the GPUs are connected by NVLink."
