"""The cost of a save of a run, as measured at the latest one; how often to save follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCost:
    """Training stood still for `stall`; it took `duration` until the checkpoint was committed."""

    stall: timedelta
    duration: timedelta
