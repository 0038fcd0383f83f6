"""What a supervisor may know of its allocation, and ask of whoever gave it.

Responsible for these few terms; it must not know a scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from hpckit.model.failure import Cause
from hpckit.model.states import RequeueOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLimits:
    """How long an attempt has: when it ends at the latest, and how long a notice leaves it.

    `end_s` is in seconds of the monotonic clock of the host that asked; `kill_wait` is the time
    between SIGTERM and SIGKILL; `grace` what a preemption gives before that. Null means not known,
    or without end.
    """

    end_s: float | None = None
    kill_wait: timedelta = timedelta(seconds=30)
    grace: timedelta | None = None

    @property
    def window(self) -> timedelta:
        """The time ranks have to save and leave when they are told to stop without warning."""
        return self.kill_wait + (self.grace or timedelta())


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationEnding:
    """Why an allocation is being ended, as far as its scheduler tells; null where it does not.

    `runs_on` is whether it says that no end is to be seen.
    """

    cause: Cause | None = None
    cancelled: bool = False
    runs_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRequest:
    """A new attempt: without the nodes `excluded`, and with those `lost` given up at once."""

    excluded: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueResult:
    """The result of asking for a new attempt, and the explanation of it.

    `excluded` are all nodes that the next attempt leaves out; `warning` says why some that should
    be left out are not.
    """

    outcome: RequeueOutcome
    message: str = ""
    excluded: tuple[str, ...] = ()
    warning: str = ""

    @property
    def text(self) -> str:
        """The explanation with its warning."""
        return "; ".join(words for words in (self.message, self.warning) if words)
