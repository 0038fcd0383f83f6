"""All that will not work, or may not, between two machines and a run. Pure.

Here is what both machines have to agree on (versions, the output folder, clocks), what a run may
lack on its node (limits, memory, file systems), and whether NCCL finds a network there:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpckit.model.counted import counted, size_text
from hpckit.model.environment.facts import (
    EnvironmentComparison,
    EnvironmentFacts,
    FileSystemFacts,
    FolderRole,
)
from hpckit.model.finding import Finding, error, warning
from hpckit.model.plain import MASK
from hpckit.planning.compatibility.cuda import bindings_findings, cuda_findings
from hpckit.planning.secrecy import is_secret, known_secrets

MOST_OFFSET_S = 2.0
"""Times of events on several nodes are compared; NTP keeps clocks within milliseconds."""

_UNLIMITED = -1
_ON_ONE_NODE = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
"""They turn off how GPUs of one node reach each other: directly, and through shared memory."""

GIB = 2**30
LEAST_FILES = 4096
"""Of open files: the usual default of 1024 is spent by DataLoader workers, which pass each tensor
as a descriptor (torch.multiprocessing, "Sharing strategies"), and by sockets of NCCL."""
LEAST_SHM = GIB
"""Bytes of /dev/shm, through which DataLoader workers pass batches; containers get 64 MiB by
default (docker run --shm-size)."""
LEAST_FREE_OUTPUT = 10 * GIB
LEAST_FREE = GIB
"""Bytes: a checkpoint of a small model, and what other programs write beside it."""
LEAST_INODES = 0.01
_LOCAL = frozenset({"ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "rootfs"})
"""Types of file systems that belong to one node alone."""


def judge_environment(comparison: EnvironmentComparison) -> tuple[Finding, ...]:
    """Return the findings, errors first; the key of each is the name of a fact.

    What is unknown gives no finding.
    """
    found = [
        *cuda_findings(comparison),
        *_side_findings(comparison),
        *_host_findings(comparison),
        *_network_findings(comparison),
        *bindings_findings(comparison),
    ]
    return tuple(sorted(found, key=lambda one: not one.is_error))


def _side_findings(comparison: EnvironmentComparison) -> Iterator[Finding]:
    """Yield what differs between both machines, and must not; nothing of one machine alone."""
    if comparison.node is None:
        return
    yield from _versions(comparison.here, comparison.node, own=comparison.asked.own_python)
    yield from _token(comparison, comparison.node)
    yield from _clock(comparison, comparison.node)


def _versions(here: EnvironmentFacts, node: EnvironmentFacts, *, own: bool) -> Iterator[Finding]:
    if here.python.hpckit != node.python.hpckit:
        yield error(
            "hpckit",
            node.python.hpckit,
            f"hpckit is {here.python.hpckit} here and {node.python.hpckit} on {node.host}: what "
            "one version freezes the other one reads",
            f"install the same version for {node.python.executable}",
        )
    if own:  # cluster.python names another one on purpose
        return
    if here.python.version != node.python.version:
        yield warning(
            "Python",
            node.python.version,
            f"{node.python.executable} is Python {node.python.version} on {node.host} and "
            f"{here.python.version} here: the path is another installation there",
            "name one that all nodes share: cluster.python=/path/to/python",
        )
    if here.torch.version and node.torch.version and here.torch.version != node.torch.version:
        yield warning(
            "torch",
            node.torch.version,
            f"torch is {node.torch.version} on {node.host} and {here.torch.version} here; runs "
            f"use that of {node.host}",
            "share one environment between nodes, or name it: cluster.python=/path/to/python",
        )


def _token(comparison: EnvironmentComparison, node: EnvironmentFacts) -> Iterator[Finding]:
    if comparison.token is None or node.token == comparison.token:
        return
    found = node.file_system(FolderRole.output)
    path = "the output folder" if found is None else found.path
    yield error(
        FolderRole.output,
        path,
        f"{path} on {node.host} is not the folder of that name here: a file that was written "
        "here cannot be read there",
        "choose a folder on a file system that all nodes see: output_dir, or $HPCKIT_OUTPUTS",
    )


def _clock(comparison: EnvironmentComparison, node: EnvironmentFacts) -> Iterator[Finding]:
    if comparison.clock is None:
        return
    offset = comparison.clock.surely_s
    if abs(offset) > MOST_OFFSET_S:
        side = "ahead of" if offset > 0 else "behind"
        yield warning(
            "clock",
            f"{offset:.1f}",
            f"the clock of {node.host} is at least {abs(offset):.1f} s {side} the one here; "
            f"times in records may be off by that, and more than {MOST_OFFSET_S:g} s confuse "
            "file systems and authentication",
            "the site keeps clocks by NTP (chronyd) on every node",
        )


def _network_findings(comparison: EnvironmentComparison) -> Iterator[Finding]:
    """Yield what keeps NCCL from a network, or slows it down."""
    if ports := comparison.runs.network.infiniband_ports:
        yield from _infiniband(comparison.runs, counted(ports, "InfiniBand port"))
    yield from _loopback(comparison)
    for name in _ON_ONE_NODE:
        value = comparison.runs.variables.get(name, "")
        if comparison.asked.gpus > 1 and _is_on(value):
            yield warning(
                name,
                value,
                f"{name}={value} on {comparison.runs.host}: its {comparison.asked.gpus} GPUs would "
                "exchange gradients by a slower path",
                "remove it, unless it works around a fault of this node",
            )
    network, host = comparison.runs.network, comparison.runs.host
    if network.efa_devices and not network.net_plugins:
        yield warning(
            "NCCL plugins",
            "none",
            f"{host} has {counted(network.efa_devices, 'EFA device')}, and no libnccl-net.so is on "
            "the library path: NCCL would use sockets",
            "install aws-ofi-nccl, and put its folder on LD_LIBRARY_PATH (cluster.env or a module)",
        )


def _infiniband(facts: EnvironmentFacts, ports: str) -> Iterator[Finding]:
    # NCCL's troubleshooting page: registering memory for RDMA needs an unlimited memlock.
    limit, disabled = facts.limits.memlock, facts.variables.get("NCCL_IB_DISABLE", "")
    if limit is not None and limit != _UNLIMITED:
        yield warning(
            "limit memlock",
            limit,
            f"the memlock limit on {facts.host} is {limit // 1024} KiB, and {ports} of it are up: "
            "NCCL may not be able to lock memory for RDMA",
            "the site sets it: LimitMEMLOCK=infinity of slurmd's systemd unit, or "
            "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
        )
    if _is_on(disabled):
        yield warning(
            "NCCL_IB_DISABLE",
            disabled,
            f"NCCL_IB_DISABLE={disabled} on {facts.host}, whose {ports} would be left unused: "
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


def _is_on(value: str) -> bool:
    """Return whether a variable that is 0 or 1 is set; NCCL reads it as a number."""
    return value.strip().isdigit() and int(value) != 0


def _host_findings(comparison: EnvironmentComparison) -> Iterator[Finding]:
    """Yield what a run may run out of on its node."""
    facts = comparison.runs
    granted, asked = facts.memory_bytes, comparison.asked.memory_bytes
    if granted is not None and asked is not None and granted < asked:
        yield warning(
            "memory",
            granted,
            f"{facts.host} grants {size_text(granted)} of memory, and resources.mem_gb asks for "
            f"{size_text(asked)}",
            "lower resources.mem_gb, or choose nodes with more memory",
        )
    limit = facts.limits.nofile
    if limit is not None and 0 <= limit < LEAST_FILES:
        yield warning(
            "limit nofile",
            limit,
            f"a process on {facts.host} may have {limit} files open at most; DataLoader workers "
            f"and NCCL may need {LEAST_FILES} or more",
            "the site raises the hard limit (`ulimit -Hn`; for jobs LimitNOFILE of slurmd)",
        )
    yield from _shared_memory(facts)
    for system in facts.file_systems:
        if system.role != FolderRole.shared_memory:
            yield from _room(system, facts.host)
    output = facts.file_system(FolderRole.output)
    if output is not None and output.writable is False:
        yield error(
            output.role,
            output.path,
            f"{output.path} (output_dir) cannot be written on {facts.host}",
            "choose a folder that is yours and that compute nodes mount for writing: output_dir, "
            "or $HPCKIT_OUTPUTS",
        )
    yield from _home(comparison)


def _shared_memory(facts: EnvironmentFacts) -> Iterator[Finding]:
    found = facts.file_system(FolderRole.shared_memory)
    if found is not None and found.size_bytes is not None and found.size_bytes < LEAST_SHM:
        yield warning(
            found.role,
            found.size_bytes,
            f"{found.path} of {facts.host} has {size_text(found.size_bytes)}; DataLoader workers "
            f"pass batches through it, and end with a bus error when it is full",
            "a container needs --ipc=host or a larger --shm-size; else use fewer workers",
        )


def _room(found: FileSystemFacts, host: str) -> Iterator[Finding]:
    least = LEAST_FREE_OUTPUT if found.role == FolderRole.output else LEAST_FREE
    if found.free_bytes is not None and found.free_bytes < least:
        yield warning(
            found.role,
            found.free_bytes,
            f"{found.path} ({found.role}) on {host} has {size_text(found.free_bytes)} free, "
            f"less than {size_text(least)}",
            "make room (`hpckit clean` shows what can go), or choose another folder",
        )
    if found.inodes and found.free_inodes is not None:
        share = found.free_inodes / found.inodes
        if share < LEAST_INODES:
            yield warning(
                found.role,
                found.free_inodes,
                f"{found.path} ({found.role}) on {host} has {found.free_inodes} of "
                f"{found.inodes} inodes left ({share:.1%}): soon no file can be made",
                "remove small files, or choose another folder",
            )


def _home(comparison: EnvironmentComparison) -> Iterator[Finding]:
    if comparison.node is None:
        return
    here = comparison.here.file_system(FolderRole.home)
    there = comparison.node.file_system(FolderRole.home)
    if here is None or there is None or there.kind not in _LOCAL or here.kind is None:
        return
    # Of the same type and size, it may be one that both sides have, as in containers of one host.
    if (here.kind, here.size_bytes) != (there.kind, there.size_bytes):
        yield warning(
            there.role,
            there.kind,
            f"the home folder on {comparison.node.host} is on a disk of that node "
            f"({there.kind}), and not the one here ({here.kind}): environments, caches and "
            "settings in it are others there",
            "keep the Python of runs, data and caches (HF_HOME, TORCH_HOME) on a file system that "
            "all nodes share",
        )


_BEGINNINGS = ("NCCL_", "TORCH_NCCL_", "GLOO_")
_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"})


def chosen_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change what NCCL, gloo, CUDA and OpenMP do; secrets are masked."""
    known = known_secrets(environ)
    return {
        name: MASK if is_secret(name, value, known) else value
        for name, value in sorted(environ.items())
        if name.startswith(_BEGINNINGS) or name in _NAMES
    }
