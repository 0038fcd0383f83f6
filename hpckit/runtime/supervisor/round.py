"""One round: starts all ranks, watches them to their end, and returns the outcome."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from hpckit.model import events
from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.failure import Cause, ExitReason, StacksAnswer
from hpckit.planning.recovery.ends import first_failure, last_done
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.round_view import RoundView
from hpckit.runtime.channel import messages
from hpckit.runtime.clock import now
from hpckit.runtime.mailbox import write_answer
from hpckit.runtime.supervisor.agents import Agents, Peer
from hpckit.runtime.supervisor.hang_report import StackCollection, is_time_out
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.node_inspections import address_of, master_host
from hpckit.runtime.supervisor.profiles import Profiles
from hpckit.runtime.supervisor.pruning import TrialPruner
from hpckit.runtime.supervisor.round_state import RoundState
from hpckit.runtime.supervisor.straggler_watch import StragglerWatch
from hpckit.runtime.threads import done_within
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
_COLLECT_S = 8.0
"""The same for a user: a little longer than an agent waits for its ranks."""


@dataclass(slots=True, kw_only=True)
class Round:
    """One start of all ranks, on the nodes of `members`, in that order: sends, waits and records.

    `state` is what is known of it, `past` of the run when it starts; `on_saved` is called for
    committed checkpoints; `judge` may have the ranks leave early, `pruned`.
    """

    state: RoundState
    members: tuple[Peer, ...]
    past: Ledger
    agents: Agents
    on_saved: Callable[[int, messages.Saved], None]
    stragglers: StragglerWatch
    profiles: Profiles
    judge: TrialPruner | None

    async def run(self) -> RoundView:
        """Start all ranks and return when none is left."""
        state = self.state
        if not await self._start():
            return self.view()
        await self._watch()
        if state.hang.found is not None and not state.troubled:
            await self._save_stacks(_STACKS_S)
        elif is_time_out(first_failure(state.exits.in_order())):
            await self._save_stacks(_AFTER_TIME_OUT_S)
        if state.noticed.is_set() and state.step is not None and state.hang.found is None:
            await self._let_leave()
        if not state.exits.complete or state.troubled:
            await self._stop()
        await self._look_closer()
        state.exits.settle()
        state.step = last_done(state.exits.in_order(), state.step)
        if state.step is not None:
            state.journal.note_step(state.number, state.step, state.total, last=True)
        return self.view()

    async def leave(self) -> None:
        """Have all ranks save and leave at their next boundary, however long that takes.

        Unlike after a notice, nothing will end them: hang detection stays active.
        """
        if not self.state.asked:
            self.state.asked = True
            await self.agents.broadcast(messages.Notice())

    def view(self) -> RoundView:
        """Return the current state of the round."""
        agents = self.agents
        return self.state.view(agents.standing_nodes, agents.given_up_s, time.monotonic())

    async def _start(self) -> bool:
        """Have every member start its ranks; return False if the first one does not answer."""
        await self.agents.send(self.members[0].node_rank, messages.ReservePort())
        port = await self._reserved_port()
        if port is None:
            return False
        number, nodes, world_size = self.state.number, self.state.nodes, self.state.world_size
        self.state.journal.record(
            events.RoundStarted(at=now(), round=number, world_size=world_size, nodes=nodes)
        )
        nodelist, tasks = compress_nodes(nodes), self.state.settings.resources.tasks_per_node
        expected = timedelta(hours=self.state.settings.checkpoint.mtbf_hours)
        mtbf = self.past.between_failures(expected)
        for place, peer in enumerate(self.members):
            order = messages.StartRound(
                round=number,
                nodes=nodelist,
                address=address_of(peer, self.members),
                node_rank=place,
                first_rank=place * tasks,
                local_world_size=tasks,
                world_size=world_size,
                num_nodes=len(nodes),
                master_addr=master_host(self.members),
                master_port=port,
                mtbf_hours=mtbf / timedelta(hours=1),
                save_cost=self.past.save_cost,
            )
            await self.agents.send(peer.node_rank, order)
        return True

    async def _reserved_port(self) -> int | None:
        """Return the port reserved on rank 0's node; None at a notice, or if the node is lost."""
        state = self.state
        deadline = time.monotonic() + state.settings.runtime.agent_timeout_s
        while not (state.lost or state.noticed.is_set()):
            if (left_s := deadline - time.monotonic()) <= 0:
                break
            message = await self._hear(left_s, state.noticed)
            if isinstance(message, messages.PortReserved):
                return message.port
        return None

    async def _watch(self) -> None:
        """Follow the agents until all ranks have ended, one fails or hangs, or a notice comes."""
        state = self.state
        judging = None
        if self.judge is not None:
            prune = partial(self.agents.broadcast, messages.Prune())
            judging = asyncio.create_task(self.judge.run(prune))
        state.watching = True
        try:
            while not (state.over or state.noticed.is_set()):
                await self._hear(None, state.noticed)
        finally:
            state.watching = False
            if judging is not None:
                judging.cancel()

    async def _hear(
        self, limit_s: float | None, noticed: asyncio.Event | None = None
    ) -> messages.Message | None:
        """Process one message and return it; None at a notice or after the limit."""
        came = await self.agents.next_message(limit_s, noticed)
        return None if came is None else await self._take(*came)

    async def _take(self, sender: int, message: messages.Message) -> messages.Message:
        state, at = self.state, time.monotonic()
        state.take(sender, message, at)
        match message:
            case messages.StoreBound():
                host = master_host(self.members)
                await self.agents.broadcast(messages.StoreAddress(host=host, port=message.port))
            case messages.Saved():
                self.on_saved(state.number, message)
            case messages.Warn():
                state.journal.warn(message.message)
            case messages.Reported() if self.judge is not None:
                self.judge.hear(message)
            case messages.NodeSteps(round=state.number) if sender in state.members:
                if state.stepping:
                    await self.stragglers.take(message, state.members[sender], at)
            case messages.RankEnded(round=state.number):
                self.profiles.ended(state.number, message.exit.rank)
            case messages.Profiled(round=state.number):
                self.profiles.take(message)
        return message

    async def _let_leave(self) -> None:
        """Pass the notice on, and give ranks in a step loop the time to act on it."""
        state = self.state
        await self.agents.broadcast(messages.Notice())
        await self._wait(
            state.settings.runtime.notice_grace_s,
            lambda: state.exits.accounted or state.troubled,
        )

    async def _save_stacks(self, limit_s: float) -> None:
        """Have every member save what its ranks are doing, before they are killed."""
        state = self.state
        await self.agents.broadcast(messages.SaveStacks())
        await self._wait(
            limit_s, lambda: len(state.hang.complete) >= len(self.members) - len(state.lost)
        )

    async def _stop(self) -> None:
        """End what is left, and take exit records for as long as they come: unread is not silent.

        A process that was held up by a file system finds all of them unread, and the time over.
        """
        state, grace_s = self.state, self.state.settings.runtime.stop_grace_s
        if state.troubled or state.hang.found is not None:
            # The peers of a failed rank wait in a collective: patience gains nothing.
            grace_s = min(grace_s, _GRACE_OF_PEERS_S)
        await self.agents.broadcast(messages.StopRound(grace_s=grace_s))
        began, limit_s = time.monotonic(), grace_s + _PATIENCE_S
        deadline = began + limit_s
        while not state.exits.accounted and time.monotonic() - began < limit_s + _NO_LONGER_S:
            count = len(state.exits)
            if await self._hear(max(deadline - time.monotonic(), _UNREAD_S)) is None:
                return
            if len(state.exits) > count:
                deadline = max(deadline, time.monotonic() + _PATIENCE_S)

    async def _wait(self, limit_s: float, enough: Callable[[], bool]) -> None:
        """Process messages until `enough` is true, or for `limit_s` seconds."""
        deadline = time.monotonic() + limit_s
        while not enough() and (left := deadline - time.monotonic()) > 0:
            await self._hear(left)

    async def _look_closer(self) -> None:
        """Wait a little if the ranks' ends may have a cause that is not known yet.

        A rank that was ended by a signal, or asked to leave by one, may have had a notice; one that
        lost its connection has lost it to a node that has fallen silent.
        """
        state = self.state
        if state.hang.found is not None or state.lost or state.noticed.is_set():
            return
        ends = state.exits.in_order()
        failure = first_failure(ends)
        if failure is not None and failure.cause is Cause.communication:
            limit_s = state.settings.runtime.node_timeout_s + 2.0
            await self._wait(limit_s, lambda: bool(state.lost) or state.noticed.is_set())
        elif not state.asked and any(end.signal or end.reason is ExitReason.left for end in ends):
            await self._wait(_NOTICE_WAIT_S, state.noticed.is_set)


async def answer_stacks(journal: Journal, round_: Round | None, request: int) -> None:
    """Have every rank of a round say what it is doing, if ranks are watched, and write it down."""
    file, found = journal.paths.stacks_answer, None
    if round_ is not None and round_.state.watching:
        round_.state.stacks_asked = found = StackCollection(
            request=request, nodes=round_.state.members
        )
        await round_.agents.broadcast(messages.SaveStacks(request=request))
        await done_within(_COLLECT_S, found.complete.wait())
    answer = StacksAnswer(request=request, at=now(), round=None)
    if round_ is not None and found is not None:
        answer = replace(
            answer,
            round=round_.state.number,
            stacks=tuple(found.stacks[rank] for rank in sorted(found.stacks)),
            silent=tuple(found.nodes[rank] for rank in found.nodes if rank not in found.answered),
            layout=round_.state.layout,
        )

    def write() -> None:
        with contextlib.suppress(OSError):  # whoever asked is told that no answer came
            write_answer(file, answer)

    journal.files.put_latest(file.name, write)
