"""A lock for one of several processes, on one host or many: a folder of numbered claims.

Responsible for exclusion on shared file systems and for telling who is in the way; it must not
wait. The latest claim counts. It is made by link(2), which is atomic on NFS too and gives the claim
and its content at once: of all who find claim N free or abandoned, one gets N + 1. Nobody removes
or changes what another may hold; there is no moment at which two believe that it is theirs.

A holder shows that it lives by the time of its claim. The claim of a process of this host that is
gone is taken over at once; of another host's process once it has not shown itself for long.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hpckit.errors import HeldError, UsageError
from hpckit.model.moment import recorded_moment
from hpckit.record.process import alive, start_mark, this_host
from hpckit.record.store import make_folder, write_first, write_text

SILENT_S = 900.0
"""A holder on another host that has not shown itself for so long is gone, and its machine too."""

RENEWED_S = 60.0
"""How often a holder shows itself."""

_TRIES = 10
_KEPT = 16
"""So many old claims stay: who goes by a listing that is a little old still finds its number taken.
One that is older finds a higher number once its own claim is made, and draws back."""

_FREE = ".free"


@contextmanager
def exclusive(
    path: Path, *, at: datetime, what: str, renewed_s: float = RENEWED_S
) -> Iterator[None]:
    """Hold the lock `path`, a folder, for as long as it takes; `what` is what its holder does.

    Raises HeldError where somebody else holds it, UsageError where it cannot be written.
    """
    try:
        mine = _take(path, _text(at), what)
    except OSError as error:
        raise UsageError(
            f"the lock {path} cannot be written: {error.strerror or error}",
            hint="check quota and free space, and that the folder is yours to write",
        ) from error
    try:
        with _renewed(mine, renewed_s):
            yield
    finally:
        # Where no marker can be made, the claim ends with this process.
        with suppress(OSError):
            os.link(mine.path, mine.free)


def is_held(path: Path) -> bool:
    """Whether a process that may live holds the lock."""
    latest = _latest(path)
    return latest is not None and not latest.free.exists() and not _is_abandoned(latest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """One claim in the folder of a lock; it is free once its marker exists."""

    folder: Path
    number: int

    @property
    def path(self) -> Path:
        return self.folder / f"{self.number:08d}"

    @property
    def free(self) -> Path:
        return self.folder / f"{self.number:08d}{_FREE}"

    def next(self) -> _Claim:
        return _Claim(folder=self.folder, number=self.number + 1)


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


def _take(folder: Path, text: str, what: str) -> _Claim:
    make_folder(folder)
    for _ in range(_TRIES):
        latest = _latest(folder) or _Claim(folder=folder, number=0)
        if latest.number and not latest.free.exists() and not _is_abandoned(latest):
            raise _held(latest, what)
        mine = latest.next()
        if not write_first(mine.path, text):
            continue
        if _latest(folder) == mine:
            _tidy(mine)
            return mine
        # The listing was so old that this number had been used and tidied away.
        mine.path.unlink()
    raise _held(_latest(folder) or _Claim(folder=folder, number=0), what)


def _latest(folder: Path) -> _Claim | None:
    numbers = [number for number, _ in _entries(folder)]
    return _Claim(folder=folder, number=max(numbers)) if numbers else None


def _entries(folder: Path) -> list[tuple[int, Path]]:
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return []
    known = [(path.name.removesuffix(_FREE), path) for path in paths]
    return sorted((int(name), path) for name, path in known if name.isdecimal())


def _tidy(mine: _Claim) -> None:
    for number, path in _entries(mine.folder):
        if number <= mine.number - _KEPT:
            with suppress(OSError):
                path.unlink()


@contextmanager
def _renewed(mine: _Claim, every_s: float) -> Iterator[None]:
    """Show again and again that the holder lives, however long its work takes."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(every_s):
            with suppress(OSError):
                os.utime(mine.path)

    thread = threading.Thread(target=renew, daemon=True, name="lock")
    thread.start()
    try:
        yield
    finally:
        done.set()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _holder(text: str) -> dict[str, Any]:
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_abandoned(claim: _Claim) -> bool:
    """Whether the holder is gone: known of this host's processes, of others by their silence."""
    holder = _holder(_read(claim.path))
    lives = None
    with suppress(KeyError):
        lives = alive(holder["host"], holder["pid"], holder["started"])
    return _is_silent(claim) if lives is None else not lives


def _is_silent(claim: _Claim) -> bool:
    """Whether it has not shown itself for long, by the clock of its own file system."""
    own = claim.folder / f".{claim.path.name}.{os.urandom(4).hex()}"
    try:
        write_text(own, "", lasting=False)
        return own.stat().st_mtime - claim.path.stat().st_mtime > SILENT_S
    except FileNotFoundError:
        return False
    finally:
        own.unlink(missing_ok=True)


def _held(claim: _Claim, what: str) -> HeldError:
    holder = _holder(_read(claim.path))
    who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
    return HeldError(
        f"{who} {what} since {recorded_moment(str(holder.get('at', '?')))}",
        hint=f"wait for it; if that process is gone with its machine, remove {claim.folder} "
        f"({SILENT_S / 60:.0f} minutes after its last sign of life it counts for nothing)",
    )
