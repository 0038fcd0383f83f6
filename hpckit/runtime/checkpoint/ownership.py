"""Ownership of checkpoint folders: no reads from, or writes to, folders of other users.

Makes the levels below `checkpoint.dir` and checks each of them. The folder that the user names may
be shared with others (a sticky scratch): anyone who is first may put a folder there under the name
that ours will have.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hpckit.record.ownership import ForeignFolder, judge, path_status, place_stranger
from hpckit.record.store import PRIVATE_FOLDER
from hpckit.runtime.checkpoint.errors import ForeignFolderError


def make_own(folder: Path, shared: Path) -> None:
    """Make a folder and all levels below `shared`, for the user alone.

    Raises ForeignFolderError if one of them does not belong to the user, and OSError.
    """
    shared.parent.mkdir(parents=True, exist_ok=True)
    shared.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    for level in _levels(folder, shared):
        level.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        check_checkpoint_owner(level, shared)


def check_checkpoint_owner(folder: Path, shared: Path) -> None:
    """Raise ForeignFolderError unless a folder, and the levels up to `shared`, are the user's.

    Levels that do not exist yet are skipped. Raises OSError, too.
    """
    levels = [level for level in _levels(folder, shared) if os.path.lexists(level)]
    if levels:
        _refuse(place_stranger(levels[0]))
    for level in levels:
        check_one(level)


def check_one(folder: Path) -> None:
    """Raise ForeignFolderError unless this folder is the user's.

    For a link of the user, its target is checked.
    """
    caller, seen = os.geteuid(), path_status(folder)
    if stat.S_ISLNK(seen.mode) and seen.uid == caller:
        seen = path_status(Path(os.path.realpath(folder)))
    _refuse(judge(seen, caller))


def _levels(folder: Path, shared: Path) -> list[Path]:
    """Return the folder and its parents below `shared`, starting with the outermost."""
    above = [level for level in folder.parents if shared in level.parents]
    return [*reversed(above), folder]


def _refuse(stranger: ForeignFolder | None) -> None:
    if stranger is not None:
        raise ForeignFolderError(
            f"checkpoints are kept in folders of one's own alone: {stranger.reason}",
            hint="nothing in it was read; move it away, or have it removed, or choose another "
            "checkpoint.dir",
        )
