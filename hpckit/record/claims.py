"""Which job has taken which run, for jobs that share runs: one claim file for each run.

Only one of several processes, on one host or many, gets a run. A claim is created with link(2), which is
atomic on NFS too, and stays until its holder gives the run back. A run without a claim may be taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpckit.model.plain import from_plain, to_plain
from hpckit.record.attempts import list_numeric_entry_names
from hpckit.record.store import create_file_if_missing, make_private_folder, read_json
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimHolder:
    """The holder of a run: a Slurm job (`123` or `123_4`) in one of its starts."""

    job: str
    restart_count: int
    host: str
    pid: int
    started: str


def claim_run(folder: Path, run: int, holder: ClaimHolder) -> bool:
    """Claim a run; return False if it is already claimed. Raises OSError."""
    make_private_folder(folder)
    return create_file_if_missing(_claim_path(folder, run), json.dumps(to_plain(holder)) + "\n")


def release_run_claim(folder: Path, run: int) -> None:
    """Let other jobs take a run; only its holder may call this."""
    with suppress(FileNotFoundError):
        _claim_path(folder, run).unlink()


def list_claimed_runs(folder: Path) -> frozenset[int]:
    """Return the runs that are claimed and not given back."""
    try:
        return frozenset(list_numeric_entry_names(folder))
    except FileNotFoundError:
        return frozenset()


def list_runs_left_claimed(folder: Path, holder: ClaimHolder) -> Iterator[int]:
    """Yield the runs that an earlier start of the holder's own job left claimed."""
    for run in sorted(list_claimed_runs(folder)):
        with suppress(OSError, ValueError, TypeError):
            other = from_plain(ClaimHolder, read_json(_claim_path(folder, run)))
            if other.job == holder.job and other.restart_count < holder.restart_count:
                yield run


def _claim_path(folder: Path, run: int) -> Path:
    return folder / f"{run:05d}"
