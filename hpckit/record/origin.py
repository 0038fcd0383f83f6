"""Tells a launch folder from a copy of it: only the folder that was made owns what lies elsewhere.

A copy has the same files and often the same name; what it cannot have is the place and the inode of
the folder that was made. In doubt, a folder counts as a copy.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpckit.record.remove import removed_name
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrigin:
    """Where a launch folder was made: its real path, and what the file system calls it."""

    folder: str
    device: int
    inode: int


def origin_of(part: Path, folder: Path) -> LaunchOrigin:
    """Return the origin of a folder that is still called `part`; raises OSError."""
    about = part.stat()
    return LaunchOrigin(folder=str(_real(folder)), device=about.st_dev, inode=about.st_ino)


def why_copy(folder: Path, origin: LaunchOrigin | None) -> str | None:
    """Return why a folder may be a copy of the launch that it holds; None if it certainly is not.

    `folder` may also be what an interrupted removal left. Raises OSError.
    """
    if origin is None:
        return f"{folder} may be a copy: it does not say where it was made"
    about, name = folder.stat(), removed_name(folder) or folder.name
    same = about.st_ino == origin.inode
    if str(_real(folder.with_name(name))) == origin.folder:
        return None if same else f"{folder} is not the folder that was made there, but a copy of it"
    if _exists_elsewhere(origin, folder):
        return f"{folder} is a copy of {origin.folder}"
    # Device numbers differ between hosts, but a folder that was moved here may be a copy as well.
    if same and about.st_dev == origin.device:
        return None
    return f"{folder} may be a copy of {origin.folder}, which is not there"


def _exists_elsewhere(origin: LaunchOrigin, folder: Path) -> bool:
    made = Path(origin.folder)
    try:
        return not made.samefile(folder)
    except FileNotFoundError:
        return os.path.lexists(made)


def _real(folder: Path) -> Path:
    """Return the path of a folder that may not exist yet, without links above it."""
    return Path(os.path.realpath(folder.parent)) / folder.name
