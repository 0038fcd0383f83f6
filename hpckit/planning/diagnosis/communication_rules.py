"""How long ranks wait for each other in collectives, and over which network. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.model.diagnosis.verdict import Verdict, VerdictKind, VerdictSeverity
from hpckit.model.parallel.layout import Layout
from hpckit.planning.diagnosis.evidence import RunEvidence, judged_hosts, mean, step_summary
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.planning.diagnosis.words import duration, gigabytes, lossless, lossy, share


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
        (f"{message}{traffic}.", _less_communication(evidence, len(nodes))),
        limits,
        waiting_share=waiting,
        step_s=steps.step_s,
        nodes=len(nodes),
        network_bytes_per_s=network,
        nvlink_bytes_per_s=mean(one.nvlink_bytes_per_s for one in evidence.gpus),
        pcie_bytes_per_s=mean(one.pcie_bytes_per_s for one in evidence.gpus),
    )


def _less_communication(evidence: RunEvidence, nodes: int) -> str:
    words = _by_layout(evidence.settings.layout or Layout())
    if all(one.gpu is None for one in evidence.ranks):
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
