"""What became of checkpoints: attempted, proved by progress, left as told, rejected as damaged.

Responsible for that record, in one append-only file beside the checkpoints; it must not choose.
A record that cannot be written is let go: it only guides the choice, and a full disk must not
keep a run from loading.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hpckit.record.store import append_line, read_lines
from hpckit.runtime.clock import now

FATAL_ATTEMPTS = 2
"""Loads without progress after which a checkpoint is taken for what stops the run."""


class CheckpointFate(StrEnum):
    """What a line of the journal says of a checkpoint."""

    attempted = "attempted"
    proved = "proved"
    left = "left"
    rejected = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHistory:
    """The journal as a whole, by names of checkpoints.

    `attempts` are the loads but those after which the ranks left in order before a step proved it:
    these say nothing of the checkpoint.
    """

    attempts: Counter[str]
    proved: tuple[str, ...]
    rejected: frozenset[str]

    def fatal(self, name: str) -> bool:
        """Whether loading this one was never followed by progress."""
        return self.attempts[name] >= FATAL_ATTEMPTS and name not in self.proved

    def healthy(self, name: str) -> bool:
        """Whether nothing speaks against this one."""
        return name in self.proved or not (self.fatal(name) or name in self.rejected)


def record(path: Path, fate: CheckpointFate, name: str, *, epoch: int, reason: str = "") -> None:
    """Append one line."""
    line = {
        "fate": fate,
        "checkpoint": name,
        "epoch": epoch,
        "at": now().isoformat(timespec="milliseconds"),
    }
    with contextlib.suppress(OSError):
        append_line(path, line | ({"reason": reason} if reason else {}))


def read_journal(path: Path) -> CheckpointHistory:
    """Return the history; lines that are damaged or of no known kind are left out."""
    fates: dict[str, list[str]] = {fate: [] for fate in CheckpointFate}
    for line in read_lines(path):
        name, fate = line.get("checkpoint"), line.get("fate")
        if isinstance(name, str) and isinstance(fate, str) and fate in fates:
            fates[fate].append(name)
    return CheckpointHistory(
        attempts=Counter(fates[CheckpointFate.attempted]) - Counter(fates[CheckpointFate.left]),
        proved=tuple(fates[CheckpointFate.proved]),
        rejected=frozenset(fates[CheckpointFate.rejected]),
    )
