"""What folders are used for, as the facts of an environment name them."""

from __future__ import annotations

from enum import StrEnum


class FolderRole(StrEnum):
    """What hpckit or a run uses a folder for."""

    output = "output folder"
    """where launches are"""
    project = "project"
    """where the launch was started"""
    checkpoints = "checkpoint folder"
    """where runs keep their state, if that is not their own folder"""
    home = "home"
    """the user's home folder"""
    temporary = "temporary"
    """`$TMPDIR`, else /tmp"""
    shared_memory = "shared memory"
    """the tmpfs through which processes of a node share memory"""
