"""All facts of the machine that this process runs on, but those that only Slurm's programs know."""

from __future__ import annotations

import errno
import math
import os
import platform
import re
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from hpckit.model.environment.facts import (
    EnvironmentFacts,
    FabricPort,
    FileSystemFacts,
    FolderRole,
    GpuFacts,
    NetworkFacts,
    NetworkInterface,
    NodeLinks,
    ProcessLimits,
    PythonFacts,
    TorchFacts,
)
from hpckit.model.telemetry.vocabulary import HostGauge
from hpckit.observe.gpus import pci_sysfs_folder, read_driver_and_gpus
from hpckit.observe.nvml.bindings import find_deprecated_pynvml
from hpckit.observe.sysfs import (
    find_infiniband_ports,
    is_infiniband_port_active,
    list_folder,
    read_integer_file,
    read_numa_node,
    read_small_file,
    sum_infiniband_ports,
)
from hpckit.patterns import lazy_pattern
from hpckit.record.process import this_host
from hpckit.values import replace

_PLUGIN = "libnccl-net*.so*"
_FABRIC = "libfabric.so*"
_USUAL = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")
"""Searched after LD_LIBRARY_PATH, together with where AWS installs its libraries."""
_OF_AWS = (
    *("opt/amazon/efa/lib", "opt/amazon/efa/lib64", "opt/aws-ofi-nccl/lib"),
    *("opt/amazon/ofi-nccl/lib", "opt/amazon/ofi-nccl/lib64"),
    *("opt/amazon/ofi-nccl/lib/x86_64-linux-gnu", "opt/amazon/ofi-nccl/lib/aarch64-linux-gnu"),
)


def read_machine_facts(
    environ: Mapping[str, str],
    folders: Mapping[FolderRole, Path],
    *,
    hpckit: str,
    torch: TorchFacts,
    variables: Mapping[str, str],
    at: datetime,
) -> EnvironmentFacts:
    """Return the facts of this machine, with these folders and the usual ones.

    Parameters: `hpckit` is its version, `variables` those that are worth showing.
    """
    looked_at = {
        **folders,
        FolderRole.home: Path(environ.get("HOME") or "/"),
        FolderRole.temporary: Path(environ.get("TMPDIR") or "/tmp"),  # noqa: S108  # only looked at
        FolderRole.shared_memory: Path("/dev/shm"),  # noqa: S108  # likewise
    }
    return EnvironmentFacts(
        host=this_host(),
        system=read_distribution_name(),
        kernel=platform.release(),
        cpus=count_granted_cpus(),
        memory_bytes=read_granted_memory(),
        python=PythonFacts(
            version=platform.python_version(),
            executable=sys.executable,
            hpckit=hpckit,
            old_pynvml=find_deprecated_pynvml(),
        ),
        torch=torch,
        driver=read_driver_and_gpus(environ),
        network=read_networks_usable_by_nccl(environ),
        limits=read_process_limits(),
        file_systems=read_file_systems(looked_at),
        variables=dict(variables),
        at=at,
    )


def read_networks_usable_by_nccl(environ: Mapping[str, str], root: Path = Path("/")) -> NetworkFacts:
    """Return which networks NCCL could use here, and its plugins for them.

    Plugins are searched on LD_LIBRARY_PATH and in the usual folders of libraries. EFA devices are
    counted apart: they appear among those of InfiniBand, but NCCL uses them by a plugin alone.
    """
    devices = list_folder(root / "sys/class/infiniband")
    drivers = {device: device / "device" / "driver" for device in devices}
    efa = [one for one, link in drivers.items() if link.exists() and link.resolve().name == "efa"]
    ports = [port for port in find_infiniband_ports(root) if port.parent.parent not in efa]
    active = sum_infiniband_ports(ports).gauges.get(HostGauge.infiniband_ports_active, 0)
    places = [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    places += [root / folder for folder in (*_OF_AWS, *_USUAL)]
    plugins = [str(file) for place in places for file in _list_matching_files(place, _PLUGIN)]
    fabric = next((str(file) for place in places for file in _list_matching_files(place, _FABRIC)), None)
    return NetworkFacts(
        infiniband_ports=int(active),
        efa_devices=len(efa),
        net_plugins=tuple(dict.fromkeys(plugins)),
        libfabric=fabric,
    )


def _list_matching_files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


_OCTAL = lazy_pattern(r"\\([0-7]{3})")
_MOUNT_POINT, _BEFORE_DASH = 4, 6


def read_file_systems(
    folders: Mapping[FolderRole, Path], mounts: Path = Path("/proc/self/mountinfo")
) -> tuple[FileSystemFacts, ...]:
    """Return what is known of these folders, by their roles; of one that is absent, its parent's.

    A folder that is there is tried by a file that is made and removed at once.
    """
    table = _parse_mount_points(read_small_file(mounts) or "")
    return tuple(_read_file_system(role, folder, table) for role, folder in folders.items())


def _read_file_system(role: FolderRole, folder: Path, table: Mapping[Path, str]) -> FileSystemFacts:
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    try:
        real = there.resolve()
        seen = os.statvfs(there)
    except OSError:
        return FileSystemFacts(role=role, path=str(folder))
    mount = next((path for path in (real, *real.parents) if path in table), None)
    return FileSystemFacts(
        role=role,
        path=str(folder),
        kind=None if mount is None else table[mount],
        size_bytes=seen.f_blocks * seen.f_frsize,
        free_bytes=seen.f_bavail * seen.f_frsize,
        inodes=seen.f_files or None,
        free_inodes=seen.f_favail if seen.f_files else None,
        writable=_is_writable(there),
    )


def _is_writable(folder: Path) -> bool | None:
    try:
        with tempfile.NamedTemporaryFile(prefix=".hpckit-", dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        # A full disk is another matter; all else (no permission, /proc, a broken mount) stays.
        return None if error.errno in {errno.ENOSPC, errno.EDQUOT} else False
    return True


def _parse_mount_points(text: str) -> dict[Path, str]:
    """Return the file system type of each mount point; of several at one, the last is seen."""
    found: dict[Path, str] = {}
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) <= _BEFORE_DASH or "-" not in fields[_BEFORE_DASH:]:
            continue
        dash = fields.index("-", _BEFORE_DASH)
        if dash + 1 < len(fields):
            path = _OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[_MOUNT_POINT])
            found[Path(path)] = fields[dash + 1]
    return found


_CGROUPS = "sys/fs/cgroup"


def read_distribution_name(root: Path = Path("/")) -> str:
    """Return the name of the distribution, such as `Rocky Linux 9.4`; else that of the kernel."""
    for line in (read_small_file(root / "etc/os-release") or "").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip("\"'")
    return platform.system()


def count_granted_cpus(root: Path = Path("/")) -> float:
    """Return how many CPUs this process may use, by its affinity and by quotas of its cgroups."""
    allowed: float = len(os.sched_getaffinity(0))
    for folder in _list_own_cgroups(root):
        quota, _, period = (read_small_file(folder / "cpu.max") or "").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            allowed = min(allowed, int(quota) / int(period))
    return allowed


def read_granted_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may use: the node's, or less by its cgroups.

    None if neither can be read.
    """
    known = [read_integer_file(folder / "memory.max") for folder in _list_own_cgroups(root)]
    known.append(_read_cgroup_v1_memory_limit(root))
    known.append(_read_node_memory(root))
    return min((limit for limit in known if limit is not None), default=None)


def read_process_limits() -> ProcessLimits:
    """Return the limits that a rank started from this process would have.

    These are the soft ones, but of open files the hard one: agents raise the soft one to it.
    """
    soft, hard = 0, 1
    return ProcessLimits(
        nofile=_read_process_limit(resource.RLIMIT_NOFILE, hard),
        memlock=_read_process_limit(resource.RLIMIT_MEMLOCK, soft),
        nproc=_read_process_limit(resource.RLIMIT_NPROC, soft),
        stack=_read_process_limit(resource.RLIMIT_STACK, soft),
    )


def _read_process_limit(kind: int, which: int) -> int:
    value = resource.getrlimit(kind)[which]
    return -1 if value == resource.RLIM_INFINITY else value


def _list_own_cgroups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroup (version 2) and of those around it."""
    text = read_small_file(root / "proc/self/cgroup") or ""
    own = next((line[3:] for line in text.splitlines() if line.startswith("0::")), None)
    if own is None:
        return
    top = root / _CGROUPS
    folder = top / own.lstrip("/")
    if ".." in folder.parts:  # in a container: the cgroup is outside of what is shown
        return
    yield folder
    yield from (parent for parent in folder.parents if parent.is_relative_to(top))


def _read_cgroup_v1_memory_limit(root: Path) -> int | None:
    """Return the limit of the memory controller of version 1; its "unlimited" is a huge number."""
    text = read_small_file(root / "proc/self/cgroup") or ""
    own = next((line.split(":", 2)[2] for line in text.splitlines() if ":memory:" in line), None)
    if own is None or ".." in own:
        return None
    limit = read_integer_file(root / _CGROUPS / "memory" / own.lstrip("/") / "memory.limit_in_bytes")
    return None if limit is None or limit > math.pow(2, 62) else limit


def _read_node_memory(root: Path) -> int | None:
    for line in (read_small_file(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name == "MemTotal" and words and words[0].isdigit():
            return int(words[0]) * 1024
    return None


_RATE = lazy_pattern(r"(\d+(?:\.\d+)?) Gb/sec")
"""`400 Gb/sec (4X NDR)`"""


def read_node_and_gpu_links(host: str, environ: Mapping[str, str], root: Path = Path("/")) -> NodeLinks:
    """Return the links of this node and of the job's GPUs; takes milliseconds.

    NVLink and PCIe by NVML, the rest by sysfs. Read after a measurement rather than before: an idle
    GPU lowers its PCIe generation.
    """
    nodes = list_folder(root / "sys/devices/system/node")
    driver = read_driver_and_gpus(environ, root)
    return NodeLinks(
        host=host,
        # Without a driver of NVIDIA there may be other GPUs.
        gpus=None if not driver.version else tuple(_add_numa_node(gpu, root) for gpu in driver.gpus or ()),
        ports=_read_active_infiniband_ports(root),
        interfaces=_read_active_interfaces(root),
        numa_nodes=sum(bool(re.fullmatch(r"node\d+", node.name)) for node in nodes) or None,
    )


def _add_numa_node(gpu: GpuFacts, root: Path) -> GpuFacts:
    """Return a GPU with the NUMA node of its slot; NVLinks of which it does not know are none."""
    return replace(gpu, numa=read_numa_node(pci_sysfs_folder(root, gpu.pci)), nvlinks=gpu.nvlinks or 0)


def _read_active_infiniband_ports(root: Path) -> tuple[FabricPort, ...]:
    found = []
    for port in find_infiniband_ports(root):
        device = port.parent.parent
        if is_infiniband_port_active(port):
            rate = _RATE.match(read_small_file(port / "rate") or "")
            found.append(
                FabricPort(
                    name=f"{device.name}/{port.name}",
                    gbit_per_s=float(rate[1]) if rate else None,
                    numa=read_numa_node(device / "device"),
                )
            )
    return tuple(found)


def _read_active_interfaces(root: Path) -> tuple[NetworkInterface, ...]:
    """Return cards that are up; a virtual one has no device, and claims any speed."""
    found = []
    for folder in list_folder(root / "sys/class/net"):
        if (folder / "device").exists() and read_small_file(folder / "operstate") == "up":
            speed = read_integer_file(folder / "speed")
            known = speed is not None and speed > 0
            gbit = speed / 1000 if known and speed is not None else None
            found.append(NetworkInterface(name=folder.name, gbit_per_s=gbit))
    return tuple(found)
