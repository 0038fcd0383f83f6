"""What the operating system grants this process: CPUs, memory, limits; and which one it is."""

from __future__ import annotations

import math
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from hpckit.model.environment.facts import ProcessLimits
from hpckit.observe.sysfs import read_count, read_small

_CGROUPS = "sys/fs/cgroup"


def system_name(root: Path = Path("/")) -> str:
    """Return the name of the distribution, such as `Rocky Linux 9.4`; else that of the kernel."""
    for line in (read_small(root / "etc/os-release") or "").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip("\"'")
    return platform.system()


def granted_cpus(root: Path = Path("/")) -> float:
    """Return how many CPUs this process may use, by its affinity and by quotas of its cgroups."""
    allowed: float = len(os.sched_getaffinity(0))
    for folder in _own_cgroups(root):
        quota, _, period = (read_small(folder / "cpu.max") or "").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            allowed = min(allowed, int(quota) / int(period))
    return allowed


def granted_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may use: the node's, or less by its cgroups.

    None if neither can be read.
    """
    known = [read_count(folder / "memory.max") for folder in _own_cgroups(root)]
    known.append(_legacy_limit(root))
    known.append(_memory_of_node(root))
    return min((limit for limit in known if limit is not None), default=None)


def read_limits() -> ProcessLimits:
    """Return the limits that a rank started from this process would have.

    These are the soft ones, but of open files the hard one: agents raise the soft one to it.
    """
    soft, hard = 0, 1
    return ProcessLimits(
        nofile=_limit(resource.RLIMIT_NOFILE, hard),
        memlock=_limit(resource.RLIMIT_MEMLOCK, soft),
        nproc=_limit(resource.RLIMIT_NPROC, soft),
        stack=_limit(resource.RLIMIT_STACK, soft),
    )


def _limit(kind: int, which: int) -> int:
    value = resource.getrlimit(kind)[which]
    return -1 if value == resource.RLIM_INFINITY else value


def _own_cgroups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroup (version 2) and of those around it."""
    text = read_small(root / "proc/self/cgroup") or ""
    own = next((line[3:] for line in text.splitlines() if line.startswith("0::")), None)
    if own is None:
        return
    top = root / _CGROUPS
    folder = top / own.lstrip("/")
    if ".." in folder.parts:  # in a container: the cgroup is outside of what is shown
        return
    yield folder
    yield from (parent for parent in folder.parents if parent.is_relative_to(top))


def _legacy_limit(root: Path) -> int | None:
    """Return the limit of the memory controller of version 1; its "unlimited" is a huge number."""
    text = read_small(root / "proc/self/cgroup") or ""
    own = next((line.split(":", 2)[2] for line in text.splitlines() if ":memory:" in line), None)
    if own is None or ".." in own:
        return None
    limit = read_count(root / _CGROUPS / "memory" / own.lstrip("/") / "memory.limit_in_bytes")
    return None if limit is None or limit > math.pow(2, 62) else limit


def _memory_of_node(root: Path) -> int | None:
    for line in (read_small(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name == "MemTotal" and words and words[0].isdigit():
            return int(words[0]) * 1024
    return None
