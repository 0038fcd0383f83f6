"""What a rank ran out of: memory, by the kernel's counts before and after, or room in its folder.

Which process the kernel killed is not determined here (the caller knows which one died by SIGKILL).
The kernel counts before it sends SIGKILL (mm/oom_kill.c), so a count read after a death includes
that death. Room is checked by writing, because quotas show nowhere else. Imports no torch.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from hpckit.observe.sysfs import read_named_numbers, read_small_file
from hpckit.record.store import PRIVATE_FILE
from hpckit.values import dataclass

_EVENTS = "memory.events"
"""cgroup v2: `oom_kill` counts the kills in this group and all below it."""

_CONTROL = "memory.oom_control"
"""cgroup v1: `oom_kill` counts only the kills in this group (Linux 4.13 and newer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillCount:
    """How often the kernel has killed for lack of memory, according to one file.

    `own` is whether only the calling process's own group is counted: a rank, its agent's child, is
    in there too. Otherwise the count includes processes that are not ours.
    """

    where: str
    kills: int
    own: bool = False


OomKills = tuple[KillCount, ...]
"""All readable counts, the most telling first: own group, those above it, the host."""


def explain_oom_kill(before: OomKills, now: OomKills) -> str | None:
    """Return in words the evidence for a kill since then; None if there is none.

    Only the most telling count decides: if a process's own group counted none, a kill in a group
    above it, or elsewhere on the host, hit another process.
    """
    earlier = {count.where: count.kills for count in before}
    count = next((count for count in now if count.where in earlier), None)
    kills = 0 if count is None else count.kills - earlier[count.where]
    if count is None or kills <= 0:
        return None
    text = f"{count.where} counted {kills} OOM kill{'s' if kills > 1 else ''}"
    return text if count.own else f"{text} (it counts other processes too)"


def read_oom_kill_counts(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> OomKills:
    """Return the counts of this process's groups and of the host; what is missing is left out."""
    v1, v2 = _read_memory_cgroups(proc)
    # In v1, the groups above the own one do not include it.
    counts = list(islice(_read_cgroup_kill_counts(cgroup / "memory", v1, _CONTROL), 1))
    for mount in (cgroup, cgroup / "unified"):
        counts += _read_cgroup_kill_counts(mount, v2, _EVENTS)
    counts.sort(key=lambda count: not count.own)
    kills = read_named_numbers(proc / "vmstat").get("oom_kill")
    host = [] if kills is None else [KillCount(where="the whole host", kills=kills)]
    return (*counts, *host)


def _read_memory_cgroups(proc: Path) -> tuple[str | None, str | None]:
    """Return this process's group in the v1 memory hierarchy and in v2 (see cgroups(7))."""
    v1 = v2 = None
    for line in (read_small_file(proc / "self" / "cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            v1 = path
        elif number == "0" and not controllers:
            v2 = path
    return v1, v2


def _read_cgroup_kill_counts(mount: Path, group: str | None, file: str) -> Iterator[KillCount]:
    """Yield the counts of the own group and all above it; a group without memory has none."""
    # A container sees its own group as the root of the mount, but may be given its outside path.
    for depth, at in enumerate(() if group is None else _list_group_and_parents(group)):
        kills = read_named_numbers(mount / at / file).get("oom_kill")
        if kills is not None:
            where = f"cgroup /{'' if at == '.' else at}"
            yield KillCount(where=where, kills=kills, own=depth == 0)


def _list_group_and_parents(group: str) -> Iterator[str]:
    """Yield a group's path and those above it, relative to the mount; the root is the last.

    A path above the namespace's root begins with `/..` and cannot be followed.
    """
    path = PurePosixPath(group.lstrip("/"))
    if ".." not in path.parts:
        yield from (str(at) for at in (path, *path.parents) if str(at) != ".")
    yield "."


_PROBE = bytes(64 * 1024)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def explain_full_disk_of_folder(folder: Path) -> str:
    """Return a message with the folder's name and free bytes if it is full; empty otherwise."""
    probe = folder / f".room.{os.urandom(4).hex()}"
    try:
        handle = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        try:
            short = os.write(handle, _PROBE) < len(_PROBE)
            os.fsync(handle)  # NFS reports it no sooner
        finally:
            os.close(handle)
    except OSError as error:
        return _format_full_disk_message(folder, error.errno or 0) if error.errno in _FULL else ""
    else:
        return _format_full_disk_message(folder, errno.ENOSPC) if short else ""
    finally:
        with suppress(OSError):
            probe.unlink()


def _format_full_disk_message(folder: Path, number: int) -> str:
    try:
        seen = os.statvfs(folder)
        free = f"{seen.f_bavail * seen.f_frsize} bytes free"
    except OSError:
        free = "an unknown number of bytes"
    return f"[Errno {number}] {os.strerror(number)}: {folder} of the launch folder has {free}"
