"""All facts of the machine that this process runs on, but those that only Slurm's programs know."""

from __future__ import annotations

import errno
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from hpckit.model.environment.facts import (
    EnvironmentFacts,
    FileSystemFacts,
    FolderRole,
    NetworkFacts,
    PythonFacts,
    TorchFacts,
)
from hpckit.model.telemetry.vocabulary import HostGauge
from hpckit.observe.environment.system import granted_cpus, granted_memory, read_limits, system_name
from hpckit.observe.infiniband import find_ports, read_ports
from hpckit.observe.nvml.bindings import old_distribution
from hpckit.observe.nvml.job_gpus import read_driver
from hpckit.observe.sysfs import folders, read_small
from hpckit.patterns import lazy_pattern
from hpckit.record.process import this_host

_PLUGIN = "libnccl-net*.so*"
_FABRIC = "libfabric.so*"
_USUAL = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")
"""Searched after LD_LIBRARY_PATH, together with where AWS installs its libraries."""
_OF_AWS = (
    *("opt/amazon/efa/lib", "opt/amazon/efa/lib64", "opt/aws-ofi-nccl/lib"),
    *("opt/amazon/ofi-nccl/lib", "opt/amazon/ofi-nccl/lib64"),
    *("opt/amazon/ofi-nccl/lib/x86_64-linux-gnu", "opt/amazon/ofi-nccl/lib/aarch64-linux-gnu"),
)


def read_machine(
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
        system=system_name(),
        kernel=platform.release(),
        cpus=granted_cpus(),
        memory_bytes=granted_memory(),
        python=PythonFacts(
            version=platform.python_version(),
            executable=sys.executable,
            hpckit=hpckit,
            old_pynvml=old_distribution(),
        ),
        torch=torch,
        driver=read_driver(environ),
        network=read_networks(environ),
        limits=read_limits(),
        file_systems=read_file_systems(looked_at),
        variables=dict(variables),
        at=at,
    )


def read_networks(environ: Mapping[str, str], root: Path = Path("/")) -> NetworkFacts:
    """Return which networks NCCL could use here, and its plugins for them.

    Plugins are searched on LD_LIBRARY_PATH and in the usual folders of libraries. EFA devices are
    counted apart: they appear among those of InfiniBand, but NCCL uses them by a plugin alone.
    """
    devices = folders(root / "sys/class/infiniband")
    drivers = {device: device / "device" / "driver" for device in devices}
    efa = [one for one, link in drivers.items() if link.exists() and link.resolve().name == "efa"]
    ports = [port for port in find_ports(root) if port.parent.parent not in efa]
    active = read_ports(ports).gauges.get(HostGauge.infiniband_ports_active, 0)
    places = [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    places += [root / folder for folder in (*_OF_AWS, *_USUAL)]
    plugins = [str(file) for place in places for file in _files(place, _PLUGIN)]
    fabric = next((str(file) for place in places for file in _files(place, _FABRIC)), None)
    return NetworkFacts(
        infiniband_ports=int(active),
        efa_devices=len(efa),
        net_plugins=tuple(dict.fromkeys(plugins)),
        libfabric=fabric,
    )


def _files(folder: Path, pattern: str) -> list[Path]:
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
    table = _mount_points(read_small(mounts) or "")
    return tuple(_read(role, folder, table) for role, folder in folders.items())


def _read(role: FolderRole, folder: Path, table: Mapping[Path, str]) -> FileSystemFacts:
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
        writable=_writable(there),
    )


def _writable(folder: Path) -> bool | None:
    try:
        with tempfile.NamedTemporaryFile(prefix=".hpckit-", dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        # A full disk is another matter; all else (no permission, /proc, a broken mount) stays.
        return None if error.errno in {errno.ENOSPC, errno.EDQUOT} else False
    return True


def _mount_points(text: str) -> dict[Path, str]:
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
