"""The errors of checkpoints."""

from __future__ import annotations

from hpckit.errors import RunError


class CheckpointError(RunError):
    """A save failed, or the folder cannot be used."""


class FencedError(CheckpointError):
    """A newer attempt owns the run: nothing may be committed from now on."""


class ForeignFolderError(CheckpointError):
    """A folder of checkpoints does not belong to the user, or others may write to it."""


class UnknownOwnerError(CheckpointError):
    """It cannot be read whether this attempt still owns the run: nothing may be committed now."""


class StateError(CheckpointError):
    """What was registered cannot be saved, or does not fit what was saved."""


class RefusedStateError(CheckpointError):
    """An object raised an error when it was given its state; the checkpoint itself is whole."""


class NoCheckpointError(CheckpointError):
    """There are committed checkpoints, but none of them could be loaded."""
