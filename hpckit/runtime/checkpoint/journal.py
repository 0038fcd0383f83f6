"""The history of checkpoints, and which of them may be removed; it removes nothing itself.

They were attempted, proved by progress, left on request or rejected as damaged. That is kept in one
append-only file next to the checkpoints; choosing one happens elsewhere. A line that cannot be
written is skipped: it only guides the choice, and a full disk must not keep a run from loading.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from hpckit.record.store import append_json_lines, read_json_lines
from hpckit.runtime.checkpoint.folder import CheckpointEntry
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

    def made_no_progress_after_load(self, name: str) -> bool:
        """Return whether loading this one was never followed by progress."""
        return self.attempts[name] >= FATAL_ATTEMPTS and name not in self.proved

    def is_healthy(self, name: str) -> bool:
        """Return whether there is no evidence against this one."""
        return name in self.proved or not (self.made_no_progress_after_load(name) or name in self.rejected)


def append_checkpoint_fate(
    path: Path, fate: CheckpointFate, name: str, *, epoch: int, reason: str = ""
) -> None:
    """Append one line; errors of the file system are ignored."""
    line = {"fate": fate, "checkpoint": name, "epoch": epoch, "at": now().isoformat(timespec="milliseconds")}
    with contextlib.suppress(OSError):
        append_json_lines(path, line | ({"reason": reason} if reason else {}))


def read_journal(path: Path) -> CheckpointHistory:
    """Return the history; lines that are damaged or of an unknown kind are left out."""
    fates: dict[str, list[str]] = {fate: [] for fate in CheckpointFate}
    for line in () if path.is_dir() else read_json_lines(path):
        name, fate = line.get("checkpoint"), line.get("fate")
        if isinstance(name, str) and isinstance(fate, str) and fate in fates:
            fates[fate].append(name)
    return CheckpointHistory(
        attempts=Counter(fates[CheckpointFate.attempted]) - Counter(fates[CheckpointFate.left]),
        proved=tuple(fates[CheckpointFate.proved]),
        rejected=frozenset(fates[CheckpointFate.rejected]),
    )


FEWEST = 2
"""Committed checkpoints that always stay: the newest, and one to fall back on."""


def find_superfluous_checkpoints(
    entries: Sequence[CheckpointEntry], history: CheckpointHistory, keep: int
) -> list[CheckpointEntry]:
    """Return the checkpoints that `keep` newer, healthy ones make superfluous; oldest first.

    `entries` come newest first. Torn, damaged, rejected and fatal ones do not count, and the one
    that was proved last always stays.
    """
    count, spare = 0, []
    last_proved = next(reversed(history.proved), None)
    for entry in entries:
        if count >= max(keep, FEWEST) and entry.name != last_proved and not entry.is_uncommitted:
            spare.append(entry)
        count += entry.manifest is not None and history.is_healthy(entry.name)
    return spare[::-1]


def find_abandoned_checkpoints(
    entries: Sequence[CheckpointEntry], epoch: int, found: frozenset[Path]
) -> list[CheckpointEntry]:
    """Return torn folders that no process writes to now.

    These belong to older attempts, or were `found` when this process began.
    """
    return [
        entry
        for entry in entries
        if entry.is_uncommitted and (entry.epoch < epoch or (entry.epoch == epoch and entry.folder in found))
    ]


class RetentionExtent(StrEnum):
    """How much of an ended run may be removed.

    `unproved` is what no load would take (torn, damaged, rejected or fatal); `old` also what is
    older than the newest; `all` leaves nothing.
    """

    unproved = "unproved"
    old = "old"
    all = "all"


def find_removable_checkpoints(
    entries: Sequence[CheckpointEntry], history: CheckpointHistory, extent: RetentionExtent
) -> list[CheckpointEntry]:
    """Return the checkpoints that may go once no process writes; `entries` newest first.

    Unless `all`, the following stay: the two newest that were committed, whatever their state, the
    two newest that are healthy, and the one that was proved last.
    """
    if extent is RetentionExtent.all:
        return list(entries)
    committed = [entry.name for entry in entries if not entry.is_uncommitted]
    healthy = [
        entry.name for entry in entries if entry.manifest is not None and history.is_healthy(entry.name)
    ]
    kept = {*committed[:FEWEST], *healthy[: FEWEST if extent is RetentionExtent.old else None]}
    kept.update(history.proved[-1:])
    return [entry for entry in entries if entry.name not in kept]
