"""Which checkpoints may be removed. Pure: removes nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from hpckit.runtime.checkpoint.folder import CheckpointEntry
from hpckit.runtime.checkpoint.journal import CheckpointHistory

FEWEST = 2
"""Committed checkpoints that always stay: the newest, and one to fall back on."""


def superfluous(
    entries: Sequence[CheckpointEntry], history: CheckpointHistory, keep: int
) -> list[CheckpointEntry]:
    """Return the checkpoints that `keep` newer, healthy ones make superfluous; oldest first.

    `entries` come newest first. Torn, damaged, rejected and fatal ones do not count, and the one
    that was proved last always stays.
    """
    count, spare = 0, []
    last_proved = next(reversed(history.proved), None)
    for entry in entries:
        if count >= max(keep, FEWEST) and entry.name != last_proved and not entry.torn:
            spare.append(entry)
        count += entry.manifest is not None and history.healthy(entry.name)
    return spare[::-1]


def abandoned(
    entries: Sequence[CheckpointEntry], epoch: int, found: frozenset[Path]
) -> list[CheckpointEntry]:
    """Return torn folders that no process writes to now.

    These belong to older attempts, or were `found` when this process began.
    """
    return [
        entry
        for entry in entries
        if entry.torn and (entry.epoch < epoch or (entry.epoch == epoch and entry.folder in found))
    ]


class RetentionExtent(StrEnum):
    """How much of an ended run may be removed.

    `unproved` is what no load would take (torn, damaged, rejected or fatal); `old` also what is
    older than the newest; `all` leaves nothing.
    """

    unproved = "unproved"
    old = "old"
    all = "all"


def clearable(
    entries: Sequence[CheckpointEntry], history: CheckpointHistory, extent: RetentionExtent
) -> list[CheckpointEntry]:
    """Return the checkpoints that may go once no process writes; `entries` newest first.

    Unless `all`, the following stay: the two newest that were committed, whatever their state, the
    two newest that are healthy, and the one that was proved last.
    """
    if extent is RetentionExtent.all:
        return list(entries)
    committed = [entry.name for entry in entries if not entry.torn]
    healthy = [
        entry.name
        for entry in entries
        if entry.manifest is not None and history.healthy(entry.name)
    ]
    kept = {*committed[:FEWEST], *healthy[: FEWEST if extent is RetentionExtent.old else None]}
    kept.update(history.proved[-1:])
    return [entry for entry in entries if entry.name not in kept]
