"""Removes files and folders of a launch, and measures their size.

A reader finds something whole or not at all: it is renamed first and then removed, and its new name
marks it as a leftover after a crash. Links are not followed: a link below a launch is removed
itself, never its target.

Only the launch folder that was made owns what lies elsewhere, not a copy of it. A copy has the same
files and often the same name; what it cannot have is the place and the inode of the folder that was
made. In doubt, a folder counts as a copy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hpckit.record.store import PRIVATE_FOLDER
from hpckit.values import dataclass

_MARK = ".removed."
_TOKEN_BYTES = 4


def is_reached_without_links(path: Path, base: Path) -> bool:
    """Return whether a path below `base` exists and is reached from it without a link."""
    steps = path.relative_to(base).parts
    places = [base.joinpath(*steps[: count + 1]) for count in range(len(steps))]
    return path.exists() and not any(place.is_symlink() for place in places)


def count_freed_bytes(path: Path) -> int:
    """Return how many bytes removing a path frees; files with other hard links count as 0."""
    if not path.is_dir() or path.is_symlink():
        return _count_freed_file_bytes(path)
    found = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(_count_freed_file_bytes(one) for one in found)


def _count_freed_file_bytes(path: Path) -> int:
    try:
        about = path.lstat()
    except OSError:
        return 0
    return about.st_size if about.st_nlink == 1 else 0


def list_removal_leftovers(folder: Path) -> Iterator[Path]:
    """Yield the leftovers in this folder of removals that were cut off."""
    with contextlib.suppress(OSError):
        yield from (path for path in sorted(folder.iterdir()) if path.name.startswith(_MARK))


def original_name_of_leftover(path: Path) -> str | None:
    """Return the name that a leftover had before its removal; None for anything else."""
    name, _, token = path.name.removeprefix(_MARK).rpartition(".")
    is_one = path.name.startswith(_MARK) and len(token) == 2 * _TOKEN_BYTES
    return name if is_one and name else None


def rename_for_removal(path: Path) -> Path:
    """Begin a removal and return the new name; the old name is gone, even after a power loss.

    Raises OSError.
    """
    aside = path.rename(path.with_name(f"{_MARK}{path.name}.{os.urandom(_TOKEN_BYTES).hex()}"))
    handle = os.open(aside.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return aside


def remove_path(path: Path) -> None:
    """Remove a file or a folder with everything in it; raises OSError."""
    if not path.name.startswith(_MARK):
        path = path.rename(path.with_name(f"{_MARK}{path.name}.{os.urandom(_TOKEN_BYTES).hex()}"))
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink()


def remove_tree(folder: Path) -> None:
    """Remove a folder with everything in it, including read-only folders; raises OSError."""
    for path, _, _ in os.walk(folder):
        Path(path).chmod(PRIVATE_FOLDER)
    shutil.rmtree(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrigin:
    """Where a launch folder was made: its real path, and what the file system calls it."""

    folder: str
    device: int
    inode: int


def read_launch_origin(part: Path, folder: Path) -> LaunchOrigin:
    """Return the origin of a folder that is still called `part`; raises OSError."""
    about = part.stat()
    return LaunchOrigin(folder=str(_resolve_parent_links(folder)), device=about.st_dev, inode=about.st_ino)


def explain_possible_copy(folder: Path, origin: LaunchOrigin | None) -> str | None:
    """Return why a folder may be a copy of the launch that it holds; None if it certainly is not.

    `folder` may also be what an interrupted removal left. Raises OSError.
    """
    if origin is None:
        return f"{folder} may be a copy: it does not say where it was made"
    about, name = folder.stat(), original_name_of_leftover(folder) or folder.name
    same = about.st_ino == origin.inode
    if str(_resolve_parent_links(folder.with_name(name))) == origin.folder:
        return None if same else f"{folder} is not the folder that was made there, but a copy of it"
    if _original_exists_elsewhere(origin, folder):
        return f"{folder} is a copy of {origin.folder}"
    # Device numbers differ between hosts, but a folder that was moved here may be a copy as well.
    if same and about.st_dev == origin.device:
        return None
    return f"{folder} may be a copy of {origin.folder}, which does not exist"


def _original_exists_elsewhere(origin: LaunchOrigin, folder: Path) -> bool:
    made = Path(origin.folder)
    try:
        return not made.samefile(folder)
    except FileNotFoundError:
        return os.path.lexists(made)


def _resolve_parent_links(folder: Path) -> Path:
    """Return the path of a folder that may not exist yet, without links above it."""
    return Path(os.path.realpath(folder.parent)) / folder.name
