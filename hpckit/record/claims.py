"""Which job has taken which run, for jobs that share runs: one claim file for each run.

Only one of several processes, on one host or many, gets a run. A claim is created with link(2),
which is atomic on NFS too, and stays until its holder gives the run back. A run without a claim may
be taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpckit.model.plain import from_plain, to_plain
from hpckit.record.attempts import numbers_in
from hpckit.record.store import make_folder, read_json, write_first
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimHolder:
    """The holder of a run: a Slurm job (`123` or `123_4`) in one of its starts."""

    job: str
    restart_count: int
    host: str
    pid: int
    started: str


def take_claim(folder: Path, run: int, holder: ClaimHolder) -> bool:
    """Claim a run; return False if it is already claimed. Raises OSError."""
    make_folder(folder)
    return write_first(_path(folder, run), json.dumps(to_plain(holder)) + "\n")


def give_back(folder: Path, run: int) -> None:
    """Let other jobs take a run; only its holder may call this."""
    with suppress(FileNotFoundError):
        _path(folder, run).unlink()


def claimed(folder: Path) -> frozenset[int]:
    """Return the runs that are claimed and not given back."""
    try:
        return frozenset(numbers_in(folder))
    except FileNotFoundError:
        return frozenset()


def held_before(folder: Path, holder: ClaimHolder) -> Iterator[int]:
    """Yield the runs that an earlier start of the holder's own job left claimed."""
    for run in sorted(claimed(folder)):
        with suppress(OSError, ValueError, TypeError):
            other = from_plain(ClaimHolder, read_json(_path(folder, run)))
            if other.job == holder.job and other.restart_count < holder.restart_count:
                yield run


def _path(folder: Path, run: int) -> Path:
    return folder / f"{run:05d}"
