"""How a node says that it cannot read the frozen folder: one exit code and one phrase."""

from __future__ import annotations

FROZEN_FOLDER_EXIT = 66
"""Exit code of a batch script or agent that cannot read the folder (EX_NOINPUT of sysexits.h)."""

FROZEN_FOLDER_UNREADABLE = "cannot read its frozen folder"
"""What an agent writes into the log of the step: while other agents wait, the step has no exit
code yet, so the supervisor looks for this phrase."""
