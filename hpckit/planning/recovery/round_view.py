"""One ended round as decisions see it, what can follow it, and the records of both. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from hpckit.model import events
from hpckit.model.failure import Cause, Failure, RankExit
from hpckit.model.parallel.layout import Layout
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.recovery.node_choice import RoundSizes
from hpckit.values import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNotice:
    """The notice that the attempt will be stopped: its signal, and its cause as far as known.

    `restarts` is whether the scheduler starts the run again by itself.
    """

    signal: str
    cause: Cause = Cause.notice
    restarts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoad:
    """The checkpoint that a round began to load; `others` are left that no run has failed on."""

    checkpoint: str
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """One ended round: its exit records, and what else is known about its end.

    `saved` is whether the attempt has saved state. `load` is what the round began from, if anything.
    `dismissed` is a notice that was passed to the ranks and turned out to be false. `cut_short` is whether
    ranks were still running when they were asked to leave. `cancelled` is whether the user requested the end.
    `failure` is set if the round did not end because of its ranks. `members` are the nodes it ran on,
    `standing` those that are available now, spares included, in the allocation's order. `ran` is how long the
    round lasted, `silent` how long there had been no sign of life from what ended it. `draining` holds the
    nodes that are being drained, with the reasons, `slow` those with stragglers, and what is said of them,
    `unhealthy` those that cannot train, and why. `wanted` and `fewest` are how many nodes a round has, and
    must have; a replica takes `replica_nodes` of them. `fallback_nodes` are the numbers of nodes for which
    the user listed another layout. `resizing` is whether ranks were asked to leave because that number
    changed, `grown_from` are the members of the round before, if this one has more. `requeues` is whether a
    new attempt can be requested. `growth` says after which causes it can have more of what ran out (empty),
    or why no longer. `layout` is that of the round.
    """

    round: int
    at: datetime
    exits: Sequence[RankExit]
    attempt: int = 1
    first_step: int | None = None
    step: int | None = None
    saved: bool = False
    notice: StopNotice | None = None
    dismissed: StopNotice | None = None
    load: CheckpointLoad | None = None
    cut_short: bool = False
    cancelled: bool = False
    failure: Failure | None = None
    members: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()
    ran: timedelta = timedelta()
    silent: timedelta = timedelta()
    draining: Mapping[str, str] = field(default_factory=dict)
    slow: Mapping[str, str] = field(default_factory=dict)
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    wanted: int = 1
    fewest: int = 1
    replica_nodes: int = 1
    fallback_nodes: tuple[int, ...] = ()
    resizing: bool = False
    grown_from: tuple[str, ...] = ()
    requeues: bool = False
    growth: Mapping[Cause, str] = field(default_factory=dict)
    layout: Layout | None = None

    @property
    def next_round_sizes(self) -> RoundSizes:
        """How many nodes the next round may have."""
        return RoundSizes(
            wanted=self.wanted,
            fewest=self.fewest,
            replica_nodes=self.replica_nodes,
            fallback=self.fallback_nodes,
        )

    def choose_next_nodes(self, good: Sequence[str], unwelcome: Collection[str] = ()) -> tuple[str, ...]:
        """Return the nodes of the next round, in whole replicas or for another layout."""
        return self.next_round_sizes.choose_nodes(self.members, good, {*unwelcome, *self.unhealthy})


NOTICE_CODE = 143
"""Exit code of an attempt that was asked to stop: 128 + SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRound:
    """Start all ranks again on these nodes, inside the same attempt, after a pause.

    `undone` is whether the run gives up growing, as its larger round failed at once.
    """

    because: Failure
    nodes: tuple[str, ...]
    pause: timedelta = timedelta()
    undone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAttempt:
    """End the attempt in this state, with this exit code.

    `again` asks for a new attempt, without the nodes `excluded`, and with more of what ran out, by the cause
    `grow`. `reason` says why a run completed early.
    """

    state: RunState
    exit_code: int
    failure: Failure | None = None
    reason: str = ""
    again: bool = False
    excluded: tuple[str, ...] = ()
    grow: Cause | None = None


Action = NewRound | EndAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Let the round continue although a node of it is being drained; `because` is the reason."""

    because: str


def build_round_ended_event(
    view: RoundView, failure: Failure | None, action: RoundAction
) -> events.RoundEnded:
    """Return the record of an ended round."""
    return events.RoundEnded(
        at=view.at,
        round=view.round,
        first_step=view.first_step,
        step=view.step,
        action=action,
        failure=failure,
        silent_s=round(view.silent.total_seconds(), 3),
    )


def build_round_event_for_action(view: RoundView, action: Action) -> events.RoundEnded:
    """Return the record of an ended round that this action follows."""
    if isinstance(action, NewRound):
        return build_round_ended_event(view, action.because, RoundAction.new_round)
    word = RoundAction.new_attempt if action.again else RoundAction.end
    completed = action.state is RunState.completed
    return build_round_ended_event(view, action.failure, RoundAction.completed if completed else word)


def build_attempt_ended_event(end: EndAttempt, at: datetime) -> events.AttemptEnded:
    """Return the final event of an attempt."""
    return events.AttemptEnded(
        at=at, state=end.state, exit_code=end.exit_code, failure=end.failure, reason=end.reason
    )


def build_end_with_new_attempt(
    failure: Failure, exit_code: int, excluded: frozenset[str], *, grow: bool = False
) -> EndAttempt:
    """Return the end of an attempt that asks for another one, with more of what ran out if it can `grow`."""
    return EndAttempt(
        state=RunState.interrupted,
        exit_code=exit_code,
        failure=failure,
        again=True,
        excluded=tuple(sorted(excluded)),
        grow=failure.cause if grow else None,
    )
