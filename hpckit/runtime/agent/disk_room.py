"""Checks whether a folder still has room, for programs that lost their output to a full disk.

Checks by writing, because quotas show nowhere else.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from hpckit.model.failure import RankExit
from hpckit.record.store import PRIVATE_FILE
from hpckit.values import replace

_PROBE = bytes(64 * 1024)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def without_room(folder: Path) -> str:
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
        return _words(folder, error.errno or 0) if error.errno in _FULL else ""
    else:
        return _words(folder, errno.ENOSPC) if short else ""
    finally:
        with suppress(OSError):
            probe.unlink()


def _words(folder: Path, number: int) -> str:
    try:
        seen = os.statvfs(folder)
        free = f"{seen.f_bavail * seen.f_frsize} bytes free"
    except OSError:
        free = "an unknown number of bytes"
    return f"[Errno {number}] {os.strerror(number)}: {folder} of the launch folder has {free}"


def of_full_disk(exit_: RankExit, words: str) -> RankExit:
    """Return the record of a rank that ended while its folder was full, according to `words`."""
    said = f"\n{exit_.message}" if exit_.message else ""
    return replace(exit_, exception="FullDiskError", message=f"{words}{said}")
