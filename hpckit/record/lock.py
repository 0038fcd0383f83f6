"""A lock for processes on one host or many: a folder of numbered claims.

The latest claim counts. It is created with link(2), which is atomic on NFS too and creates the
claim together with its content: of all processes that find claim N free or abandoned, only one gets
N + 1. No process removes or changes what another may hold, so two never hold the lock at the same
time. Taking the lock does not wait.

The modification time of a claim shows that its holder is alive. The claim of a dead process on this
host is taken over at once; that of a process on another host after it has been silent for SILENT_S.

A lock that lies among the user's files is passing: its holder removes the whole folder, while the claim still
stands. Numbers then start at 1 again, so each holder also looks for a lower claim that stands.
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
from hpckit.model.moment import format_recorded_time
from hpckit.record.process import is_process_alive, read_process_start_id, this_host
from hpckit.record.store import (
    create_file_if_missing,
    make_private_folder,
    read_regular_file,
    write_text_atomically,
)
from hpckit.values import dataclass

SILENT_S = 900.0
"""A holder on another host that has been silent this long counts as gone, with its machine."""

RENEWED_S = 60.0
"""How often a holder renews its claim."""

_TRIES = 10
_KEPT = 16
"""This many old claims are kept, so that a process with a slightly old listing still finds its number taken.
A process with an older listing finds a higher number after making its claim, and withdraws.
"""

_FREE = ".free"


@contextmanager
def hold_lock(
    path: Path, *, at: datetime, what: str, renewed_s: float = RENEWED_S, passing: bool = False
) -> Iterator[None]:
    """Hold the lock `path`, a folder, during the `with` block; `what` says what its holder does.

    A `passing` lock leaves nothing behind, and git does not see it meanwhile.
    Raises HeldError if another process holds it, UsageError if it cannot be written.
    """
    try:
        mine = _take_lock(path, _build_claim_text(at), what, passing=passing)
    except OSError as error:
        raise UsageError(
            f"the lock {path} cannot be written: {error.strerror or error}",
            hint="check quota and free space, and that the folder is yours to write",
        ) from error
    try:
        with _keep_claim_renewed(mine, renewed_s):
            yield
    finally:
        # If no marker can be created, the claim ends with this process.
        with suppress(OSError):
            if passing and _find_latest_claim(path) == mine:
                _remove_lock_folder(path)
            else:
                os.link(mine.path, mine.released_marker_file)


def is_lock_held(path: Path) -> bool:
    """Return whether a process that may be alive holds the lock."""
    latest = _find_latest_claim(path)
    return latest is not None and _is_claim_held(latest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """One claim in a lock's folder; it is free once its marker exists."""

    folder: Path
    number: int

    @property
    def path(self) -> Path:
        return self.folder / f"{self.number:08d}"

    @property
    def released_marker_file(self) -> Path:
        return self.folder / f"{self.number:08d}{_FREE}"

    def next_claim(self) -> _Claim:
        return _Claim(folder=self.folder, number=self.number + 1)


def _build_claim_text(at: datetime) -> str:
    pid = os.getpid()
    holder = {
        "host": this_host(),
        "pid": pid,
        "started": read_process_start_id(pid) or "",
        "at": at.isoformat(timespec="seconds"),
        "token": os.urandom(8).hex(),
    }
    return json.dumps(holder) + "\n"


def _take_lock(folder: Path, text: str, what: str, *, passing: bool) -> _Claim:
    missing: OSError | None = None
    for _ in range(_TRIES):
        # Its holder may be removing it: mkdir and link then say that it exists, or does not.
        try:
            mine = _try_to_claim(folder, text, what, passing=passing)
        except (FileNotFoundError, FileExistsError) as error:
            missing = error
            continue
        if mine is not None:
            return mine
    latest = _find_latest_claim(folder)
    if latest is None and missing is not None:
        raise missing
    raise _build_held_error(latest or _Claim(folder=folder, number=0), what)


def _try_to_claim(folder: Path, text: str, what: str, *, passing: bool) -> _Claim | None:
    """Return a claim if it is the only one, None if another try may help; raises HeldError."""
    make_private_folder(folder)
    if passing:
        _hide_lock_folder_from_git(folder)
    latest = _find_latest_claim(folder) or _Claim(folder=folder, number=0)
    if latest.number and _is_claim_held(latest):
        error = _build_held_error(latest, what)
        if latest.path.exists():
            raise error
        return None
    mine = latest.next_claim()
    if not create_file_if_missing(mine.path, text):
        return None
    if _find_latest_claim(folder) == mine and not (passing and _has_lower_held_claim(mine)):
        for number, path in _list_claim_entries(folder):
            if number <= mine.number - _KEPT:
                with suppress(OSError):
                    path.unlink()
        return mine
    # The listing was so old that this number, or the whole folder, was used and removed since.
    mine.path.unlink(missing_ok=True)
    return None


def _is_claim_held(claim: _Claim) -> bool:
    return not claim.released_marker_file.exists() and not _is_claim_abandoned(claim)


def _has_lower_held_claim(mine: _Claim) -> bool:
    """Return whether a claim stands that was made after the folder had been removed."""
    lower = {number for number, _ in _list_claim_entries(mine.folder) if number < mine.number}
    return any(_is_claim_held(_Claim(folder=mine.folder, number=number)) for number in lower)


def _hide_lock_folder_from_git(folder: Path) -> None:
    """Make git ignore the folder, even if its holder dies."""
    mark = folder / ".gitignore"
    if not mark.exists():
        write_text_atomically(mark, "*\n", lasting=False)


def _remove_lock_folder(folder: Path) -> None:
    """Remove the folder in one step, with the claim that stands in it; raises OSError."""
    aside = folder.with_name(f"{folder.name}.{os.urandom(4).hex()}")
    folder.rename(aside)
    for _ in range(_TRIES):  # another process may just write a claim, in vain
        shutil.rmtree(aside, ignore_errors=True)
        if not aside.exists():
            return


def _find_latest_claim(folder: Path) -> _Claim | None:
    numbers = [number for number, _ in _list_claim_entries(folder)]
    return _Claim(folder=folder, number=max(numbers)) if numbers else None


def _list_claim_entries(folder: Path) -> list[tuple[int, Path]]:
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return []
    known = [(path.name.removesuffix(_FREE), path) for path in paths]
    return sorted((int(name), path) for name, path in known if name.isdecimal())


@contextmanager
def _keep_claim_renewed(mine: _Claim, every_s: float) -> Iterator[None]:
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


def _read_claim(path: Path) -> str:
    try:
        return read_regular_file(path).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _parse_holder(text: str) -> dict[str, Any]:
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_claim_abandoned(claim: _Claim) -> bool:
    """Return whether the holder is gone: exact on this host, by silence for other hosts."""
    holder = _parse_holder(_read_claim(claim.path))
    lives = None
    with suppress(KeyError):
        lives = is_process_alive(holder["host"], holder["pid"], holder["started"])
    return _is_claim_too_old(claim) if lives is None else not lives


def _is_claim_too_old(claim: _Claim) -> bool:
    """Return whether the claim is older than SILENT_S, by the clock of its own file system."""
    own = claim.folder / f".{claim.path.name}.{os.urandom(4).hex()}"
    try:
        write_text_atomically(own, "", lasting=False)
        return own.stat().st_mtime - claim.path.stat().st_mtime > SILENT_S
    except FileNotFoundError:
        return False
    finally:
        own.unlink(missing_ok=True)


def _build_held_error(claim: _Claim, what: str) -> HeldError:
    holder = _parse_holder(_read_claim(claim.path))
    who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
    return HeldError(
        f"{who} {what} since {format_recorded_time(str(holder.get('at', '?')))}",
        hint=f"wait for it; if that process is gone with its machine, remove {claim.folder} "
        f"({SILENT_S / 60:.0f} minutes after its last sign of life the lock expires by itself)",
    )
