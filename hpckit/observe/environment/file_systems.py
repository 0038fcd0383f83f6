"""File systems of the folders that runs use: type, room, inodes, whether they can be written."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hpckit.model.environment.facts import FileSystemFacts
from hpckit.model.environment.roles import FolderRole
from hpckit.observe.sysfs import read_small

_OCTAL = re.compile(r"\\([0-7]{3})")
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
    there = next((one for one in (folder, *folder.parents) if one.is_dir()), Path("/"))
    try:
        real = there.resolve()
        seen = os.statvfs(there)
    except OSError:
        return FileSystemFacts(role=role, path=str(folder))
    mount = next((one for one in (real, *real.parents) if one in table), None)
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
