"""The events of runs and launches, and their JSON form: one line each, never edited.

`at` is UTC, to the millisecond; up to that precision `decode(encode(event)) == event`. Unknown
kinds, and records that lack a field of their kind, decode to None, so that an older hpckit can read
what a newer one wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from hpckit.model.failure import Cause, ExitReason, Failure, RankExit
from hpckit.model.launch import Resources
from hpckit.model.node_events import (
    AgentJoined,
    ContainerChecked,
    Event,
    NodeDraining,
    NodeLost,
    NodesInspected,
    SatelliteLeft,
    Staged,
    StagedOut,
    StragglerFound,
)
from hpckit.model.parallel.layout import LayoutReport
from hpckit.model.parallel.settings import Parallel
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.plan import JobSpec
from hpckit.model.states import RequeueOutcome, RoundAction, RunState
from hpckit.values import dataclass

__all__ = [
    "AgentJoined",
    "ContainerChecked",
    "Event",
    "NodeDraining",
    "NodeLost",
    "NodesInspected",
    "SatelliteLeft",
    "Staged",
    "StagedOut",
    "StragglerFound",
]

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitIntended(Event):
    """Written before sbatch is called; if no answer is recorded, the job may be an orphan."""

    kind: ClassVar[str] = "submit_intended"
    job_index: int
    job_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted(Event):
    """The scheduler of this cluster accepted the job; `adopted` if found later, or made by hand."""

    kind: ClassVar[str] = "submitted"
    job_index: int
    job: str
    adopted: bool = False
    cluster: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRefused(Event):
    """The scheduler refused the job or never had it; `later` if it is to be submitted again.

    On one machine: no local executor could be started for the job.
    """

    kind: ClassVar[str] = "submit_refused"
    job_index: int
    message: str
    later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdded(Event):
    """A resume added a job to the launch; `after[i]` attempts of run `job.runs[i]` came before.

    It replaces earlier requests for these runs: a cancellation, and their assignment to another
    local executor. `fresh` is whether the user asked for the resume, so that earlier failures no
    longer count. With `successor`, the job only waits for the end of the run's present job. With
    `backlog`, it has no runs, and submits the jobs that did not fit into the queue.
    """

    kind: ClassVar[str] = "job_added"
    job: JobSpec
    after: tuple[int, ...]
    fresh: bool = False
    successor: bool = False
    backlog: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanged(Event):
    """These runs (indices) have other sections from their next attempt on.

    `words` are the overrides that asked for them: of a resume, or of hpckit itself after `cause`, of which
    they are to have more. The rest of their configuration is as frozen.
    """

    kind: ClassVar[str] = "settings_changed"
    runs: tuple[int, ...]
    words: tuple[str, ...]
    parallel: Parallel
    resources: Resources
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStarted(Event):
    """A local executor, a process on this host, began to work through jobs.

    `jobs` are indices of added jobs; empty means the jobs that the launch was frozen with.
    """

    kind: ClassVar[str] = "local_started"
    host: str
    pid: int
    started: str
    jobs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    """The user asked to cancel these runs (indices)."""

    kind: ClassVar[str] = "cancel_requested"
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsKnown(Event):
    """Runs of another launch (its id, and indices in it) replace some runs requested here.

    They had completed or were under way, so this launch was frozen without them.
    """

    kind: ClassVar[str] = "runs_known"
    launch: str
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsRerun(Event):
    """Run i of this launch is run `runs[i]` of another one (its id), started again."""

    kind: ClassVar[str] = "runs_rerun"
    launch: str
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(Event):
    """A supervisor began an attempt. `job` is null on the local executor."""

    kind: ClassVar[str] = "attempt_started"
    attempt: int
    job: str | None
    restart_count: int
    host: str
    pid: int
    started: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted(Event):
    """The supervisor asked all ranks of an attempt to start."""

    kind: ClassVar[str] = "round_started"
    round: int
    world_size: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReached(Event):
    """The first step of a round began; later steps are in progress.json."""

    kind: ClassVar[str] = "step_reached"
    round: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutReported(Event):
    """All ranks of a round have reported their layout and the parameters that they hold."""

    kind: ClassVar[str] = "layout_reported"
    round: int
    report: LayoutReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExited(Event):
    """A rank process ended."""

    kind: ClassVar[str] = "rank_exited"
    round: int
    exit: RankExit


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksExited(Event):
    """More ranks of a large round ended in the same way: `count` of them, `ranks` as `0-3, 7`."""

    kind: ClassVar[str] = "ranks_exited"
    round: int
    ranks: str
    count: int
    reason: ExitReason
    code: int | None
    signal: str | None
    exception: str | None
    stopped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint was committed, from which `step` is the next: that many steps are in it.

    Training stood still for `stall_s` of the save's `duration_s`.
    """

    kind: ClassVar[str] = "checkpoint_saved"
    round: int
    step: int
    size: int
    stall_s: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded(Event):
    """All ranks of a round have ended. `failure` is null if all completed. `action` is what was decided.

    `first_step` and `step` are the first and the last that began. `silent_s` is how long there had been no
    sign of life when a hang, a lost node or the time-out of a collective was noticed.
    """

    kind: ClassVar[str] = "round_ended"
    round: int
    first_step: int | None
    step: int | None
    action: RoundAction
    failure: Failure | None = None
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueAsked(Event):
    """Slurm was asked to start the run again.

    `excluded` are the nodes that the next attempt leaves out, `added` those of them that were not left out
    before, `kept` those that it should leave out and cannot: another attempt would not get rid of them.
    """

    kind: ClassVar[str] = "requeue_asked"
    outcome: RequeueOutcome
    message: str = ""
    excluded: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """A warning for the user about something that did not stop the run."""

    kind: ClassVar[str] = "warned"
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeHeard(Event):
    """The attempt received notice that it will be stopped; `deadline` is the end, if known."""

    kind: ClassVar[str] = "notice_heard"
    signal: str
    cause: Cause = Cause.notice
    deadline: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended(Event):
    """All processes of the attempt stood still for `seconds`, until `at`: suspended, or asleep."""

    kind: ClassVar[str] = "suspended"
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(Event):
    """The supervisor's final event. `reason` is `pruned`, or says at which step the run's code returned."""

    kind: ClassVar[str] = "attempt_ended"
    state: RunState
    exit_code: int
    failure: Failure | None = None
    reason: str = ""


_KINDS: Mapping[str, type[Event]] = {kind.kind: kind for kind in Event.__subclasses__()}


def encode_event(event: Event) -> dict[str, Any]:
    """Return the event as plain JSON values, with `v` and `event` first."""
    return {"v": VERSION, "event": event.kind, **to_plain(event)}


def decode_event(record: Mapping[str, Any]) -> Event | None:
    """Return the event of a record, or None if this version cannot read it."""
    try:
        return from_plain(_KINDS[str(record.get("event"))], record)
    except (TypeError, ValueError, KeyError):
        return None
