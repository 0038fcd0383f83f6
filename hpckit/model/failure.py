"""How a rank ended, and how the failure of a run is recorded.

An exit code of srun is lossy (a rank killed by SIGKILL shows as 137 or 143, depending on what
happened to its neighbours), so failures are classified from the ranks' own exit records.
"""

from __future__ import annotations

import signal
from datetime import datetime
from enum import Flag, StrEnum, auto

from hpckit.model.diagnosis.collectives import CollectiveWait
from hpckit.model.parallel.layout import Layout, format_rank
from hpckit.model.states import RecordedEnum
from hpckit.values import dataclass

FROZEN_FOLDER_EXIT = 66
"""Exit code of a batch script or agent that cannot read the folder (EX_NOINPUT of sysexits.h)."""

SHELL_SIGNAL = 128
"""What shells add to the number of a signal, in the exit code of what it ended."""

FROZEN_FOLDER_UNREADABLE = "cannot read its frozen folder"
"""The phrase that an agent writes into the step's log. While other agents wait, the step has no
exit code yet, so the supervisor looks for this phrase."""


class Cause(RecordedEnum):
    """Why a run did not complete.

    A `signal` came from another process (SIGKILL …), a `crash` from the rank itself (SIGSEGV …).
    `left`: a rank was asked to leave, but its attempt was not. `unsaved`: registered state is not
    saved. `straggler`: a node was so slow that a spare took its place. `unhealthy`: preflight found
    nodes that cannot train. `resized`: the run continues with more or fewer replicas. `container`: the image
    is another one than at launch, or does not fit its nodes. `data_damaged`, `scratch_full`: a node cannot
    have its data, for its disk. `data_refused`: no node can, as the source has changed or `data.dir` must not
    be used.
    """

    exception = "exception"
    exit_code = "exit_code"
    signal = "signal"
    crash = "crash"
    hang = "hang"
    nan = "nan"
    cuda_oom = "cuda_oom"
    host_oom = "host_oom"
    disk_full = "disk_full"
    unsaved = "unsaved"
    communication = "communication"
    rendezvous = "rendezvous"
    agents_missing = "agents_missing"
    node_lost = "node_lost"
    frozen_folder = "frozen_folder"
    container = "container"
    preempted = "preempted"
    drained = "drained"
    straggler = "straggler"
    unhealthy = "unhealthy"
    resized = "resized"
    data_damaged = "data_damaged"
    scratch_full = "scratch_full"
    data_refused = "data_refused"
    left = "left"
    time_limit = "time_limit"
    notice = "notice"
    launcher_lost = "launcher_lost"
    scheduler = "scheduler"
    unknown = "unknown"

    @property
    def planned(self) -> bool:
        """Whether the stop is announced: state is saved first, so that no work is lost."""
        return self.has_trait(Trait.planned)

    def has_trait(self, trait: Trait) -> bool:
        """Whether this is true of the cause."""
        return trait in _TRAITS.get(self, Trait(0))


class Trait(Flag):
    """What is true of some causes, for all that decide what follows them."""

    planned = auto()
    external = auto()
    """outside the user's code, so that Slurm may know it better"""
    lasting = auto()
    """no restart helps: a damaged folder or a refused job will not improve"""
    of_a_node = auto()
    """may be a node's fault"""
    strikes_out = auto()
    """counts against its node at once, not only when it repeats"""
    gone = auto()
    """no longer counts against a node that Slurm gives out again: it was down, and is up"""
    before_loading = auto()
    """says nothing about the checkpoint that was being loaded"""
    felt = auto()
    """a rank may fail so because another node is lost"""
    suspect = auto()
    """a GPU or a link may be behind it, on nodes that still stand"""
    of_the_job = auto()
    """ends what runs in the job, whatever that is"""
    by_circumstance = auto()
    """the place in the code where it shows is chance: the next allocation, the next write"""


_LOST = Trait.external | Trait.of_a_node | Trait.strikes_out | Trait.gone | Trait.before_loading
_BETWEEN_RANKS = Trait.felt | Trait.suspect | Trait.by_circumstance
_TRAITS = {
    Cause.exception: Trait.suspect,
    Cause.exit_code: Trait.suspect,
    Cause.signal: Trait.external | Trait.of_a_node | Trait.felt | Trait.suspect,
    Cause.crash: Trait.of_a_node | Trait.suspect,
    Cause.hang: Trait.of_a_node | Trait.suspect,
    Cause.nan: Trait.suspect,
    Cause.cuda_oom: Trait.by_circumstance,
    Cause.host_oom: Trait.of_a_node | Trait.by_circumstance,
    Cause.disk_full: Trait.by_circumstance,
    Cause.unsaved: Trait.by_circumstance,
    Cause.communication: _BETWEEN_RANKS,
    Cause.rendezvous: _BETWEEN_RANKS,
    Cause.agents_missing: _LOST,
    Cause.node_lost: _LOST,
    Cause.frozen_folder: Trait.lasting,
    Cause.container: Trait.lasting,
    Cause.preempted: Trait.planned | Trait.of_the_job,
    Cause.drained: Trait.planned,
    Cause.straggler: Trait.planned | Trait.of_a_node | Trait.strikes_out,
    Cause.unhealthy: (_LOST & ~Trait.gone) | Trait.planned,
    Cause.resized: Trait.planned,
    Cause.data_damaged: (_LOST & ~Trait.gone) | Trait.planned,
    Cause.scratch_full: (_LOST & ~Trait.gone) | Trait.planned,
    Cause.data_refused: Trait.lasting | Trait.external,
    Cause.left: Trait.planned | Trait.external | Trait.before_loading,
    Cause.time_limit: Trait.planned,
    Cause.notice: Trait.planned | Trait.external | Trait.of_the_job,
    Cause.launcher_lost: Trait.external,
    Cause.scheduler: Trait.external | Trait.lasting,
}
RESTARTABLE = tuple(cause for cause in Cause if not cause.has_trait(Trait.lasting))
"""Causes after which a run can be started again."""


class ExitReason(StrEnum):
    """Why a rank left.

    `returned`: the user's function returned, or the attached script reached its end. `ended`: a plain command
    ended with exit code 0, which says nothing more. `left`: at a step boundary, as requested. `pruned`: the
    same, but for good. `exited`: with an exit code, without having returned.
    """

    returned = "returned"
    ended = "ended"
    left = "left"
    pruned = "pruned"
    raised = "raised"
    exited = "exited"
    killed = "killed"


class ToldBy(StrEnum):
    """Who asked a rank to leave: a signal to its own process, the supervisor, or a peer."""

    signal = "signal"
    supervisor = "supervisor"
    peer = "peer"


class StateKept(StrEnum):
    """Whether the registered state of a rank is saved as it was when it left its step loop."""

    nothing = "nothing"
    saved = "saved"
    unsaved = "unsaved"


FINE = frozenset({ExitReason.returned, ExitReason.ended, ExitReason.left, ExitReason.pruned})
"""Reasons that are not a failure of the rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatement:
    """A rank's own statement about its end; the agent accepts it if the process ended accordingly.

    `signal` names the signal that asked it to leave. `step` is the last step that began, of
    `total`, or that was done if its code returned. `code` is what a script's Python ends with, once
    nothing is left to do but to take the interpreter down.
    """

    reason: ExitReason
    told_by: ToldBy | None = None
    signal: str | None = None
    kept: StateKept = StateKept.nothing
    step: int | None = None
    total: int | None = None
    code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """One rank's exit record: how its process ended, and why it left.

    `signal` is what ended the process, such as SIGKILL. `step` is the last step that began, of `total`, or
    that was done if its code returned. `told_by` and `told_signal` say who asked it to leave. `stopped` is
    true if hpckit itself ended the rank because another rank had failed. `at` is when the exception was
    raised or the end was seen. `oom` is the evidence that the kernel killed it because memory ran out.
    """

    rank: int
    node: str
    code: int | None
    reason: ExitReason = ExitReason.exited
    kept: StateKept = StateKept.nothing
    told_by: ToldBy | None = None
    told_signal: str | None = None
    signal: str | None = None
    step: int | None = None
    total: int | None = None
    exception: str | None = None
    message: str | None = None
    traceback: str | None = None
    stopped: bool = False
    oom: str | None = None
    at: datetime | None = None

    @property
    def failed(self) -> bool:
        """Whether the rank left for a reason that is a failure."""
        return self.reason not in FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """What a rank was doing: its state in the kernel, its last step, and its stacks if known."""

    rank: int
    node: str
    state: str
    step: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledRank:
    """A rank that has stood still after `step` for longer than its limit; times are in seconds.

    `step` is null before the first step; `over` is whether the rank has finished its last step. `idle`:
    so many ranks of its node have neither written nor computed, in a command that tells of no steps.
    """

    rank: int
    step: int | None
    silent_s: float
    limit_s: float
    over: bool = False
    idle: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksAnswer:
    """What the ranks of a round were doing; it answers all requests up to the number `request`.

    `round` is null if no ranks were running. `silent` are the nodes that did not answer in time.
    `layout` is that of the round.
    """

    request: int
    at: datetime
    round: int | None
    stacks: tuple[RankStack, ...] = ()
    silent: tuple[str, ...] = ()
    layout: Layout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A classified failure: cause, place, step, and the message of the process that failed.

    `signature` is the same for the same failure on any rank, node or step. `checkpoint` names the
    checkpoint that was being loaded, if it is to blame and others are left. `collective` is where
    ranks waited for others, if they said so. `place` is where the rank is in the layout, in words;
    empty in plain data parallelism.
    """

    cause: Cause
    message: str
    rank: int | None = None
    node: str | None = None
    step: int | None = None
    traceback: str | None = None
    signature: str = ""
    checkpoint: str | None = None
    collective: CollectiveWait | None = None
    place: str = ""

    @property
    def rank_name(self) -> str:
        """The rank with its place in the layout; empty if no rank is to blame."""
        return "" if self.rank is None else format_rank(self.rank, self.place)


def signal_name(number: int) -> str:
    """Return the name of a signal, or `SIG<number>` if it has none (real-time signals)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def shell_exit_code(exit_record: RankExit) -> int:
    """Return the exit code that a shell would report: 128 + number for a signal, never 0."""
    if exit_record.signal is None:
        return exit_record.code or 1
    numbers = {member.name: member.value for member in signal.Signals}
    rest = exit_record.signal.removeprefix("SIG")  # a number where `signal_name` has no name
    return SHELL_SIGNAL + numbers.get(exit_record.signal, int(rest) if rest.isdecimal() else 1)
