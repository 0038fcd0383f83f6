"""One round: starts all ranks, watches them to their end, and returns the outcome."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from hpckit.model import events, messages
from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.failure import StacksAnswer
from hpckit.model.launch import LaunchConfig
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.round_view import RoundView
from hpckit.planning.rounds.hang_report import HangReport
from hpckit.planning.rounds.round_state import Phase, RoundState
from hpckit.planning.rounds.round_turns import Heard, Instruction, NoteStep, Send, Turn, advance_round
from hpckit.runtime.clock import now
from hpckit.runtime.mailbox import write_answer_file
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.callers import Peer
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.node_inspections import find_address_for_other_nodes, find_master_host
from hpckit.runtime.supervisor.pruning import TrialPruner
from hpckit.runtime.threads import await_with_limit
from hpckit.values import dataclass, field

_COLLECT_S = 8.0
"""How long a user's request for stacks may take: a little longer than an agent waits for ranks."""


def make_start_orders(
    number: int, members: tuple[Peer, ...], settings: LaunchConfig, past: Ledger
) -> dict[int, messages.StartRound]:
    """Return the orders to start a round on these members, by node rank, without the port."""
    tasks = settings.resources.tasks_per_node
    mtbf = past.mean_time_between_failures(timedelta(hours=settings.checkpoint.mtbf_hours))
    nodes = compress_to_hostlist([peer.node for peer in members])
    return {
        peer.node_rank: messages.StartRound(
            round=number,
            nodes=nodes,
            address=find_address_for_other_nodes(peer, members),
            node_rank=place,
            first_rank=place * tasks,
            local_world_size=tasks,
            world_size=tasks * len(members),
            num_nodes=len(members),
            master_addr=find_master_host(members),
            master_port=0,
            mtbf_hours=mtbf / timedelta(hours=1),
            save_cost=past.save_cost,
        )
        for place, peer in enumerate(members)
    }


@dataclass(slots=True, kw_only=True)
class Round:
    """One start of all ranks: waits for what happens, and does what `state` says.

    `pass_on` is called with the messages that are for other parts; `pruner` may have the ranks
    leave early, `pruned`.
    """

    state: RoundState
    agents: Agents
    journal: Journal
    noticed: asyncio.Event
    pass_on: Callable[[RoundState, Heard], Awaitable[None]]
    pruner: TrialPruner | None
    _request: int = field(default=0, init=False)
    """The latest request of a user for stacks."""
    _stacks: HangReport = field(default_factory=HangReport, init=False)
    _stacks_complete: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run_to_end(self) -> RoundView:
        """Start all ranks and return when none is left."""
        judging = asyncio.create_task(self._prune_on_study_decision())
        turn: Heard | Turn = Turn.begin
        try:
            while await self.take_turn(turn):
                if self.state.phase > Phase.watching:
                    judging.cancel()
                turn = await self._await_message_or_timeout()
        finally:
            judging.cancel()
        return self.view_now()

    async def _prune_on_study_decision(self) -> None:
        if self.pruner is not None and await self.pruner.await_prune_decision():
            await self.agents.broadcast_message(messages.Prune())

    async def ask_ranks_to_save_and_leave(self) -> None:
        """Have all ranks save and leave at their next boundary, however long that takes."""
        await self.take_turn(Turn.leave)

    def view_now(self) -> RoundView:
        """Return the current state of the round."""
        agents = self.agents
        return self.state.build_view_for_decisions(
            agents.standing_nodes, agents.given_up_s, time.monotonic(), now()
        )

    async def _await_message_or_timeout(self) -> Heard | Turn:
        until = self.state.until
        limit_s = None if until == math.inf else max(until - time.monotonic(), 0.0)
        noticed = None if self.state.noticed else self.noticed
        came = await self.agents.receive_message(limit_s, noticed)
        return Turn.time if came is None else Heard(*came)

    async def take_turn(self, turn: Heard | Turn) -> bool:
        """Follow what has happened; return whether the round continues.

        A notice comes before a message: ranks that end meanwhile may have had it, too.
        """
        noticed = self.noticed.is_set() and not self.state.noticed and turn is not Turn.begin
        for one in (Turn.notice, turn) if noticed else (turn,):
            self.state, instructions = advance_round(self.state, one, time.monotonic(), now())
            for instruction in instructions:
                await self._follow_instruction(instruction)
        return self.state.phase is not Phase.over

    async def _follow_instruction(self, instruction: Instruction) -> None:
        match instruction:
            case Send(message=message, to=None):
                await self.agents.broadcast_message(message)
            case Send(message=message, to=int(node_rank)):
                await self.agents.send_message(node_rank, message)
            case NoteStep(step=step, total=total, last=last):
                self.journal.write_step_progress(self.state.number, step, total, last=last)
            case Heard(message=messages.StackSaved() | messages.StacksSaved() as message):
                self._add_stacks_from_agent(instruction.sender, message)
            case Heard(message=messages.Reported() as report):
                if self.pruner is not None:
                    self.pruner.queue_report_for_study(report)
            case Heard():
                await self.pass_on(self.state, instruction)
            case events.Event():
                self.journal.record_event(instruction)

    async def collect_stacks(self, request: int) -> StacksAnswer | None:
        """Have every rank say what it is doing; None unless the ranks are being watched."""
        state = self.state
        if not state.is_watching:
            return None
        self._request, self._stacks = request, HangReport()
        self._stacks_complete.clear()
        await self.agents.broadcast_message(messages.SaveStacks(request=request))
        await await_with_limit(_COLLECT_S, self._stacks_complete.wait())
        found = self._stacks
        silent = (node for rank, node in state.members.items() if rank not in found.complete)
        return StacksAnswer(
            request=request,
            at=now(),
            round=state.number,
            stacks=tuple(sorted(found.stacks, key=lambda stack: stack.rank)),
            silent=tuple(silent),
            layout=state.layout,
        )

    def _add_stacks_from_agent(
        self, sender: int, message: messages.StackSaved | messages.StacksSaved
    ) -> None:
        if message.request == self._request:  # else it comes too late
            self._stacks = self._stacks.with_message(sender, message)
            if self._stacks.complete >= self.state.members.keys():
                self._stacks_complete.set()


async def answer_stacks_request(journal: Journal, round_: Round | None, request: int) -> None:
    """Write down what every rank of a round is doing, if ranks are watched."""
    file = journal.paths.stacks_answer
    answer = None if round_ is None else await round_.collect_stacks(request)
    answer = answer or StacksAnswer(request=request, at=now(), round=None)

    def write() -> None:
        with contextlib.suppress(OSError):  # whoever asked is told that no answer came
            write_answer_file(file, answer)

    journal.files.queue_replaceable_work(file.name, write)
