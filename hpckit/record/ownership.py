"""Decides whether a launch folder is the caller's own: only then is anything in it run or trusted.

The judge functions are pure and work on lstat(2) results; `explain_foreign_launch` calls lstat and
is the usual entry point.

A launch is the caller's own if the folder and its launch.json belong to the caller, no other user
may write to them, and the folders above do not let every user replace them. Owners of those
folders, and groups that may write to them, are trusted like administrators: what they create there
belongs to them, and lstat shows that.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpckit.errors import ForeignError
from hpckit.record.layout import LaunchPaths
from hpckit.values import dataclass

WEIGHTS_FILES = ("model.safetensors", "model.safetensors.index.json")
"""All weights, or an index of parts, as Hugging Face names them and in the order it looks."""
_ROOT = 0
_NOBODY = frozenset({65534, 2**32 - 2})
_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStatus:
    """The lstat result for a path: its owner, and its mode including the type."""

    path: str
    uid: int
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFolder:
    """Why a launch folder is not the caller's own: its owner (`uid`), the reason, and a hint."""

    uid: int
    owner: str
    reason: str
    hint: str


def explain_unsafe_ownership(entry: PathStatus, caller: int) -> ForeignFolder | None:
    """Return why a file or folder is not the caller's alone; None if it is.

    There is no exception for the superuser: a user's files must not run as root.
    """
    if entry.uid != caller:
        return _build_foreign_folder(
            entry,
            f"{entry.path} belongs to {format_user(entry.uid)}, not to {format_user(caller)}",
            "status, logs and results show it; to run the same, launch it yourself"
            if entry.uid not in _NOBODY
            else "if the file system maps your files to that user (root over NFS, a container "
            "with its own user ids), work as the user they belong to",
        )
    if not stat.S_ISDIR(entry.mode) and not stat.S_ISREG(entry.mode):
        return _build_foreign_folder(entry, f"{entry.path} is neither a file nor a folder", "remove it")
    if entry.mode & _OF_OTHERS:
        return _build_foreign_folder(
            entry,
            f"{entry.path} can be written by others (mode {stat.S_IMODE(entry.mode):04o})",
            f"make sure that no one changed it, then: chmod -R go-w {entry.path}",
        )
    return None


def explain_untrusted_data(entry: PathStatus, caller: int) -> ForeignFolder | None:
    """Return why others may have changed a file of data; None if they may not.

    Root's are trusted like the user's own: nothing in such a file is run.
    """
    return explain_unsafe_ownership(entry, _ROOT if entry.uid == _ROOT else caller)


def explain_replaceable_folder(entry: PathStatus) -> ForeignFolder | None:
    """Return why any user may replace what is in a folder; None if they may not.

    In a sticky folder only owners can rename, which is as safe as a folder that others only read.
    """
    if entry.mode & stat.S_IWOTH and not entry.mode & stat.S_ISVTX:
        return _build_foreign_folder(
            entry,
            f"every user can replace files in {entry.path} (mode {stat.S_IMODE(entry.mode):04o})",
            f"let its owner run chmod +t {entry.path}, or keep launches elsewhere: output_dir=DIR",
        )
    return None


def explain_untrusted_link(entry: PathStatus, above: PathStatus, caller: int) -> ForeignFolder | None:
    """Return why a symbolic link must not be followed; None if it may be.

    Links are followed if they belong to the caller, to root, or to the owner of their folder.
    """
    if entry.uid in {caller, _ROOT, above.uid}:
        return None
    return _build_foreign_folder(
        entry,
        f"the link {entry.path} belongs to {format_user(entry.uid)}",
        "name the folder that it points to",
    )


def explain_foreign_launch(folder: Path) -> ForeignFolder | None:
    """Return why a launch folder is not the caller's own; None if it is. Raises OSError."""
    return explain_unsafe_path(folder) or _explain_foreign_files(folder)


def explain_unsafe_path(folder: Path) -> ForeignFolder | None:
    """Return why the path to a folder, which may not exist yet, is not safe. Raises OSError."""
    real = Path(os.path.realpath(folder))
    above = (explain_replaceable_folder(read_path_status(parent)) for parent in reversed(real.parents))
    return _first_foreign_folder([*_explain_untrusted_links(folder), *above])


def find_weights_file(path: Path) -> Path:
    """Return the file that `checkpoint.weights` means: in a folder, the first of WEIGHTS_FILES."""
    found = (path / name for name in WEIGHTS_FILES)
    return next((place for place in found if os.path.exists(place)), path)  # noqa: PTH110  # never raises


def list_own_launch_folders(outputs: Path, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the launch folders in `outputs` that are the caller's own."""
    try:
        if explain_unsafe_path(outputs / "any"):
            return
    except OSError:
        return
    for folder in folders:
        try:
            stranger = (
                explain_foreign_launch(folder) if folder.is_symlink() else _explain_foreign_files(folder)
            )
        except OSError:
            continue
        if stranger is None:
            yield folder


def check_folder_is_own(folder: Path) -> None:
    """Raise ForeignError if a newly created folder is not the caller's own.

    This happens on file systems that give everything to one user (root over NFS), and where every
    user may replace it. Raises OSError too.
    """
    stranger = explain_unsafe_path(folder) or explain_unsafe_ownership(read_path_status(folder), os.geteuid())
    if stranger is not None:
        raise foreign_launch_error(stranger)


def foreign_launch_error(stranger: ForeignFolder) -> ForeignError:
    """Return the error for acting on a launch that is not the caller's own."""
    return ForeignError(f"this launch is not yours to act on: {stranger.reason}", hint=stranger.hint)


def read_path_status(path: Path) -> PathStatus:
    """Call lstat on a path; raises OSError."""
    seen = path.lstat()
    return PathStatus(path=str(path), uid=seen.st_uid, mode=seen.st_mode)


def format_user(uid: int) -> str:
    """Return a user's login name and number, or only the number if it has no name."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _explain_foreign_files(folder: Path) -> ForeignFolder | None:
    caller, real = os.geteuid(), Path(os.path.realpath(folder))
    return _first_foreign_folder(
        explain_unsafe_ownership(read_path_status(path), caller) for path in (real, LaunchPaths(real).launch)
    )


def _explain_untrusted_links(folder: Path) -> Iterator[ForeignFolder | None]:
    caller = os.geteuid()
    for path in (folder, *folder.parents):
        if path.is_symlink():
            yield explain_untrusted_link(read_path_status(path), read_path_status(path.parent), caller)


def _first_foreign_folder(found: Iterable[ForeignFolder | None]) -> ForeignFolder | None:
    return next((folder for folder in found if folder is not None), None)


def _build_foreign_folder(entry: PathStatus, reason: str, hint: str) -> ForeignFolder:
    return ForeignFolder(uid=entry.uid, owner=format_user(entry.uid), reason=reason, hint=hint)
