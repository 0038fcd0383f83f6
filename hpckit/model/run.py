"""What is known of a run: our record (a fold of events) beside Slurm's word, and both together.

Responsible for the meaning of a history; it must not read one from disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from hpckit.model import events
from hpckit.model.failure import Failure
from hpckit.model.states import RunState, SlurmState


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What Slurm says of one job or array element, and when it said so.

    `exit_code` is Slurm's own (0..255); `nodes` a hostlist, empty before the start.
    """

    job: str
    state: SlurmState
    seen_at: datetime
    nodes: str = ""
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run by our own record alone. `attempt` counts from 1, 0 before the first.

    `supervisor` is (host, pid, start mark of the process) of the latest attempt.
    """

    id: str
    index: int
    overrides: tuple[str, ...]
    folder: str
    job: str | None = None
    state: RunState = RunState.pending
    attempt: int = 0
    round: int | None = None
    step: int | None = None
    nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    failure: Failure | None = None
    cancel_requested: bool = False
    supervisor: tuple[str, int, str] | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def fold(self, history: Iterable[events.Event]) -> RunRecord:
        """Return the record after this history; never raises, whatever the order."""
        record = self
        for event in history:
            record = _apply(record, event)
        return record


def _apply(record: RunRecord, event: events.Event) -> RunRecord:
    match event:
        case events.AttemptStarted():
            return replace(
                record,
                state=RunState.running,
                attempt=event.attempt,
                job=event.job or record.job,
                supervisor=(event.host, event.pid, event.started),
                started_at=event.at,
                round=None,
                nodes=(event.host,),
                exit_code=None,
                failure=None,
                ended_at=None,
            )
        case events.RoundStarted():
            return replace(record, round=event.round, nodes=event.nodes)
        case events.StepReached():
            return replace(record, step=event.step)
        case events.AttemptEnded():
            return replace(
                record,
                state=event.state,
                exit_code=event.exit_code,
                failure=event.failure,
                ended_at=event.at,
            )
        case _:
            return record


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as it stands: our record and Slurm's word side by side.

    `alive` is whether the supervisor's process exists, where that can be known (same host).
    """

    record: RunRecord
    observation: Observation | None = None
    alive: bool | None = None

    @property
    def state(self) -> RunState:
        """The run's state, from both; where they disagree on an end, our own record wins.

        Our record knows why a run ended; Slurm knows that it is gone when our record could not
        be written (node crash, SIGKILL), and that it waits again after a requeue.
        """
        ours = self.record.state
        if self.observation is None:
            return self._without_slurm()
        slurm = self.observation.state
        requeued = self.observation.restarts >= max(self.record.attempt, 1)
        if ours is RunState.pending or (ours is not RunState.completed and requeued):
            return self._by_slurm(slurm)
        if ours is RunState.running and slurm.ended:
            return self._by_slurm(slurm)
        return ours

    def _by_slurm(self, slurm: SlurmState) -> RunState:
        if slurm.run_state is RunState.completed:
            # Slurm is content but no supervisor reported an end: the truth is not known.
            return RunState.unknown
        return slurm.run_state

    def _without_slurm(self) -> RunState:
        ours = self.record.state
        if ours.ended or self.alive:
            return ours
        if self.record.cancel_requested:
            return RunState.cancelled
        if self.alive is False:
            return RunState.interrupted
        return ours
