"""When an attempt leaves by itself, ahead of its time limit; and whether a notice leaves it time.

Responsible for this arithmetic, from what saves were measured to take; it must not stop anything.
Slurm's own warning comes up to a minute early or not at all, and its time limit is no preemption:
what it kills it does not start again. Moments are seconds of the monotonic clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from hpckit.model.cluster.allocation import AttemptLimits

_MARGIN = timedelta(seconds=5)
"""For leaving Python, for the agents and for the record, beside the save itself."""
_SAFETY = 2
"""A save takes up to so many times what the longest one took: file systems have bad moments."""
_AHEAD = re.compile(r"@(\d+)\Z")
_AHEAD_S, _EARLY_S = 60, 90
"""`sbatch --signal` warns a minute ahead unless it says otherwise, and up to a minute too early."""
_AT_THE_LIMIT_S = 5.0
"""SIGTERM this close to the end of the job is the time limit's."""


@dataclass(slots=True, kw_only=True)
class Deadline:
    """The end of an attempt. `lead` is what is taken until a save has been measured; 0: never.

    `known` is whether `limits` were told; `signal` is the job's own `--signal`, empty without one.
    """

    lead: timedelta
    warn: Callable[[str], None]
    limits: AttemptLimits = field(default_factory=AttemptLimits)
    known: bool = False
    signal: str = ""
    _longest_save: timedelta | None = field(default=None, init=False)
    _warned: bool = field(default=False, init=False)

    def saved(self, duration: timedelta) -> None:
        """Take a save's duration into account; warns once where a notice would not leave time."""
        self._longest_save = max(duration, self._longest_save or timedelta())
        window = self.limits.window
        if self._warned or _SAFETY * self._longest_save <= window:
            return
        self._warned = True
        self.warn(
            f"a save takes {duration.total_seconds():.1f} s, and a preemption or cancellation "
            f"leaves {window.total_seconds():.0f} s: what was done since the last save may be "
            "lost; save more often (checkpoint.interval_min) or to a faster place (checkpoint.dir)"
        )

    @property
    def saved_any(self) -> bool:
        """Whether a save has been measured in this attempt."""
        return self._longest_save is not None

    def leave_at(self, usual_step: timedelta) -> float | None:
        """Return when ranks have to be told to save and leave; None where there is no limit."""
        if self.limits.end_s is None or not self.lead:
            return None
        lead = self.lead
        if self._longest_save is not None:
            lead = _SAFETY * (self._longest_save + usual_step) + _MARGIN
        return self.limits.end_s - lead.total_seconds()

    def is_far(self, at: float) -> bool:
        """Whether it is known that Slurm does not warn of the time limit at this moment yet."""
        ahead = _AHEAD.search(self.signal)
        lead_s = _EARLY_S + (int(ahead[1]) if ahead else _AHEAD_S)
        end_s = self.limits.end_s
        return self.known and (end_s is None or end_s - at > lead_s)

    def reached(self, at: float) -> bool:
        """Whether a signal to stop that came at this moment was the time limit's."""
        return self.limits.end_s is not None and at >= self.limits.end_s - _AT_THE_LIMIT_S
