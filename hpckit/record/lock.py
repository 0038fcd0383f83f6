"""A lock for processes on one host or many: a folder of numbered claims.

The latest claim counts. It is created with link(2), which is atomic on NFS too and creates the
claim together with its content: of all processes that find claim N free or abandoned, only one gets
N + 1. No process removes or changes what another may hold, so two never hold the lock at the same
time. Taking the lock does not wait.

The modification time of a claim shows that its holder is alive. The claim of a dead process on this
host is taken over at once; that of a process on another host after it has been silent for SILENT_S.

A lock that lies among the user's files is passing: its holder removes the whole folder, while the
claim still stands. Numbers then start at 1 again, so each holder also looks for a lower claim that
stands.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from hpckit.errors import HeldError, UsageError
from hpckit.model.moment import recorded_moment
from hpckit.record.process import alive, start_mark, this_host
from hpckit.record.store import make_folder, read_plain, write_first, write_text
from hpckit.values import dataclass

SILENT_S = 900.0
"""A holder on another host that has been silent this long counts as gone, with its machine."""

RENEWED_S = 60.0
"""How often a holder renews its claim."""

_TRIES = 10
_KEPT = 16
"""This many old claims are kept, so that a process with a slightly old listing still finds its
number taken. A process with an older listing finds a higher number after making its claim, and
withdraws.
"""

_FREE = ".free"


@contextmanager
def exclusive(
    path: Path,
    *,
    at: datetime,
    what: str,
    renewed_s: float = RENEWED_S,
    passing: bool = False,
) -> Iterator[None]:
    """Hold the lock `path`, a folder, during the `with` block; `what` says what its holder does.

    A `passing` lock leaves nothing behind, and git does not see it meanwhile.
    Raises HeldError if another process holds it, UsageError if it cannot be written.
    """
    try:
        mine = _take(path, _text(at), what, passing=passing)
    except OSError as error:
        raise UsageError(
            f"the lock {path} cannot be written: {error.strerror or error}",
            hint="check quota and free space, and that the folder is yours to write",
        ) from error
    try:
        with _renewed(mine, renewed_s):
            yield
    finally:
        # If no marker can be created, the claim ends with this process.
        with suppress(OSError):
            if passing and _latest(path) == mine:
                _remove(path)
            else:
                os.link(mine.path, mine.free)


def is_held(path: Path) -> bool:
    """Return whether a process that may be alive holds the lock."""
    latest = _latest(path)
    return latest is not None and _is_standing(latest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """One claim in a lock's folder; it is free once its marker exists."""

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


def _take(folder: Path, text: str, what: str, *, passing: bool) -> _Claim:
    missing: OSError | None = None
    for _ in range(_TRIES):
        # Its holder may be removing it: mkdir and link then say that it exists, or does not.
        try:
            mine = _try(folder, text, what, passing=passing)
        except (FileNotFoundError, FileExistsError) as error:
            missing = error
            continue
        if mine is not None:
            return mine
    latest = _latest(folder)
    if latest is None and missing is not None:
        raise missing
    raise _held(latest or _Claim(folder=folder, number=0), what)


def _try(folder: Path, text: str, what: str, *, passing: bool) -> _Claim | None:
    """Return a claim if it is the only one, None if another try may help; raises HeldError."""
    make_folder(folder)
    if passing:
        _hide(folder)
    latest = _latest(folder) or _Claim(folder=folder, number=0)
    if latest.number and _is_standing(latest):
        error = _held(latest, what)
        if latest.path.exists():
            raise error
        return None
    mine = latest.next()
    if not write_first(mine.path, text):
        return None
    if _latest(folder) == mine and not (passing and _has_lower(mine)):
        for number, path in _entries(folder):
            if number <= mine.number - _KEPT:
                with suppress(OSError):
                    path.unlink()
        return mine
    # The listing was so old that this number, or the whole folder, was used and removed since.
    mine.path.unlink(missing_ok=True)
    return None


def _is_standing(claim: _Claim) -> bool:
    return not claim.free.exists() and not _is_abandoned(claim)


def _has_lower(mine: _Claim) -> bool:
    """Return whether a claim stands that was made after the folder had been removed."""
    lower = {number for number, _ in _entries(mine.folder) if number < mine.number}
    return any(_is_standing(_Claim(folder=mine.folder, number=number)) for number in lower)


def _hide(folder: Path) -> None:
    """Let git pass over the folder, also if its holder dies."""
    mark = folder / ".gitignore"
    if not mark.exists():
        write_text(mark, "*\n", lasting=False)


def _remove(folder: Path) -> None:
    """Remove the folder in one step, with the claim that stands in it; raises OSError."""
    aside = folder.with_name(f"{folder.name}.{os.urandom(4).hex()}")
    folder.rename(aside)
    for _ in range(_TRIES):  # another process may just write a claim, in vain
        shutil.rmtree(aside, ignore_errors=True)
        if not aside.exists():
            return


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


@contextmanager
def _renewed(mine: _Claim, every_s: float) -> Iterator[None]:
    """Renew the claim regularly while the work runs."""
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
        return read_plain(path).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _holder(text: str) -> dict[str, Any]:
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_abandoned(claim: _Claim) -> bool:
    """Return whether the holder is gone: exact on this host, by silence for other hosts."""
    holder = _holder(_read(claim.path))
    lives = None
    with suppress(KeyError):
        lives = alive(holder["host"], holder["pid"], holder["started"])
    return _is_silent(claim) if lives is None else not lives


def _is_silent(claim: _Claim) -> bool:
    """Return whether the claim is older than SILENT_S, by the clock of its own file system."""
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
