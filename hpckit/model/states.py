"""The states of Slurm and of hpckit, and the complete mapping between them.

Names and meanings are those of Slurm's own page on job states (job_state_codes): 12 base states and
the flags.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Self

from hpckit.values import dataclass, field


class RecordedEnum(StrEnum):
    """Words of a record: one that only a newer hpckit knows is read as the last member."""

    @classmethod
    def _missing_(cls, value: object) -> Self:  # noqa: ARG003  # whatever it is
        return tuple(cls)[-1]


class RunState(RecordedEnum):
    """The state of a run as its user sees it."""

    pending = "pending"
    running = "running"
    completed = "completed"
    failed = "failed"
    cancelled = "cancelled"
    interrupted = "interrupted"
    unknown = "unknown"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens by itself."""
        return self in _FINAL or self is RunState.interrupted

    @property
    def is_final(self) -> bool:
        """Whether the run is over, and not only its latest attempt."""
        return self in _FINAL


class RoundAction(RecordedEnum):
    """What follows an ended round. `new_round`: in the same allocation; `new_attempt`: in another.

    `end`: nothing, or an unknown action.
    """

    completed = "completed"
    new_round = "new_round"
    new_attempt = "new_attempt"
    end = "end"


class DrainAction(RecordedEnum):
    """What a run does about a node that is being drained.

    `move`: a new round on other nodes; `leave`: a new attempt; `stay`: it keeps running there.
    """

    move = "move"
    leave = "leave"
    stay = "stay"


class RequeueOutcome(RecordedEnum):
    """The result of asking Slurm for a new attempt.

    `requeued`: there will be one, no matter which process asked for it. `fenced`: the run belongs
    to another attempt now. `refused`: Slurm will never start one. `unreachable`: Slurm did not
    answer in time. `unknown`: a value of a newer hpckit.
    """

    requeued = "requeued"
    fenced = "fenced"
    refused = "refused"
    unreachable = "unreachable"
    unknown = "unknown"


_FINAL = frozenset({RunState.completed, RunState.failed, RunState.cancelled})


class BaseState(StrEnum):
    """Slurm's base states, and one for unknown states of a newer Slurm."""

    pending = "PENDING"
    running = "RUNNING"
    suspended = "SUSPENDED"
    completed = "COMPLETED"
    cancelled = "CANCELLED"
    failed = "FAILED"
    timeout = "TIMEOUT"
    node_fail = "NODE_FAIL"
    preempted = "PREEMPTED"
    boot_fail = "BOOT_FAIL"
    deadline = "DEADLINE"
    out_of_memory = "OUT_OF_MEMORY"
    unknown = "UNKNOWN"


class StateFlag(StrEnum):
    """Slurm's state flags, shown instead of a base state or next to one."""

    completing = "COMPLETING"
    configuring = "CONFIGURING"
    expediting = "EXPEDITING"
    launch_failed = "LAUNCH_FAILED"
    power_up_node = "POWER_UP_NODE"
    reconfig_fail = "RECONFIG_FAIL"
    requeued = "REQUEUED"
    requeue_fed = "REQUEUE_FED"
    requeue_hold = "REQUEUE_HOLD"
    resizing = "RESIZING"
    resv_del_hold = "RESV_DEL_HOLD"
    revoked = "REVOKED"
    signaling = "SIGNALING"
    special_exit = "SPECIAL_EXIT"
    stage_out = "STAGE_OUT"
    stopped = "STOPPED"
    update_db = "UPDATE_DB"


_BASE_OF_FLAG = {
    StateFlag.completing: BaseState.running,
    StateFlag.configuring: BaseState.running,
    StateFlag.expediting: BaseState.pending,
    StateFlag.launch_failed: BaseState.pending,
    StateFlag.power_up_node: BaseState.pending,
    StateFlag.reconfig_fail: BaseState.failed,
    StateFlag.requeued: BaseState.pending,
    StateFlag.requeue_fed: BaseState.pending,
    StateFlag.requeue_hold: BaseState.pending,
    StateFlag.resizing: BaseState.running,
    StateFlag.resv_del_hold: BaseState.pending,
    StateFlag.revoked: BaseState.cancelled,
    StateFlag.signaling: BaseState.running,
    StateFlag.special_exit: BaseState.pending,
    StateFlag.stage_out: BaseState.running,
    StateFlag.stopped: BaseState.running,
    StateFlag.update_db: BaseState.running,
}
"""The base state of a job when Slurm shows only the flag."""

_RUN_STATE = {
    BaseState.pending: RunState.pending,
    BaseState.running: RunState.running,
    BaseState.suspended: RunState.running,
    BaseState.completed: RunState.completed,
    BaseState.cancelled: RunState.cancelled,
    BaseState.failed: RunState.failed,
    BaseState.timeout: RunState.interrupted,
    BaseState.node_fail: RunState.interrupted,
    BaseState.preempted: RunState.interrupted,
    BaseState.boot_fail: RunState.interrupted,
    BaseState.deadline: RunState.interrupted,
    BaseState.out_of_memory: RunState.failed,
    BaseState.unknown: RunState.unknown,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmState:
    """One state as Slurm writes it: a base state and flags, with the original text."""

    base: BaseState
    flags: frozenset[StateFlag] = field(default_factory=frozenset)
    text: str

    @property
    def ended(self) -> bool:
        """Whether Slurm is done with the job; an unknown word never counts as ended."""
        return self.run_state.ended and StateFlag.completing not in self.flags

    @property
    def run_state(self) -> RunState:
        """The state of the run that follows, as far as Slurm knows."""
        return _RUN_STATE[self.base]


@lru_cache(maxsize=256)  # a listing has many lines and few states
def parse_slurm_state(text: str) -> SlurmState:
    """Parse any spelling: `CANCELLED by 1001`, `CANCELLED+`, `RUNNING,COMPLETING`, `COMPLETING`.

    Never raises: an unknown word becomes `BaseState.unknown`.
    """
    words = [word.rstrip("+") for word in text.replace(",", " ").split()]
    known_flags = {flag.value: flag for flag in StateFlag}
    known_bases = {base.value: base for base in BaseState}
    flags = frozenset(known_flags[word] for word in words if word in known_flags)
    bases = [known_bases[word] for word in words if word in known_bases]
    if bases:
        base = bases[0]
    elif flags:
        base = _BASE_OF_FLAG[min(flags)]
    else:
        base = BaseState.unknown
    return SlurmState(base=base, flags=flags, text=text.strip())


class Standing(StrEnum):
    """What a resume does with a run.

    `resumable` runs are submitted again; all others are left alone. `waiting` and `running` are under way,
    and so is `unsettled`, which Slurm may start again by itself. For `unconfirmed`, it is not known whether
    Slurm accepted it. `cancelled`: the resume does not include cancelled runs. `spent` has used up its
    budgets. `blocked` follows a run that is left alone, `detached` one that is not among the chosen runs.
    """

    resumable = "resumable"
    completed = "completed"
    waiting = "waiting"
    running = "running"
    unsettled = "unsettled"
    unconfirmed = "unconfirmed"
    cancelled = "cancelled"
    spent = "spent"
    blocked = "blocked"
    detached = "detached"

    @property
    def may_progress_by_itself(self) -> bool:
        """Whether the run may still make progress by itself."""
        return self in _UNDER_WAY


_UNDER_WAY = frozenset({Standing.waiting, Standing.running, Standing.unsettled})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A standing with its details.

    `detail` says why budgets are spent, or why an earlier stage did not complete; `follows` is the
    run that a detached one waits for.
    """

    standing: Standing
    detail: str = ""
    follows: int | None = None
