"""A lock for one of several processes, on one host or many: a file that says who holds it.

Responsible for exclusion on shared file systems and for telling who is in the way; it must not
wait. The file is made by link(2), which is atomic on NFS too and gives the lock and its content
at once. The lock of a process of this host that is gone is taken over; of another host's process
nobody here can know, so its lock stands for as long as anybody could need it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from hpckit.errors import HeldError, UsageError
from hpckit.record.process import alive, start_mark, this_host
from hpckit.record.store import write_first, write_text

_LONGEST_S = 3600.0
"""What is done under a lock takes seconds, minutes while Slurm is away: then it is abandoned."""

_TRIES = 10


@contextmanager
def exclusive(path: Path, *, at: datetime, what: str) -> Iterator[None]:
    """Hold the lock file `path` for a while; `what` is what its holder does, for messages.

    Raises HeldError where somebody else holds it, UsageError where it cannot be written.
    """
    mine = _text(at)
    try:
        _take(path, mine, what)
    except OSError as error:
        raise UsageError(
            f"the lock {path} cannot be written: {error.strerror or error}",
            hint="check quota and free space, and that the folder is yours to write",
        ) from error
    try:
        yield
    finally:
        if _read(path) == mine:
            path.unlink(missing_ok=True)


def _text(at: datetime) -> str:
    pid = os.getpid()
    holder = {
        "host": this_host(),
        "pid": pid,
        "started": start_mark(pid) or "",
        "at": at.isoformat(timespec="seconds"),
        "token": os.urandom(8).hex(),
    }
    return json.dumps(holder) + "\n"


def _take(path: Path, mine: str, what: str) -> None:
    for _ in range(_TRIES):
        if write_first(path, mine):
            return
        theirs = _read(path)
        if theirs is None:
            continue
        if not (_is_stale(theirs) or _is_abandoned(path)):
            raise _held(path, theirs, what)
        _remove_stale(path, theirs)
    raise _held(path, _read(path) or "", what)


def _remove_stale(path: Path, theirs: str) -> None:
    """Remove a dead process's lock, unless somebody was faster and it is theirs by now."""
    aside = _beside(path)
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    try:
        if _read(aside) != theirs:
            os.link(aside, path)
    except FileExistsError:
        return
    finally:
        aside.unlink()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _holder(text: str) -> dict[str, Any]:
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_stale(text: str) -> bool:
    holder = _holder(text)
    try:
        return alive(holder["host"], holder["pid"], holder["started"]) is False
    except KeyError:
        return False


def _is_abandoned(path: Path) -> bool:
    """Whether the lock is older than any work, by the clock of its own file system."""
    own = _beside(path)
    try:
        write_text(own, "")
        return own.stat().st_mtime - path.stat().st_mtime > _LONGEST_S
    except FileNotFoundError:
        return False
    finally:
        own.unlink(missing_ok=True)


def _held(path: Path, text: str, what: str) -> HeldError:
    holder = _holder(text)
    who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
    return HeldError(
        f"{who} {what} since {holder.get('at', '?')}",
        hint=f"wait for it; if that process is gone with its machine, remove {path} "
        "(after an hour it counts for nothing)",
    )
