"""What a save of a run costs, as the latest one was measured: how often to save follows from it.

Responsible for the two times; it must not decide anything (runtime.cadence does).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCost:
    """Training stood still for `stall`; it took `duration` until the checkpoint was committed."""

    stall: timedelta
    duration: timedelta
