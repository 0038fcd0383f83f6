"""Whether NCCL will find the network of a node, and be allowed to use it. Pure.

What the variables mean: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.model.counted import counted
from hpckit.model.environment.comparison import EnvironmentComparison
from hpckit.model.finding import Finding, error, warning

_UNLIMITED = -1
_ON_ONE_NODE = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
"""They turn off how GPUs of one node reach each other: directly, and through shared memory."""


def network_findings(comparison: EnvironmentComparison) -> Iterator[Finding]:
    """Yield what keeps NCCL from a network, or slows it down."""
    yield from _memlock(comparison)
    yield from _infiniband_disabled(comparison)
    yield from _loopback(comparison)
    yield from _disabled_on_node(comparison)
    yield from _efa(comparison)


def _memlock(comparison: EnvironmentComparison) -> Iterator[Finding]:
    # NCCL's troubleshooting page: registering memory for RDMA needs an unlimited memlock.
    facts = comparison.runs
    limit = facts.limits.memlock
    if facts.network.infiniband_ports and limit is not None and limit != _UNLIMITED:
        yield warning(
            "limit memlock",
            limit,
            f"the memlock limit on {facts.host} is {limit // 1024} KiB, and "
            f"{counted(facts.network.infiniband_ports, 'InfiniBand port')} of it are up: NCCL may "
            "not be able to lock memory for RDMA",
            "the site sets it: LimitMEMLOCK=infinity of slurmd's systemd unit, or "
            "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
        )


def _infiniband_disabled(comparison: EnvironmentComparison) -> Iterator[Finding]:
    facts = comparison.runs
    value = facts.variables.get("NCCL_IB_DISABLE", "")
    if facts.network.infiniband_ports and _is_on(value):
        yield warning(
            "NCCL_IB_DISABLE",
            value,
            f"NCCL_IB_DISABLE={value} on {facts.host}, whose "
            f"{counted(facts.network.infiniband_ports, 'InfiniBand port')} would be left unused: "
            "nodes would talk through sockets, many times slower",
            "remove it from your shell, cluster.env or env",
        )


def _loopback(comparison: EnvironmentComparison) -> Iterator[Finding]:
    facts, nodes = comparison.runs, comparison.asked.nodes
    value = facts.variables.get("NCCL_SOCKET_IFNAME", "")
    names = [name.strip() for name in value.removeprefix("=").split(",") if name.strip()]
    only_lo = bool(names) and all(name.startswith("lo") for name in names)
    if nodes > 1 and only_lo and not value.startswith("^"):
        yield error(
            "NCCL_SOCKET_IFNAME",
            value,
            f"NCCL_SOCKET_IFNAME={value} names the loopback interface, by which no other of the "
            f"{nodes} nodes can be reached",
            "name the interface of the cluster's network (`ip -br addr` on a node), or remove it: "
            "NCCL finds one",
        )


def _disabled_on_node(comparison: EnvironmentComparison) -> Iterator[Finding]:
    facts = comparison.runs
    for name in _ON_ONE_NODE:
        value = facts.variables.get(name, "")
        if comparison.asked.gpus > 1 and _is_on(value):
            yield warning(
                name,
                value,
                f"{name}={value} on {facts.host}: its {comparison.asked.gpus} GPUs would exchange "
                "gradients by a slower path",
                "remove it, unless it works around a fault of this node",
            )


def _efa(comparison: EnvironmentComparison) -> Iterator[Finding]:
    network = comparison.runs.network
    if network.efa_devices and not network.net_plugins:
        yield warning(
            "NCCL plugins",
            "none",
            f"{comparison.runs.host} has {counted(network.efa_devices, 'EFA device')}, and no "
            "libnccl-net.so is on the library path: NCCL would use sockets",
            "install aws-ofi-nccl, and put its folder on LD_LIBRARY_PATH (cluster.env or a module)",
        )


def _is_on(value: str) -> bool:
    """Return whether a variable that is 0 or 1 is set; NCCL reads it as a number."""
    return value.strip().isdigit() and int(value) != 0
