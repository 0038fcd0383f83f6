"""The history of checkpoints: attempted, proved by progress, left on request, rejected as damaged.

Kept in one append-only file next to the checkpoints; choosing one happens elsewhere. A line that
cannot be written is skipped: it only guides the choice, and a full disk must not keep a run from
loading.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from enum import StrEnum
from pathlib import Path

from hpckit.record.store import append_lines, read_lines
from hpckit.runtime.clock import now
from hpckit.values import dataclass

FATAL_ATTEMPTS = 2
"""Loads without progress after which a checkpoint is assumed to be what stops the run."""


class CheckpointFate(StrEnum):
    """What a line of the journal records about a checkpoint."""

    attempted = "attempted"
    proved = "proved"
    left = "left"
    rejected = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHistory:
    """The whole journal, by names of checkpoints.

    `attempts` are the loads, except those after which the ranks left in order before a step proved
    the checkpoint: these say nothing about it.
    """

    attempts: Counter[str]
    proved: tuple[str, ...]
    rejected: frozenset[str]

    def fatal(self, name: str) -> bool:
        """Return whether loading this one was never followed by progress."""
        return self.attempts[name] >= FATAL_ATTEMPTS and name not in self.proved

    def healthy(self, name: str) -> bool:
        """Return whether there is no evidence against this one."""
        return name in self.proved or not (self.fatal(name) or name in self.rejected)


def record(path: Path, fate: CheckpointFate, name: str, *, epoch: int, reason: str = "") -> None:
    """Append one line; errors of the file system are ignored."""
    line = {
        "fate": fate,
        "checkpoint": name,
        "epoch": epoch,
        "at": now().isoformat(timespec="milliseconds"),
    }
    with contextlib.suppress(OSError):
        append_lines(path, line | ({"reason": reason} if reason else {}))


def read_journal(path: Path) -> CheckpointHistory:
    """Return the history; lines that are damaged or of an unknown kind are left out."""
    fates: dict[str, list[str]] = {fate: [] for fate in CheckpointFate}
    for line in () if path.is_dir() else read_lines(path):
        name, fate = line.get("checkpoint"), line.get("fate")
        if isinstance(name, str) and isinstance(fate, str) and fate in fates:
            fates[fate].append(name)
    return CheckpointHistory(
        attempts=Counter(fates[CheckpointFate.attempted]) - Counter(fates[CheckpointFate.left]),
        proved=tuple(fates[CheckpointFate.proved]),
        rejected=frozenset(fates[CheckpointFate.rejected]),
    )
