"""The state of a run: hpckit's record (a fold of events), Slurm's report, and both combined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from hpckit.model import events
from hpckit.model.diagnosis.verdict import Straggler
from hpckit.model.elastic import Satellite
from hpckit.model.environment.health import NodeInspection
from hpckit.model.failure import Cause, Failure, Trait
from hpckit.model.node_setup import FrozenContainer, StagedData
from hpckit.model.parallel.layout import LayoutReport
from hpckit.model.states import BaseState, RoundAction, RunState, SlurmState
from hpckit.values import dataclass, field, field_names, replace

PRUNED = "pruned"
"""The reason of a run that completed early because an adaptive sweep has better ones."""

KEPT_WARNINGS = 5
"""How many of the latest warnings a record keeps; all of them are in the events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Slurm's report on one job or array element, and the time of the report.

    `exit_code` is Slurm's own (0..255); `nodes` is a hostlist, empty before the start.
    `expected_start` is when Slurm plans to start a waiting job, None if it has no plan.
    """

    job: str
    state: SlurmState
    seen_at: datetime
    nodes: str = ""
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0
    expected_start: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run according to hpckit's record alone. `attempt` counts from 1 and is 0 before the first.

    `supervisor` is (host, pid, start mark of the process) of the latest attempt. `restart_count` is Slurm's
    count of restarts when that attempt began. `warnings` are the latest few. `stragglers` are what was last
    said of each slow rank, by rank, `preflight` what the latest inspection of each node found. `reason` says
    why the run completed early (`pruned`, or at which step its own code returned), otherwise it is empty.
    `step` counts from 0, up to one less than `total`, which is null if unknown. `layout` is what the ranks of
    the latest round that did so reported. `excluded` are the nodes that Slurm leaves out since it was asked
    for another attempt. `grown` is how hpckit itself made its jobs ask for more. `container` is its image,
    `staged` what was brought to each node, the latest of each name.
    """

    id: str
    index: int
    overrides: tuple[str, ...]
    folder: str
    job: str | None = None
    state: RunState = RunState.pending
    attempt: int = 0
    restart_count: int = 0
    round: int | None = None
    step: int | None = None
    total: int | None = None
    nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    failure: Failure | None = None
    cancel_requested: bool = False
    supervisor: tuple[str, int, str] | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    preflight: tuple[NodeInspection, ...] = ()
    stage: str | None = None
    reason: str = ""
    layout: LayoutReport | None = None
    excluded: tuple[str, ...] = ()
    excluded_by_us: tuple[str, ...] = ()
    grown: tuple[events.SettingsChanged, ...] = ()
    container: FrozenContainer | None = None
    staged: tuple[StagedData, ...] = ()

    @property
    def has_attempt_begun(self) -> bool:
        """Whether an attempt has begun since the run was last submitted."""
        return self.started_at is not None

    def reset_to_pending(self) -> RunRecord:
        """Return the run as one that waits to start again, without the end of its attempt."""
        return replace(
            self,
            state=RunState.pending,
            round=None,
            nodes=(),
            exit_code=None,
            failure=None,
            supervisor=None,
            started_at=None,
            ended_at=None,
        )

    def apply_events(self, history: Iterable[events.Event]) -> RunRecord:
        """Return the record after this history; never raises, in any order of events."""
        record = self
        for event in history:
            record = _apply_event_to_record(record, event)
        return record


def _apply_event_to_record(record: RunRecord, event: events.Event) -> RunRecord:
    match event:
        case events.AttemptStarted():
            return replace(
                record,
                state=RunState.running,
                attempt=event.attempt,
                restart_count=event.restart_count,
                job=event.job or record.job,
                supervisor=(event.host, event.pid, event.started),
                started_at=event.at,
                round=None,
                nodes=(event.host,),
                exit_code=None,
                failure=None,
                ended_at=None,
                reason="",
            )
        case events.RoundStarted():
            return replace(record, round=event.round, nodes=event.nodes)
        case events.StepReached():
            return replace(record, step=event.step)
        case events.Staged():
            return replace(record, staged=_replace_staged(record.staged, event))
        case events.AttemptEnded():
            return replace(
                record,
                state=event.state,
                exit_code=event.exit_code,
                failure=event.failure,
                ended_at=event.at,
                reason=event.reason,
            )
        case _:
            return _apply_event_keeping_state(record, event)


def _apply_event_keeping_state(record: RunRecord, event: events.Event) -> RunRecord:
    match event:
        case events.RequeueAsked():
            ours = tuple(dict.fromkeys((*record.excluded_by_us, *event.added)))
            excluded = event.excluded or record.excluded
            return replace(record, excluded=excluded, excluded_by_us=ours)
        case events.StragglerFound():
            return replace(record, stragglers=_replace_straggler(record.stragglers, event.straggler))
        case events.NodesInspected():
            known = (*record.preflight, *event.inspections)
            latest = {inspection.node: inspection for inspection in known}
            return replace(record, preflight=tuple(latest[node] for node in sorted(latest)))
        case events.LayoutReported():
            return replace(record, layout=event.report)
        case events.Warned():
            return replace(record, warnings=(*record.warnings, event.message)[-KEPT_WARNINGS:])
        case _:
            return record


def _replace_straggler(known: tuple[Straggler, ...], found: Straggler) -> tuple[Straggler, ...]:
    others = [
        straggler for straggler in known if (straggler.rank, straggler.node) != (found.rank, found.node)
    ]
    return tuple(sorted((*others, found), key=lambda one: (one.rank, one.node)))


def _replace_staged(known: tuple[StagedData, ...], event: events.Staged) -> tuple[StagedData, ...]:
    others = (one for one in known if (one.node, one.name) != (event.node, event.name))
    return *others, StagedData(**{name: getattr(event, name) for name in field_names(StagedData)})


CAUSES_SAID_BY_SLURM = {
    BaseState.node_fail: Cause.node_lost,
    BaseState.boot_fail: Cause.node_lost,
    BaseState.timeout: Cause.time_limit,
    BaseState.deadline: Cause.time_limit,
    BaseState.preempted: Cause.preempted,
    BaseState.out_of_memory: Cause.host_oom,
    BaseState.cancelled: Cause.notice,
}
"""The causes that Slurm's states stand for if our own record has no final event."""

_ENDED_FROM_OUTSIDE = frozenset(
    {
        BaseState.cancelled,
        BaseState.preempted,
        BaseState.timeout,
        BaseState.node_fail,
        BaseState.deadline,
        BaseState.out_of_memory,
    }
)
"""Slurm's states that name a cause outside the user's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The current state of a run: hpckit's record and Slurm's report side by side.

    `asked` is whether Slurm answered about this run's job: if it did and there is no observation,
    Slurm no longer knows the job. `alive` is whether the process that carries the run exists, if
    that can be determined (same host): its supervisor, or the local executor while the run waits
    for it. `blocked` says why the run will not begin, if a run of the previous stage did not
    complete. `satellites` are the jobs that bring it nodes, as long as Slurm has them. `said` is
    the last that the batch script of a run printed that ended before it began.
    """

    record: RunRecord
    observation: Observation | None = None
    asked: bool = False
    alive: bool | None = None
    blocked: str = ""
    satellites: tuple[Satellite, ...] = ()
    said: str = ""

    @property
    def state(self) -> RunState:
        """The run's state, from both sources; if they disagree on an end, hpckit's record wins.

        The record knows why a run ended. Slurm knows that it is gone when the record could not be
        written (node crash, SIGKILL), that it waits again after a requeue, and what caused an end
        from outside (a signal seen by a rank may be a preemption).
        """
        if self.blocked:
            return RunState.cancelled
        if self.observation is None:
            return self._state_without_slurm()
        if self.record.state is RunState.completed:
            return RunState.completed
        if self.record.state.ended and not self.requeued_since_last_attempt:
            return self._merge_end_state_with_slurm(self.observation.state)
        return self._state_by_slurm(self.observation.state)

    @property
    def state_by_record_alone(self) -> RunState:
        """The state without asking Slurm: cancelled if that was requested before the start."""
        asked = self.state is RunState.pending and self.record.cancel_requested
        return RunState.cancelled if asked else self.state

    @property
    def requeued_since_last_attempt(self) -> bool:
        """Whether Slurm started the run again, or will, since the latest attempt in the record.

        A Slurm that does not report restarts reports PENDING again after the attempt began.
        """
        seen, record = self.observation, self.record
        if seen is None or not record.has_attempt_begun:
            return False
        waits = seen.state.base is BaseState.pending
        later = record.started_at is not None and seen.seen_at > record.started_at
        return seen.restarts > record.restart_count or (waits and later)

    @property
    def can_no_longer_change(self) -> bool:
        """Whether the run will not change any more, even if its end is not known.

        An interrupted run may still be requeued until Slurm is done with its job.
        """
        gone = self.asked if self.observation is None else self.observation.state.ended
        if self.state is RunState.unknown:
            return gone
        waits = self.state is RunState.interrupted and self.observation is not None
        return self.state.ended and (gone or not waits)

    @property
    def exit_code(self) -> int | None:
        """The exit code in the record, otherwise Slurm's once it has ended the job."""
        if self.record.exit_code is not None and not self.requeued_since_last_attempt:
            return self.record.exit_code
        seen = self.observation
        return seen.exit_code if seen is not None and seen.state.ended else None

    def _merge_end_state_with_slurm(self, slurm: SlurmState) -> RunState:
        outside = self._may_be_stopped_from_outside and slurm.ended and slurm.base in _ENDED_FROM_OUTSIDE
        return self._cancelled_if_user_requested(slurm.run_state if outside else self.record.state)

    @property
    def _may_be_stopped_from_outside(self) -> bool:
        """Whether the end may have a cause outside the run, which the record does not know."""
        record = self.record
        if record.state is RunState.failed:
            return record.failure is None or record.failure.cause.has_trait(Trait.external)
        return record.state is RunState.interrupted

    def _state_by_slurm(self, slurm: SlurmState) -> RunState:
        started = self.record.state is RunState.running and not self.requeued_since_last_attempt
        if started and not slurm.ended:
            # Slurm's report may be older than the attempt, or in words unknown to this version.
            return RunState.running
        if slurm.base is BaseState.completed:
            # Slurm reports success but no supervisor recorded an end: the outcome is unknown.
            return RunState.unknown
        return self._cancelled_if_user_requested(slurm.run_state)

    def _state_without_slurm(self) -> RunState:
        record = self.record
        if record.state.ended:
            return self._cancelled_if_user_requested(record.state)
        if record.state is RunState.pending:
            return self._state_before_start()
        if self.alive is False:
            return self._cancelled_if_user_requested(RunState.interrupted)
        if self.alive is None and self.asked:
            return RunState.cancelled if record.cancel_requested else RunState.unknown
        return record.state

    def _state_before_start(self) -> RunState:
        out_of_reach = self.record.job is not None and not self.asked
        if self.record.cancel_requested and not out_of_reach:
            return RunState.cancelled
        if self.record.job is not None and self.asked:
            return RunState.unknown
        return RunState.interrupted if self.alive is False else RunState.pending

    def _cancelled_if_user_requested(self, state: RunState) -> RunState:
        """Return `cancelled` for a stop that the user asked for; the record may not show it."""
        stopped = state is RunState.interrupted or (
            state is RunState.failed and self._may_be_stopped_from_outside
        )
        return RunState.cancelled if self.record.cancel_requested and stopped else state


def failure_of_unended_attempt(history: Iterable[events.Event]) -> Failure | None:
    """Return the failure of the latest attempt in these events if it lacks a final event.

    The cause is that of the notice it received, otherwise `launcher_lost`. None if it has a final
    event, or never began. This function cannot tell whether the attempt is still alive, and Slurm
    may know better, see planning/recovery/budget.
    """
    cause: Cause | None = None
    for event in history:
        match event:
            case events.AttemptStarted():
                cause = Cause.launcher_lost
            case events.NoticeHeard() if cause is not None:
                cause = event.cause
            case events.AttemptEnded():
                cause = None
            case _:
                pass
    return None if cause is None else supervisor_lost_failure(cause)


def build_end_event_of_lost_round(
    failure: Failure, *, at: datetime, number: int, step: int | None
) -> events.RoundEnded:
    """Return the end of a round whose supervisor was lost before it recorded one."""
    return events.RoundEnded(
        at=at, round=number, first_step=None, step=step, action=RoundAction.end, failure=failure
    )


def last_round_number(history: Iterable[events.Event]) -> int:
    """Return the number of the latest round in these events, or 0."""
    return max((event.round for event in history if isinstance(event, events.RoundStarted)), default=0)


def supervisor_lost_failure(cause: Cause) -> Failure:
    """Return the failure of an attempt whose supervisor was lost for this cause."""
    message = "the supervisor died before recording the outcome"
    return Failure(cause=cause, message=message, signature=cause)
