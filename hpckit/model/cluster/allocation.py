"""What a supervisor knows of its allocation, and can ask of the scheduler or executor that gave it.

Independent of any particular scheduler.
"""

from __future__ import annotations

from datetime import timedelta

from hpckit.model.failure import Cause
from hpckit.model.states import RequeueOutcome
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLimits:
    """How much time an attempt has: its latest end, and the time that a notice leaves.

    `end_s` is in seconds of the monotonic clock of the host that asked. `kill_wait` is the time
    between SIGTERM and SIGKILL, `grace` the time that a preemption gives before that. Null means
    unknown or unlimited.
    """

    end_s: float | None = None
    kill_wait: timedelta = timedelta(seconds=30)
    grace: timedelta | None = None

    @property
    def time_to_save(self) -> timedelta:
        """How much time ranks have to save and exit when they are stopped without warning."""
        return self.kill_wait + (self.grace or timedelta())


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationEnding:
    """Why an allocation is being ended, as far as its scheduler reports it; null if it does not.

    `runs_on` is true if the scheduler reports no sign of an end. `restarts` is false if it will not
    start what it ends again by itself.
    """

    cause: Cause | None = None
    cancelled: bool = False
    runs_on: bool = False
    restarts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRequest:
    """A new attempt that leaves out the nodes `excluded` and gives up the nodes `lost` at once.

    It is to have more of what ran out: memory or time, by the cause `grow`.
    """

    excluded: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    grow: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueResult:
    """The result of asking for a new attempt, with an explanation.

    `excluded` are all nodes that the next attempt leaves out, `added` those of them that the job
    did not leave out before. `kept` are those that should be left out and cannot be, as the job
    needs them, or Slurm refuses; `warning` says why. `disallowed` is whether Slurm refuses it for
    this job, which is about to end: another job may continue its run.
    """

    outcome: RequeueOutcome
    message: str = ""
    excluded: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    warning: str = ""
    kept: tuple[str, ...] = ()
    disallowed: bool = False

    @property
    def message_with_warning(self) -> str:
        """The explanation, followed by the warning."""
        return "; ".join(words for words in (self.message, self.warning) if words)
