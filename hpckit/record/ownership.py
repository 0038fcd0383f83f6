"""Whether a launch folder is the caller's own: only then may anything named in it run, or count.

Responsible for that one decision; it must not read what the folder holds. Judging is pure and
works on what lstat(2) said; `find_stranger` asks lstat and is what everybody calls.

A launch is the caller's own when the folder and its launch.json belong to the caller and nobody
else may write to them, and when nobody at all may put another in its place. Owners of the folders
above it, and groups that may write to those, are trusted like administrators of the place: what
they put there is theirs, and is seen to be.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpckit.errors import ForeignError
from hpckit.record.layout import LaunchPaths

_ROOT = 0
_NOBODY = frozenset({65534, 2**32 - 2})
_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStatus:
    """What lstat says of a path: its owner, and its mode with its type."""

    path: str
    uid: int
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFolder:
    """Why a launch folder is not the caller's own: `uid` is its owner, and what to do about it."""

    uid: int
    owner: str
    reason: str
    hint: str


def judge(entry: PathStatus, caller: int) -> ForeignFolder | None:
    """Return why a file or folder is not the caller's alone; None where it is.

    The superuser gets no exception: what a user put there must not run as root.
    """
    if entry.uid != caller:
        return _stranger(
            entry,
            f"{entry.path} belongs to {user_name(entry.uid)}, not to {user_name(caller)}",
            "status, logs and results show it; to run the same, launch it yourself"
            if entry.uid not in _NOBODY
            else "if the file system maps your files to that user (root over NFS, a container "
            "with its own user ids), work as the user they belong to",
        )
    if not stat.S_ISDIR(entry.mode) and not stat.S_ISREG(entry.mode):
        return _stranger(entry, f"{entry.path} is neither a file nor a folder", "remove it")
    if entry.mode & _OF_OTHERS:
        return _stranger(
            entry,
            f"{entry.path} can be written by others (mode {stat.S_IMODE(entry.mode):04o})",
            f"make sure that no one changed it, then: chmod -R go-w {entry.path}",
        )
    return None


def judge_above(entry: PathStatus) -> ForeignFolder | None:
    """Return why what lies in a folder may be replaced by anybody; None where it may not.

    In a sticky folder only owners rename, so that it is as good as one that others only read.
    """
    if entry.mode & stat.S_IWOTH and not entry.mode & stat.S_ISVTX:
        return _stranger(
            entry,
            f"everybody may replace what lies in {entry.path} "
            f"(mode {stat.S_IMODE(entry.mode):04o})",
            f"let its owner run chmod +t {entry.path}, or keep launches elsewhere: output_dir=DIR",
        )
    return None


def judge_link(entry: PathStatus, above: PathStatus, caller: int) -> ForeignFolder | None:
    """Return why a symbolic link is not to be followed; None where it may be.

    Followed are links of the caller, of root, and of the owner of the folder they lie in.
    """
    if entry.uid in {caller, _ROOT, above.uid}:
        return None
    return _stranger(
        entry,
        f"the link {entry.path} belongs to {user_name(entry.uid)}",
        "name the folder that it points to",
    )


def find_stranger(folder: Path) -> ForeignFolder | None:
    """Return why a launch folder is not the caller's own; None where it is. Raises OSError."""
    return place_stranger(folder) or _inside_stranger(folder)


def place_stranger(folder: Path) -> ForeignFolder | None:
    """Return why what lies in a folder, or will, is not safe from everybody. Raises OSError."""
    real = Path(os.path.realpath(folder))
    above = (judge_above(path_status(parent)) for parent in reversed(real.parents))
    return _first([*_links(folder), *above])


def own_folders(outputs: Path, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield those of the launch folders in `outputs` that are the caller's own."""
    try:
        if place_stranger(outputs / "any"):
            return
    except OSError:
        return
    for folder in folders:
        try:
            stranger = find_stranger(folder) if folder.is_symlink() else _inside_stranger(folder)
        except OSError:
            continue
        if stranger is None:
            yield folder


def check_place(folder: Path) -> None:
    """Raise ForeignError where a folder that was just made is not the caller's own.

    So it is on file systems that give all to one user (root over NFS), and where everybody may
    replace it. Raises OSError, too.
    """
    stranger = place_stranger(folder) or judge(path_status(folder), os.geteuid())
    if stranger is not None:
        raise refused(stranger)


def refused(stranger: ForeignFolder) -> ForeignError:
    """Return the error for acting on a launch that is not the caller's own."""
    return ForeignError(
        f"this launch is not yours to act on: {stranger.reason}", hint=stranger.hint
    )


def path_status(path: Path) -> PathStatus:
    """Ask lstat about a path; raises OSError."""
    seen = path.lstat()
    return PathStatus(path=str(path), uid=seen.st_uid, mode=seen.st_mode)


def user_name(uid: int) -> str:
    """Return a user's login name with the number; the number alone where it has no name."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _inside_stranger(folder: Path) -> ForeignFolder | None:
    caller, real = os.geteuid(), Path(os.path.realpath(folder))
    return _first(judge(path_status(path), caller) for path in (real, LaunchPaths(real).launch))


def _links(folder: Path) -> Iterator[ForeignFolder | None]:
    caller = os.geteuid()
    for path in (folder, *folder.parents):
        if path.is_symlink():
            yield judge_link(path_status(path), path_status(path.parent), caller)


def _first(found: Iterable[ForeignFolder | None]) -> ForeignFolder | None:
    return next((one for one in found if one is not None), None)


def _stranger(entry: PathStatus, reason: str, hint: str) -> ForeignFolder:
    return ForeignFolder(uid=entry.uid, owner=user_name(entry.uid), reason=reason, hint=hint)
