"""How long another process has been silent, in the listener's own time. Pure.

Leaves out time in which the listener itself did not run: processes that were stopped together
(`scontrol suspend`, SIGSTOP, a paused virtual machine) continue together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_OVERSLEPT_TICKS = 2.0
"""If a look comes this many times later than usual, the listener did not run meanwhile."""


@dataclass(slots=True, kw_only=True)
class SilenceTimer:
    """Silence of one speaker, checked every `tick_s` seconds by a monotonic clock."""

    tick_s: float
    silent_s: float = field(default=0.0, init=False)
    _looked_at: float | None = field(default=None, init=False)

    def heard(self) -> None:
        """Note that something was received."""
        self.silent_s = 0.0

    def look(self, at: float) -> float:
        """Return for how many seconds nothing was received; call it at every tick.

        A late look counts as two ticks: the listener may be stopped or short of time, and what it
        could not receive is no evidence about the speaker.
        """
        before, self._looked_at = self._looked_at, at
        if before is not None:
            self.silent_s += min(at - before, _OVERSLEPT_TICKS * self.tick_s)
        return self.silent_s
