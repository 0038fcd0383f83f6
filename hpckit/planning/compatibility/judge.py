"""All that will not work, or may not, between two machines and a run. Pure.

Here is what both machines have to agree on (versions, the output folder, clocks), what a run may
lack on its node (limits, memory, file systems), and whether NCCL finds a network there:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpckit.model.counted import format_byte_size, format_count
from hpckit.model.environment.facts import (
    EnvironmentComparison,
    EnvironmentFacts,
    FileSystemFacts,
    FolderRole,
)
from hpckit.model.finding import Finding, build_error_finding, build_warning_finding
from hpckit.model.plain import MASK
from hpckit.planning.compatibility.cuda import find_cuda_problems, find_old_pynvml
from hpckit.planning.secrecy import find_secrets_in_environment, is_secret_variable

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


def find_environment_problems(comparison: EnvironmentComparison) -> tuple[Finding, ...]:
    """Return the findings, errors first; the key of each is the name of a fact.

    What is unknown gives no finding.
    """
    found = [
        *find_cuda_problems(comparison),
        *_find_machine_differences(comparison),
        *_find_host_problems(comparison),
        *_find_network_problems(comparison),
        *find_old_pynvml(comparison),
    ]
    return tuple(sorted(found, key=lambda one: not one.is_error))


def _find_machine_differences(comparison: EnvironmentComparison) -> Iterator[Finding]:
    """Yield what differs between both machines, and must not; nothing of one machine alone."""
    if comparison.node is None:
        return
    yield from _find_version_differences(comparison.here, comparison.node, own=comparison.asked.own_python)
    yield from _find_unshared_output_folder(comparison, comparison.node)
    yield from _find_clock_offset(comparison, comparison.node)


def _find_version_differences(
    here: EnvironmentFacts, node: EnvironmentFacts, *, own: bool
) -> Iterator[Finding]:
    if here.python.hpckit != node.python.hpckit:
        yield build_error_finding(
            "hpckit",
            node.python.hpckit,
            f"hpckit is {here.python.hpckit} here and {node.python.hpckit} on {node.host}: the "
            "node reads files that this machine writes",
            f"install the same version for {node.python.executable}",
        )
    if own:  # cluster.python names another one on purpose
        return
    if here.python.version != node.python.version:
        yield build_warning_finding(
            "Python",
            node.python.version,
            f"{node.python.executable} is Python {node.python.version} on {node.host} and "
            f"{here.python.version} here: the path is a different installation there",
            "name one that all nodes share: cluster.python=/path/to/python",
        )
    if here.torch.version and node.torch.version and here.torch.version != node.torch.version:
        yield build_warning_finding(
            "torch",
            node.torch.version,
            f"torch is {node.torch.version} on {node.host} and {here.torch.version} here; runs "
            f"use that of {node.host}",
            "share one environment between nodes, or name it: cluster.python=/path/to/python",
        )


def _find_unshared_output_folder(
    comparison: EnvironmentComparison, node: EnvironmentFacts
) -> Iterator[Finding]:
    if comparison.token is None or node.token == comparison.token:
        return
    found = node.find_file_system(FolderRole.output)
    path = "the output folder" if found is None else found.path
    yield build_error_finding(
        FolderRole.output,
        path,
        f"{path} on {node.host} is not the folder of that name here: a file that was written "
        "here cannot be read there",
        "choose a folder on a file system that all nodes see: output_dir, or $HPCKIT_OUTPUTS",
    )


def _find_clock_offset(comparison: EnvironmentComparison, node: EnvironmentFacts) -> Iterator[Finding]:
    if comparison.clock is None:
        return
    offset = comparison.clock.minimum_offset_s
    if abs(offset) > MOST_OFFSET_S:
        side = "ahead of" if offset > 0 else "behind"
        yield build_warning_finding(
            "clock",
            f"{offset:.1f}",
            f"the clock of {node.host} is at least {abs(offset):.1f} s {side} the one here; "
            f"times in records may be off by that, and more than {MOST_OFFSET_S:g} s confuse "
            "file systems and authentication",
            "the site keeps clocks by NTP (chronyd) on every node",
        )


def _find_network_problems(comparison: EnvironmentComparison) -> Iterator[Finding]:
    if ports := comparison.facts_of_run_machine.network.infiniband_ports:
        yield from _find_infiniband_problems(
            comparison.facts_of_run_machine, format_count(ports, "InfiniBand port")
        )
    yield from _find_nccl_on_loopback_interface(comparison)
    for name in _ON_ONE_NODE:
        value = comparison.facts_of_run_machine.variables.get(name, "")
        if comparison.asked.gpus > 1 and _is_nccl_flag_on(value):
            yield build_warning_finding(
                name,
                value,
                f"{name}={value} on {comparison.facts_of_run_machine.host}: its "
                f"{comparison.asked.gpus} GPUs would exchange gradients by a slower path",
                "remove it, unless it works around a fault of this node",
            )
    network, host = comparison.facts_of_run_machine.network, comparison.facts_of_run_machine.host
    if network.efa_devices and not network.net_plugins:
        yield build_warning_finding(
            "NCCL plugins",
            "none",
            f"{host} has {format_count(network.efa_devices, 'EFA device')}, and no libnccl-net.so "
            "is on the library path: NCCL would use sockets",
            "install aws-ofi-nccl, and put its folder on LD_LIBRARY_PATH (cluster.env or a module)",
        )


def _find_infiniband_problems(facts: EnvironmentFacts, ports: str) -> Iterator[Finding]:
    # NCCL's troubleshooting page: registering memory for RDMA needs an unlimited memlock.
    limit, disabled = facts.limits.memlock, facts.variables.get("NCCL_IB_DISABLE", "")
    if limit is not None and limit != _UNLIMITED:
        yield build_warning_finding(
            "limit memlock",
            limit,
            f"the memlock limit on {facts.host} is {limit // 1024} KiB, and {ports} of it are up: "
            "NCCL may not be able to lock memory for RDMA",
            "the site sets it: LimitMEMLOCK=infinity of slurmd's systemd unit, or "
            "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
        )
    if _is_nccl_flag_on(disabled):
        yield build_warning_finding(
            "NCCL_IB_DISABLE",
            disabled,
            f"NCCL_IB_DISABLE={disabled} on {facts.host}, whose {ports} would be left unused: "
            "nodes would talk through sockets, many times slower",
            "remove it from your shell, cluster.env or env",
        )


def _find_nccl_on_loopback_interface(comparison: EnvironmentComparison) -> Iterator[Finding]:
    facts, nodes = comparison.facts_of_run_machine, comparison.asked.nodes
    value = facts.variables.get("NCCL_SOCKET_IFNAME", "")
    names = [name.strip() for name in value.removeprefix("=").split(",") if name.strip()]
    only_lo = bool(names) and all(name.startswith("lo") for name in names)
    if nodes > 1 and only_lo and not value.startswith("^"):
        yield build_error_finding(
            "NCCL_SOCKET_IFNAME",
            value,
            f"NCCL_SOCKET_IFNAME={value} is the loopback interface, which does not reach the "
            f"other of the {nodes} nodes",
            "name the interface of the cluster's network (`ip -br addr` on a node), or remove it: "
            "NCCL finds one",
        )


def _is_nccl_flag_on(value: str) -> bool:
    """Return whether a variable that is 0 or 1 is set; NCCL reads it as a number."""
    return value.strip().isdigit() and int(value) != 0


def _find_host_problems(comparison: EnvironmentComparison) -> Iterator[Finding]:
    facts = comparison.facts_of_run_machine
    granted, asked = facts.memory_bytes, comparison.asked.memory_bytes
    if granted is not None and asked is not None and granted < asked:
        yield build_warning_finding(
            "memory",
            granted,
            f"{facts.host} grants {format_byte_size(granted)} of memory, and resources.mem_gb asks "
            f"for {format_byte_size(asked)}",
            "lower resources.mem_gb, or choose nodes with more memory",
        )
    limit = facts.limits.nofile
    if limit is not None and 0 <= limit < LEAST_FILES:
        yield build_warning_finding(
            "limit nofile",
            limit,
            f"a process on {facts.host} may have {limit} files open at most; DataLoader workers "
            f"and NCCL may need {LEAST_FILES} or more",
            "the site raises the hard limit (`ulimit -Hn`; for jobs LimitNOFILE of slurmd)",
        )
    yield from _find_small_shared_memory(facts)
    for system in facts.file_systems:
        if system.role != FolderRole.shared_memory:
            yield from _find_low_disk_space(system, facts.host)
    output = facts.find_file_system(FolderRole.output)
    if output is not None and output.writable is False:
        yield build_error_finding(
            output.role,
            output.path,
            f"{output.path} (output_dir) cannot be written on {facts.host}",
            "choose a folder that is yours and that compute nodes mount for writing: output_dir, "
            "or $HPCKIT_OUTPUTS",
        )
    yield from _find_unshared_home(comparison)


def _find_small_shared_memory(facts: EnvironmentFacts) -> Iterator[Finding]:
    found = facts.find_file_system(FolderRole.shared_memory)
    if found is not None and found.size_bytes is not None and found.size_bytes < LEAST_SHM:
        yield build_warning_finding(
            found.role,
            found.size_bytes,
            f"{found.path} of {facts.host} has {format_byte_size(found.size_bytes)}; DataLoader "
            "workers pass batches through it, and end with a bus error when it is full",
            "a container needs --ipc=host or a larger --shm-size; else use fewer workers",
        )


def _find_low_disk_space(found: FileSystemFacts, host: str) -> Iterator[Finding]:
    least = LEAST_FREE_OUTPUT if found.role == FolderRole.output else LEAST_FREE
    if found.free_bytes is not None and found.free_bytes < least:
        yield build_warning_finding(
            found.role,
            found.free_bytes,
            f"{found.path} ({found.role}) on {host} has {format_byte_size(found.free_bytes)} free, "
            f"less than {format_byte_size(least)}",
            "make room (`hpckit clean` shows what can go), or choose another folder",
        )
    if found.inodes and found.free_inodes is not None:
        share = found.free_inodes / found.inodes
        if share < LEAST_INODES:
            yield build_warning_finding(
                found.role,
                found.free_inodes,
                f"{found.path} ({found.role}) on {host} has {found.free_inodes} of "
                f"{found.inodes} inodes left ({share:.1%}): soon no file can be created",
                "remove small files, or choose another folder",
            )


def _find_unshared_home(comparison: EnvironmentComparison) -> Iterator[Finding]:
    if comparison.node is None:
        return
    here = comparison.here.find_file_system(FolderRole.home)
    there = comparison.node.find_file_system(FolderRole.home)
    if here is None or there is None or there.kind not in _LOCAL or here.kind is None:
        return
    # Of the same type and size, it may be one that both sides have, as in containers of one host.
    if (here.kind, here.size_bytes) != (there.kind, there.size_bytes):
        yield build_warning_finding(
            there.role,
            there.kind,
            f"the home folder on {comparison.node.host} is on a disk of that node "
            f"({there.kind}), and not the one here ({here.kind}): environments, caches and "
            "settings in it are different there",
            "keep the Python of runs, data and caches (HF_HOME, TORCH_HOME) on a file system that "
            "all nodes share",
        )


_BEGINNINGS = ("NCCL_", "TORCH_NCCL_", "GLOO_")
_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"})


def list_nccl_and_cuda_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change what NCCL, gloo, CUDA and OpenMP do; secrets are masked."""
    known = find_secrets_in_environment(environ)
    return {
        name: MASK if is_secret_variable(name, value, known) else value
        for name, value in sorted(environ.items())
        if name.startswith(_BEGINNINGS) or name in _NAMES
    }
