"""Which checkpoints may go. Pure: it must not remove anything itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpckit.runtime.checkpoint.journal import History
from hpckit.runtime.checkpoint.shelf import Entry

FEWEST = 2
"""Committed checkpoints that always stay: the newest, and one to fall back on."""


def superfluous(entries: Sequence[Entry], history: History, keep: int) -> list[Entry]:
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


def abandoned(entries: Sequence[Entry], epoch: int, found: frozenset[Path]) -> list[Entry]:
    """Return torn folders nobody writes any more.

    Those are of older attempts, or were `found` when this process began.
    """
    return [
        entry
        for entry in entries
        if entry.torn and (entry.epoch < epoch or (entry.epoch == epoch and entry.folder in found))
    ]
