"""What can go wrong with checkpoints, by name. It must not print or decide.

RunError
└── CheckpointError          a save failed, or the folder cannot be used
    ├── FencedError          a newer attempt owns the run: nothing may be committed any more
    ├── ForeignFolderError   a folder of checkpoints belongs to somebody else, or others may write
    ├── UnknownOwnerError    whether this attempt still owns the run cannot be read: likewise
    ├── StateError           what was registered cannot be saved or does not fit what was saved
    └── NoCheckpointError    there are committed checkpoints, but none could be loaded
"""

from __future__ import annotations

from hpckit.errors import RunError


class CheckpointError(RunError):
    """A save failed, or the folder cannot be used."""


class FencedError(CheckpointError):
    """A newer attempt owns the run: nothing may be committed any more."""


class ForeignFolderError(CheckpointError):
    """A folder of checkpoints is not the caller's own, or others may write to it."""


class UnknownOwnerError(CheckpointError):
    """Whether this attempt still owns the run cannot be read: nothing may be committed now."""


class StateError(CheckpointError):
    """What was registered cannot be saved, or does not fit what was saved."""


class NoCheckpointError(CheckpointError):
    """There are committed checkpoints, but none of them could be loaded."""
