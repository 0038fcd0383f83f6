"""Reads every byte of the checkpoints of runs, and compares it with what was written."""

from __future__ import annotations

from dataclasses import replace

from hpckit.operations.checkpoints.find import RunCheckpoints
from hpckit.runtime.checkpoint import manifest
from hpckit.runtime.checkpoint.errors import CheckpointError
from hpckit.runtime.checkpoint.folder import CheckpointEntry


def verified(found: RunCheckpoints) -> RunCheckpoints:
    """Return the same checkpoints; those whose content is not as it was written are damaged.

    One that goes away meanwhile, because the run saves newer ones, is left out.
    """
    checked = (_verified(entry) for entry in found.entries)
    return replace(found, entries=tuple(one for one in checked if one is not None))


def _verified(entry: CheckpointEntry) -> CheckpointEntry | None:
    if entry.manifest is None:
        return entry
    try:
        manifest.check_content(entry.folder, entry.manifest, entry.manifest.files)
    except (CheckpointError, OSError) as error:
        if not (entry.folder / manifest.NAME).exists():
            return None
        return replace(entry, manifest=None, damage=str(error))
    return entry
