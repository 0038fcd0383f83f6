"""Notes of a shared job for the supervisors of its runs: the time it has, and why it is ended.

They are two small files in the job's private folder, so that one process asks the scheduler for all of them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeVar

from hpckit.model.cluster.allocation import AllocationEnding, AttemptLimits
from hpckit.model.plain import from_plain, to_plain
from hpckit.record.store import read_json, write_json
from hpckit.values import dataclass

VARIABLE = "HPCKIT_PACK"
"""For supervisors: the folder with these files."""

_LIMITS_S = 60.0
_ENDING_S = 2.5
_LOOK_S = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedJobNotes:
    """The notes in a folder."""

    folder: Path

    def write_job_time_limits(self, limits: AttemptLimits) -> None:
        """Write how long the job has."""
        write_json(self.folder / "limits.json", to_plain(limits))

    def write_job_end_reason(self, ending: AllocationEnding) -> None:
        """Write why the job is being ended."""
        write_json(self.folder / "ending.json", to_plain(ending))

    def wait_for_job_time_limits(self) -> AttemptLimits:
        """Return how long the job has, once known; the defaults if not written in time."""
        return self._wait_for_note_file("limits.json", AttemptLimits, _LIMITS_S)

    def wait_for_job_end_reason(self) -> AllocationEnding:
        """Return why the job is being ended; the default if not written shortly."""
        return self._wait_for_note_file("ending.json", AllocationEnding, _ENDING_S)

    def _wait_for_note_file(self, name: str, kind: type[T], patience_s: float) -> T:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return from_plain(kind, read_json(self.folder / name))
            except (OSError, ValueError, TypeError):
                if time.monotonic() > deadline:
                    return kind()
            time.sleep(_LOOK_S)
