"""When an attempt leaves by itself before its time limit, and whether a notice leaves it time.

Calculates this from measured save durations. Slurm's own warning comes up to a minute early or not
at all, and its time limit is no preemption: Slurm does not restart what it kills then. A limit can
be changed, and a suspended job gets its time back, so the limit is requested again: seldom, not at
the same moment as other supervisors, and always before leaving because of it. Moments are seconds
of the monotonic clock, never of this node's time of day. Notifying ranks happens elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

from hpckit.model.cluster.allocation import AttemptLimits
from hpckit.patterns import lazy_pattern
from hpckit.runtime.supervisor.drain_poll import polling_pause_s
from hpckit.runtime.threads import await_with_limit, run_in_thread
from hpckit.values import dataclass, field

_MARGIN = timedelta(seconds=5)
"""Time for leaving Python, for the agents and for the record, in addition to the save itself."""
_SAFETY = 2
"""A save may take this many times as long as the longest one: file systems have bad moments."""
_AHEAD = lazy_pattern(r"@(\d+)\Z")
_AHEAD_S, _EARLY_S = 60, 90
"""`sbatch --signal` warns a minute ahead by default, and up to a minute too early."""
_AT_THE_LIMIT_S = 5.0
"""SIGTERM this close to the end of the job comes from the time limit."""
_INTERVAL_S = 600.0
_UNKNOWN_S = 60.0
"""Interval until there has been an answer."""
_TICK_S = 1.0
_RESULTS_S = 600.0
_LAST_ANSWER_S = 3.0
"""How long leaving waits for the last answer: it comes off the time to save."""
_FRESH_S = 30.0
"""How long an answer is as good as a new one."""


@dataclass(slots=True, kw_only=True)
class Deadline:
    """The end of an attempt. `lead` is used until a save has been measured; 0: never leave.

    `known` is whether `limits` were received; `signal` is the job's own `--signal`, empty without
    one. `ask` blocks, and returns None if there is no answer.
    """

    lead: timedelta
    ask: Callable[[], AttemptLimits | None] = lambda: None
    limits: AttemptLimits = field(default_factory=AttemptLimits)
    known: bool = False
    signal: str = ""
    results: timedelta = timedelta()
    """How long nodes took at most to bring results out, which they do again before they leave."""
    _longest_save: timedelta | None = field(default=None, init=False)
    _warned: bool = field(default=False, init=False)
    _answered_at: float | None = field(default=None, init=False)

    def record_and_check_save_time(self, duration: timedelta) -> str:
        """Take a save's duration into account; return a warning if a notice leaves too little time.

        It comes once; otherwise the text is empty.
        """
        self._longest_save = max(duration, self._longest_save or timedelta())
        window = self.limits.time_to_save
        if self._warned or _SAFETY * self._longest_save + self.results <= window:
            return ""
        self._warned = True
        return (
            f"a save takes {duration.total_seconds():.1f} s, and a preemption or cancellation "
            f"leaves {window.total_seconds():.0f} s: the work since the last save may be "
            "lost; save more often (checkpoint.interval_min) or to a faster place (checkpoint.dir)"
        )

    @property
    def has_measured_a_save(self) -> bool:
        """Whether a save has been measured in this attempt."""
        return self._longest_save is not None

    def when_ranks_must_leave(self, usual_step: timedelta) -> float | None:
        """Return when ranks must be asked to save and leave; None if there is no limit."""
        if self.limits.end_s is None or not self.lead:
            return None
        lead = self.lead
        if self._longest_save is not None:
            lead = _SAFETY * (self._longest_save + usual_step) + _MARGIN
        return self.limits.end_s - (lead + self.results).total_seconds()

    def seconds_for_results(self, since_notice_s: float | None) -> float:
        """Return how long nodes may bring results out, so long after a notice, if there was one."""
        if since_notice_s is None:
            return _RESULTS_S
        return max((self.limits.time_to_save - _MARGIN).total_seconds() - since_notice_s, 1.0)

    def is_too_early_for_slurm_warning(self, at: float) -> bool:
        """Return whether it is certain that Slurm does not warn of the time limit yet."""
        ahead = _AHEAD.search(self.signal)
        lead_s = _EARLY_S + (int(ahead[1]) if ahead else _AHEAD_S)
        end_s = self.limits.end_s
        return self.known and (end_s is None or end_s - at > lead_s)

    def would_signal_mean_time_limit(self, at: float) -> bool:
        """Return whether a signal to stop that came at this moment came from the time limit."""
        return self.limits.end_s is not None and at >= self.limits.end_s - _AT_THE_LIMIT_S

    async def ask_scheduler_for_limits(self) -> bool:
        """Ask; return whether there was an answer."""
        limits = await run_in_thread(self.ask)
        if limits is not None:
            self.limits, self.known = limits, True
            self._answered_at = time.monotonic()
        return limits is not None

    async def await_time_to_leave(self, usual_step: Callable[[], timedelta | None]) -> None:
        """Return when ranks have to leave; `usual_step` returns None while they do not loop."""
        asking = asyncio.create_task(self._keep_asking_for_limits())
        try:
            while not await self._confirm_time_to_leave(usual_step()):  # noqa: ASYNC110  # time is waited for
                await asyncio.sleep(_TICK_S)
        finally:
            asking.cancel()

    async def _keep_asking_for_limits(self) -> None:
        bad = 0
        while True:
            interval_s = _UNKNOWN_S if self._answered_at is None else _INTERVAL_S
            await asyncio.sleep(polling_pause_s(interval_s, bad))
            bad = 0 if await self.ask_scheduler_for_limits() else bad + 1

    async def _confirm_time_to_leave(self, usual_step: timedelta | None) -> bool:
        if usual_step is None or not self._is_past_time_to_leave(usual_step):
            return False
        asked = self._answered_at
        if asked is None or time.monotonic() - asked > _FRESH_S:
            await await_with_limit(_LAST_ANSWER_S, self.ask_scheduler_for_limits())
        return self._is_past_time_to_leave(usual_step)

    def _is_past_time_to_leave(self, usual_step: timedelta) -> bool:
        leave_at = self.when_ranks_must_leave(usual_step)
        return leave_at is not None and time.monotonic() >= leave_at
