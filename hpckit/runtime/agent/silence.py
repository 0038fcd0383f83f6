"""For how long another process has been silent, in the listener's own time.

Responsible for leaving out time in which the listener itself did not run: processes that were
stopped together (`scontrol suspend`, SIGSTOP, a paused virtual machine) go on together. Pure: it
must not read a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_OVERSLEPT_TICKS = 2.0
"""A look that comes this many times later than usual: the listener did not run meanwhile."""


@dataclass(slots=True, kw_only=True)
class SilenceTimer:
    """Silence of one speaker, looked at every `tick_s` seconds by a monotonic clock."""

    tick_s: float
    silent_s: float = field(default=0.0, init=False)
    _looked_at: float | None = field(default=None, init=False)

    def heard(self) -> None:
        """Hear anything at all."""
        self.silent_s = 0.0

    def look(self, at: float) -> float:
        """Return for how many seconds nothing was heard; to be called at every tick.

        A look that comes late counts as two ticks: the listener may be stopped or short of time,
        and what it could not hear says nothing of the speaker.
        """
        before, self._looked_at = self._looked_at, at
        if before is not None:
            self.silent_s += min(at - before, _OVERSLEPT_TICKS * self.tick_s)
        return self.silent_s
