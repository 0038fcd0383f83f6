"""The notices of an attempt's end: signals to its own process and to the step of agents.

Remembers the first notice and finds out what it means; acting on it happens elsewhere. Which
processes Slurm notifies depends on the cause, and it sends the same signal for many causes.
"""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import UTC, datetime, timedelta

from hpckit.model import events
from hpckit.model.failure import Cause
from hpckit.planning.recovery.round_view import StopNotice
from hpckit.runtime.assignment import Assignment
from hpckit.runtime.clock import now
from hpckit.runtime.signals import NOTICES, WARNINGS
from hpckit.runtime.supervisor.attempt import Attempt
from hpckit.runtime.supervisor.deadline import Deadline
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.threads import await_with_limit, run_in_thread_within
from hpckit.values import dataclass, field, replace

TIME_LIMIT = "the time limit"
"""Stands for a signal's name if there was no signal."""

_WARNING_NAMES = frozenset(number.name for number in WARNINGS)
_GRACE_AT_MOST_S = 900.0
"""Longest wait for a preemption that only the step has noticed; sites' GraceTime is less."""
_TO_SAVE_S = 60.0
"""How long a command may take to save and exit; one that goes on for longer ends by itself."""
_ANSWER_S = 3.0
"""How long the scheduler may take to explain a signal: the time comes off KillWait."""
_AT_ONCE = timedelta(seconds=3)
"""Within this time, signals to the step and to the batch side have the same cause."""


@dataclass(slots=True)
class Notices:
    """The notice of one attempt, if there is one.

    `noticed` is set with the first notice, `told` if this process itself got it, `terminated` if that was
    SIGTERM: what is left is KillWait. `cancelled` is whether the user wanted the end, according to the
    scheduler or to the launch's record. What comes once the attempt is `over` is no notice. `dismissed` is
    the notice that the ranks of the latest round got for no reason: the job continues.

    A warning far from the time limit was sent by hand, as a request to save now.
    """

    assignment: Assignment
    attempt: Attempt
    deadline: Deadline
    journal: Journal
    notice: StopNotice | None = field(default=None, init=False)
    dismissed: StopNotice | None = field(default=None, init=False)
    cancelled: bool = field(default=False, init=False)
    over: bool = field(default=False, init=False)
    noticed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    told: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    terminated: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _wished: bool = field(default=False, init=False)
    _unheeded: tuple[StopNotice, float] | None = field(default=None, init=False)
    _heard_at: datetime = field(default=datetime.min.replace(tzinfo=UTC), init=False)

    @staticmethod
    def ignore_signals() -> None:
        """Ignore signals from now on, so that the exit code shows how the attempt ended.

        Called when the process leaves. The event loop would otherwise handle signals until it
        closes, through a pipe that it closes before.
        """
        loop = asyncio.get_running_loop()
        for number in NOTICES:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    def record_stop_signal(self, name: str, *, can_save: bool) -> None:
        """Remember a notice for the rounds to look at. Slurm sends the same one several times.

        If it is a request to save and the ranks `can_save`, they do so and continue.
        """
        first = self.notice is None or (self._wished and name not in _WARNING_NAMES)
        if self.over or not first:
            return
        endless = self.assignment.allocation is None
        far = endless or self.deadline.is_too_early_for_slurm_warning(time.monotonic())
        self._wished = name in _WARNING_NAMES and far
        if self._wished and not can_save:
            words = f"{name} was sent long before the time limit, and there is nothing to save yet"
            self.journal.record_warning(words)
            self._wished, self._unheeded = False, (StopNotice(signal=name), time.monotonic())
            return
        cause = Cause.notice if self._wished else self._guess_cause(name)
        self.notice = StopNotice(signal=name, cause=cause)
        self.noticed.set()
        self._heard_at = at = now()
        end = self._estimate_attempt_end_time(cause, at)
        self.journal.record_event(events.NoticeHeard(at=at, signal=name, cause=cause, deadline=end))

    def _estimate_attempt_end_time(self, cause: Cause, at: datetime) -> datetime | None:
        """Return when the attempt will be ended, if that is known."""
        limits = self.deadline.limits
        if self._wished:
            return None
        if cause is not Cause.time_limit:
            return at + limits.time_to_save
        left_s = None if limits.end_s is None else limits.end_s - time.monotonic()
        return None if left_s is None else at + timedelta(seconds=left_s)

    def note_own_signal(self, name: str, *, can_save: bool) -> None:
        """Remember a notice that this process itself got."""
        at_once = now() - self._heard_at < _AT_ONCE
        if self.notice is not None and self.notice.cause is Cause.preempted and at_once:
            # Both sides got it, so it was no preemption with a grace period.
            self.notice = replace(self.notice, cause=Cause.notice)
        self.told.set()
        if name == signal.SIGTERM.name:
            self.terminated.set()
        self.record_stop_signal(name, can_save=can_save)

    def _guess_cause(self, name: str) -> Cause:
        if (
            name in _WARNING_NAMES
            or name == TIME_LIMIT
            or self.deadline.would_signal_mean_time_limit(time.monotonic())
        ):
            return Cause.time_limit
        on_slurm = bool(self.assignment.agents.prefix)
        if on_slurm and name == signal.SIGTERM.name and not self.told.is_set():
            # Only the step got it: this is how a preemption with a grace period begins.
            return Cause.preempted
        return Cause.notice

    def find_unmet_save_request(self, ran: timedelta) -> StopNotice | None:
        """Return the request to save that a round, which `ran` so long, got just before its end.

        hpckit does not pass it on if it can save nothing, but Slurm sends it to every process: a
        rank that did not expect it yet dies, and a plain command saves and exits with 0.
        """
        if self._unheeded is None:
            return None
        age_s = time.monotonic() - self._unheeded[1]
        return self._unheeded[0] if age_s < min(_TO_SAVE_S, ran.total_seconds()) else None

    async def find_meaning_of_stop_signal(self) -> None:
        """Find out what the notice meant, if there is one: a signal has many meanings."""
        self.dismissed = None
        await self.learn_why_attempt_ends()
        if self.notice is not None and self._wished and not self.cancelled:
            self._dismiss_stop_signal(self.notice)

    async def learn_why_attempt_ends(self) -> None:
        """Find out what ends the attempt, if anything does, and who starts the run again."""
        if self.notice is not None:
            await asyncio.gather(self.learn_whether_cancelled(), self._ask_scheduler_for_end_cause())

    async def learn_whether_cancelled(self) -> None:
        """Read whether the user has asked for the end, unless that takes too long."""
        asked = await run_in_thread_within(_ANSWER_S, self.attempt.is_cancelled, otherwise=False)
        self.cancelled = self.cancelled or asked

    async def _ask_scheduler_for_end_cause(self) -> None:
        allocation, notice = self.assignment.allocation, self.notice
        if allocation is None or notice is None or notice.cause is Cause.time_limit:
            return
        ending = await run_in_thread_within(_ANSWER_S, allocation.why, None)
        if ending is None:
            return
        self.cancelled = self.cancelled or ending.cancelled
        cause = ending.cause or notice.cause
        self.notice = replace(notice, cause=cause, restarts=ending.restarts)
        self._wished = self._wished and ending.cause is None
        if ending.runs_on and not self.told.is_set() and not self.cancelled:
            self._dismiss_stop_signal(self.notice)

    def _dismiss_stop_signal(self, notice: StopNotice) -> None:
        """Withdraw a notice that ends nothing; the next one counts as the first."""
        self.dismissed, self.notice = notice, None
        self._wished = False
        self.noticed.clear()
        self.told.clear()

    async def hold_allocation_for_preemption(self) -> None:
        """Hold the allocation if only the step was asked to stop and Slurm requeues the job.

        Preemption with a grace period sends SIGTERM to the step at its beginning and to the batch side at its
        end (22.05). A job that leaves in between has ended by itself and is not requeued.
        """
        heard_by_step_only = (
            self.notice is not None
            and self.notice.cause is Cause.preempted
            and self.notice.restarts
            and not self.told.is_set()
        )
        if self.assignment.requeue and heard_by_step_only:
            await await_with_limit(_GRACE_AT_MOST_S, self.told.wait())
