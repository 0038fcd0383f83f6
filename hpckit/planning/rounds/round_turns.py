"""How a round goes: what happens goes in, its next state and what is to be done come out. Pure.

`advance_round` takes a round from the order to start its ranks to the end of the last one. It
awaits, sends and writes nothing; runtime.supervisor.round does that.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from hpckit.model import events, messages
from hpckit.model.failure import Cause, ExitReason
from hpckit.model.parallel.layout import RankLayout, merge_rank_layouts
from hpckit.planning.recovery.ends import find_first_failure, find_last_done_step
from hpckit.planning.recovery.round_view import CheckpointLoad
from hpckit.planning.rounds.hang_report import is_collective_timeout
from hpckit.planning.rounds.rank_exits import TOLD_SINGLY
from hpckit.planning.rounds.round_state import Phase, RoundState
from hpckit.values import dataclass, replace

_NOTICE_WAIT_S = 1.0
"""A rank that died of a signal may have died of a notice that has not arrived here yet."""
_GRACE_OF_PEERS_S = 2.0
_PATIENCE_S = 5.0
"""For agents to report their ranks' ends, after the grace period, and since the latest report."""
_UNREAD_S = 0.2
"""Messages that came while this process was held up are read within this time."""
_NO_LONGER_S = 60.0
_STACKS_S = 7.0
"""How long agents may take to save what a hung round was doing."""
_AFTER_TIME_OUT_S = 3.0
"""The same after a collective timed out: those that wait for the restart have waited enough."""


class Turn(Enum):
    """What happens to a round besides messages."""

    begin = auto()
    notice = auto()
    """The attempt will be stopped."""
    leave = auto()
    """The ranks are to leave without that; hang detection stays active, and nothing ends them."""
    time = auto()
    """Nothing has come until `RoundState.until`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLost(messages.Message):
    """A local message, never sent: the connection to this node's agent ended, or it fell silent."""

    node_rank: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """A message came from the agent with this node rank."""

    sender: int
    message: messages.Message


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the agent with this node rank; without one to every agent."""

    message: messages.Message
    to: int | None = None


@dataclass(frozen=True, slots=True)
class NoteStep:
    """Note how far the run has come; `last` is whether the round is over."""

    step: int
    total: int | None
    last: bool = False


Instruction = Send | NoteStep | events.Event | Heard
"""What to do: send, note, record, or pass a message on to the part that it is for."""


def advance_round(
    state: RoundState, turn: Heard | Turn, clock: float, at: datetime
) -> tuple[RoundState, tuple[Instruction, ...]]:
    """Return the state of a round after this, and what to do, in this order.

    `clock` is in seconds of the monotonic clock, `at` the time for the record.
    """
    change = _Change(state, clock, at)
    change.apply_message_or_turn(turn)
    change.apply_values()
    while change.phase_has_ended(timed_out=turn is Turn.time):
        change.enter_next_phase()
        change.apply_values()
    return change.state, tuple(change.found)


class _Change:
    """A change of a round: `values` are to replace those of its `state`; `found` is to be done."""

    def __init__(self, state: RoundState, clock: float, at: datetime) -> None:
        self.state, self.clock, self.at = state, clock, at
        self.values: dict[str, Any] = {}
        self.found: list[Instruction] = []

    def set_values(self, **values: Any) -> None:
        self.values.update(values)

    def apply_values(self) -> None:
        """Make the change: the state before is that of the next one."""
        if self.values:
            self.state = replace(self.state, **self.values)
            self.values.clear()

    def apply_message_or_turn(self, turn: Heard | Turn) -> None:
        state = self.state
        match turn:
            case Heard():
                self._apply_message(turn)
                if state.phase is Phase.stopping:
                    # Unread is not silent: a process that was held up by a file system finds all
                    # messages unread, and the time over.
                    patience_s = _PATIENCE_S if "exits" in self.values else _UNREAD_S
                    self.set_values(until=max(state.until, self.clock + patience_s))
            case Turn.begin:
                self.found.append(Send(messages.ReservePort(), to=next(iter(state.members))))
                self.set_values(until=self.clock + state.settings.runtime.agent_timeout_s)
            case Turn.notice:
                self.set_values(noticed=True)
            case Turn.leave if not state.asked:
                self.found.append(Send(messages.Notice()))
                self.set_values(asked=True)

    def _apply_message(self, heard: Heard) -> None:
        state, message = self.state, heard.message
        match message:
            case messages.StepBegun():
                self.set_values(usual_step=timedelta(seconds=message.usual_s), stepped_at=self.clock)
                self._record_step_reached(message.step, message.total, begun=True)
            case messages.RankEnded(round=state.number):
                if state.is_running(message.exit.rank):
                    self._record_rank_exit(message)
                    self.found.append(heard)
            case messages.Restoring():
                load = CheckpointLoad(checkpoint=message.checkpoint, others=message.others)
                self.set_values(load=load)
            case AgentLost() if heard.sender in state.members:  # spare nodes do not matter
                place = list(state.members).index(heard.sender)
                lost = {**state.lost, place: self.clock - message.silent_s}
                self.set_values(lost=lost, silent_s=max(state.silent_s, message.silent_s))
            case messages.LayoutTold(round=state.number) if message.rank in state.ranks:
                self._record_layout_of_rank(message)
            case messages.Hung(round=state.number) | messages.CollectivesTold(round=state.number):
                self.set_values(hang=state.hang.with_message(heard.sender, message))
            case _:
                self._answer_or_pass_on(heard)

    def _answer_or_pass_on(self, heard: Heard) -> None:
        state, message = self.state, heard.message
        match message:
            case messages.PortReserved() if state.phase is Phase.starting:
                self._order_agents_to_start_ranks(message.port)
            case messages.StoreBound():
                host = next(iter(state.orders.values())).master_addr
                self.found.append(Send(messages.StoreAddress(host=host, port=message.port)))
            case messages.NodeSteps(round=state.number):
                if heard.sender in state.members and state.is_stepping:
                    self.found.append(heard)
            case messages.StackSaved(round=state.number) | messages.StacksSaved(round=state.number):
                if message.request:  # a user's
                    self.found.append(heard)
                else:
                    self.set_values(hang=state.hang.with_message(heard.sender, message))
            case messages.Profiled(round=state.number) | messages.Saved() | messages.Reported():
                self.found.append(heard)

    def _order_agents_to_start_ranks(self, port: int) -> None:
        state = self.state
        self.found.append(
            events.RoundStarted(
                at=self.at, round=state.number, world_size=state.world_size, nodes=state.nodes
            )
        )
        for rank, order in state.orders.items():
            self.found.append(Send(replace(order, master_port=port), to=rank))
        self.set_values(phase=Phase.watching, until=math.inf)

    def _record_rank_exit(self, message: messages.RankEnded) -> None:
        state, exit_ = self.state, message.exit
        exits = state.exits.with_exit(exit_, message.alone_s)
        self.set_values(
            exits=exits,
            failed_at=min(state.failed_at, self.clock) if exit_.failed else state.failed_at,
            cut_short=state.cut_short or state.asked_to_leave,
        )
        if len(exits) <= TOLD_SINGLY:
            self.found.append(events.RankExited(at=self.at, round=state.number, exit=exit_))
        if exit_.step is not None:  # which an earlier round may have done
            self._record_step_reached(exit_.step, exit_.total, begun=exit_.failed)

    def _record_step_reached(self, step: int, total: int | None, *, begun: bool) -> None:
        """Note a step, which ranks have `begun` in this round."""
        state = self.state
        if begun and state.first_step is None:
            start_up = timedelta(seconds=self.clock - state.began_at)
            self.set_values(first_step=step, start_up=start_up)
            self.found.append(events.StepReached(at=self.at, round=state.number, step=step))
        step, total = max(step, state.step or step), total or state.total
        self.set_values(step=step, total=total)
        self.found.append(NoteStep(step, total))

    def _record_layout_of_rank(self, message: messages.LayoutTold) -> None:
        told = RankLayout(layout=message.layout, held=message.held, whole=message.whole)
        layouts = self.state.layouts.with_value(message.rank, told)
        self.set_values(layouts=layouts)
        if len(layouts) < self.state.world_size:
            return
        try:
            report = merge_rank_layouts(dict(layouts.items()))
        except ValueError as error:
            self.found.append(events.Warned(at=self.at, message=f"the ranks disagree: {error}"))
        else:
            number = self.state.number
            self.found.append(events.LayoutReported(at=self.at, round=number, report=report))

    def phase_has_ended(self, *, timed_out: bool) -> bool:
        state, late = self.state, self.clock >= self.state.until
        match state.phase:
            case Phase.starting | Phase.awaiting_loss:
                ended = late or state.noticed or bool(state.lost)
            case Phase.watching:
                ended = (
                    state.exits.is_complete
                    or state.has_failed_rank_or_lost_node
                    or state.is_hung
                    or state.noticed
                )
            case Phase.saving_stacks:
                asked = len(state.members) - len(state.lost)
                ended = late or len(state.hang.complete) >= asked
            case Phase.leaving:
                ended = late or state.is_every_rank_accounted_for or state.has_failed_rank_or_lost_node
            case Phase.stopping:
                ended = (
                    state.is_every_rank_accounted_for or self.clock >= state.no_longer or (late and timed_out)
                )
            case Phase.awaiting_notice:
                ended = late or state.noticed
            case Phase.over:
                ended = False
        return ended

    def enter_next_phase(self) -> None:
        """Enter the first later phase that there is a reason for."""
        state, grace_s = self.state, self.state.settings.runtime.notice_grace_s
        stepped = state.step is not None and not state.is_hung
        if state.phase is Phase.starting:
            self.set_values(phase=Phase.over)
        elif state.phase < Phase.saving_stacks and (limit_s := self._time_limit_for_saving_stacks()):
            self._enter_phase(Phase.saving_stacks, limit_s, messages.SaveStacks())
        elif state.phase < Phase.leaving and state.noticed and stepped:
            self._enter_phase(Phase.leaving, grace_s, messages.Notice())
        elif state.phase < Phase.stopping and (
            state.has_failed_rank_or_lost_node or not state.exits.is_complete
        ):
            self._order_agents_to_stop_ranks()
        elif state.phase < Phase.awaiting_loss and (wait := self._choose_phase_awaiting_cause()):
            self._enter_phase(*wait)
        else:
            self._end_round()

    def _enter_phase(self, phase: Phase, limit_s: float, order: messages.Message | None = None) -> None:
        self.set_values(phase=phase, until=self.clock + limit_s)
        if order is not None:
            self.found.append(Send(order))

    def _time_limit_for_saving_stacks(self) -> float:
        """Return how long agents may take to save stacks; 0 if nobody needs them."""
        if self.state.is_hung and not self.state.has_failed_rank_or_lost_node:
            return _STACKS_S
        timed_out = is_collective_timeout(find_first_failure(self.state.exits.list_by_rank()))
        return _AFTER_TIME_OUT_S if timed_out else 0.0

    def _order_agents_to_stop_ranks(self) -> None:
        grace_s = self.state.settings.runtime.stop_grace_s
        if self.state.has_failed_rank_or_lost_node or self.state.is_hung:
            # The peers of a failed rank wait in a collective: patience gains nothing.
            grace_s = min(grace_s, _GRACE_OF_PEERS_S)
        limit_s = grace_s + _PATIENCE_S
        self._enter_phase(Phase.stopping, limit_s, messages.StopRound(grace_s=grace_s))
        self.set_values(no_longer=self.clock + limit_s + _NO_LONGER_S)

    def _choose_phase_awaiting_cause(self) -> tuple[Phase, float] | None:
        """Return how to wait if the ranks' ends may have a cause that is not known yet.

        A rank that was ended by a signal, or asked to leave by one, may have had a notice; one that
        lost its connection has lost it to a node that has fallen silent.
        """
        state = self.state
        if state.is_hung or state.lost or state.noticed:
            return None
        ends = state.exits.list_by_rank()
        failure = find_first_failure(ends)
        if failure is not None and failure.cause is Cause.communication:
            return Phase.awaiting_loss, state.settings.runtime.node_timeout_s + 2.0
        told = any(end.signal or end.reason is ExitReason.left for end in ends)
        return (Phase.awaiting_notice, _NOTICE_WAIT_S) if told and not state.asked else None

    def _end_round(self) -> None:
        state = self.state
        step = find_last_done_step(state.exits.list_by_rank(), state.step)
        self.set_values(phase=Phase.over, until=math.inf, step=step)
        self.found += state.exits.list_unrecorded_exit_events(state.number, self.at)
        if step is not None:
            self.found.append(NoteStep(step, state.total, last=True))
