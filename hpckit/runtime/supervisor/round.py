"""One round: starts all ranks, watches them to their end, and returns the outcome."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from hpckit.model import events
from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.failure import Cause, ExitReason, Failure, RankExit
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.report import RankLayout, layout_report
from hpckit.planning.fallback import layout_of_world
from hpckit.planning.recovery.ends import first_failure, last_done
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.loss import NodeSilence, given_up, loss
from hpckit.planning.recovery.round_view import CheckpointLoad, RoundView
from hpckit.runtime.channel import messages
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor.addresses import address_of, master_host
from hpckit.runtime.supervisor.agents import AgentLost, Agents, Peer
from hpckit.runtime.supervisor.exits import RankExits
from hpckit.runtime.supervisor.hang_report import HangReport, Told, is_time_out, standstill_s
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.profiles import Profiles
from hpckit.runtime.supervisor.pruning import TrialPruner
from hpckit.runtime.supervisor.stack_collection import StackCollection
from hpckit.runtime.supervisor.straggler_watch import StragglerWatch
from hpckit.values import dataclass, field

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

_OfRound = messages.RankEnded | messages.LayoutTold | messages.Profiled | Told


@dataclass(slots=True, kw_only=True)
class Round:
    """One start of all ranks, on the nodes of `members`, in that order.

    `past` is what is known of the run when the round starts; `noticed` is set when the attempt will
    be stopped; `on_saved` is called for committed checkpoints; `judge` may have the ranks leave
    early, `pruned`.
    """

    number: int
    members: tuple[Peer, ...]
    past: Ledger
    agents: Agents
    journal: Journal
    noticed: asyncio.Event
    on_saved: Callable[[int, messages.Saved], None]
    stragglers: StragglerWatch
    profiles: Profiles
    judge: TrialPruner | None
    nodes: tuple[str, ...] = field(init=False)
    layout: Layout = field(init=False)
    first_step: int | None = field(default=None, init=False)
    step: int | None = field(default=None, init=False)
    _total: int | None = field(default=None, init=False)
    usual_step: timedelta = field(default=timedelta(), init=False)
    start_up: timedelta = field(default=timedelta(), init=False)
    """How long it took from the beginning of the round to its first step."""
    _began_at: float = field(default_factory=time.monotonic, init=False)
    exits: RankExits = field(init=False)
    _failed_at: float = field(default=math.inf, init=False)
    _lost: dict[int, float] = field(default_factory=dict, init=False)
    """By the place of a lost member: the time since which nothing had come from it."""
    _hang: HangReport = field(default_factory=HangReport, init=False)
    stacks_asked: StackCollection | None = field(default=None, init=False)
    _silent_s: float = field(default=0.0, init=False)
    _stepped_at: float = field(default_factory=time.monotonic, init=False)
    _load: CheckpointLoad | None = field(default=None, init=False)
    _layouts: dict[int, RankLayout] = field(default_factory=dict, init=False)
    _asked: bool = field(default=False, init=False)
    watching: bool = field(default=False, init=False)
    _cut_short: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.nodes = tuple(peer.node for peer in self.members)
        self.layout = layout_of_world(self.agents.settings, self.world_size)
        self.exits = RankExits(
            round=self.number,
            world_size=self.world_size,
            tasks_per_node=self._tasks_per_node,
            record=self.journal.record,
        )
        self._hang.world_size, self._hang.layout = self.world_size, self.layout
        self.stragglers.layout = self.layout

    async def run(self) -> RoundView:
        """Start all ranks and return when none is left."""
        if not await self._start():
            return self.view()
        await self._watch()
        if self._hang.found is not None and not self._troubled():
            await self._save_stacks(_STACKS_S)
        elif is_time_out(first_failure(self.exits.in_order())):
            await self._save_stacks(_AFTER_TIME_OUT_S)
        if self.noticed.is_set() and self.step is not None and self._hang.found is None:
            await self._let_leave()
        if not self.exits.complete or self._troubled():
            await self._stop()
        await self._look_closer()
        self.exits.settle()
        self.step = last_done(self.exits.in_order(), self.step)
        if self.step is not None:
            self.journal.note_step(self.number, self.step, self._total, last=True)
        return self.view()

    @property
    def stepping(self) -> bool:
        """Whether ranks loop over steps, and nothing is known that would end the round."""
        return self.watching and self.step is not None and not self.noticed.is_set()

    @property
    def remaining(self) -> timedelta | None:
        """How long the steps that are left take in this size; None if that is not known."""
        if self._total is None or self.step is None or not self.usual_step:
            return None
        return (self._total - self.step) * self.usual_step

    async def leave(self) -> None:
        """Have all ranks save and leave at their next boundary, however long that takes.

        Unlike after a notice, nothing will end them: hang detection stays active.
        """
        if not self._asked:
            self._asked = True
            await self.agents.broadcast(messages.Notice())

    @property
    def leaving(self) -> bool:
        """Whether the ranks were asked to leave."""
        return self._asked or self.noticed.is_set()

    def view(self) -> RoundView:
        """Return the current state of the round."""
        return RoundView(
            round=self.number,
            at=now(),
            exits=self.exits.in_order(),
            first_step=self.first_step,
            load=self._load,
            step=self.step,
            cut_short=self._cut_short,
            failure=None if self.watching else self._failure(),
            members=self.nodes,
            standing=self.agents.standing_nodes,
            silent=timedelta(seconds=self._silence_s()),
            layout=self.layout,
            ran=timedelta(seconds=time.monotonic() - self._began_at),
        )

    def _silence_s(self) -> float:
        """Return for how long nothing had come on when the failure was noticed, or ranks ended."""
        since = time.monotonic() - self._stepped_at
        still = standstill_s(since, self.usual_step, self.exits.in_order())
        return max(self._silent_s, self._hang.silent_s, still)

    def _failure(self) -> Failure | None:
        """Return the failure, unless the ends of the ranks say all of it."""
        found = self._loss() or self._hang.failure()
        if found is not None:
            return found
        first = first_failure(self.exits.in_order())
        explained = self._hang.explained(first)
        return None if explained == first else explained

    @property
    def _tasks_per_node(self) -> int:
        return self.agents.settings.resources.tasks_per_node

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._tasks_per_node * len(self.members)

    async def _start(self) -> bool:
        """Have every member start its ranks; return False if the first one does not answer."""
        await self.agents.send(self.members[0].node_rank, messages.ReservePort())
        port = await self._reserved_port()
        if port is None:
            return False
        nodes, tasks = compress_nodes(self.nodes), self._tasks_per_node
        self.journal.record(
            events.RoundStarted(
                at=now(), round=self.number, world_size=self.world_size, nodes=self.nodes
            )
        )
        expected = timedelta(hours=self.agents.settings.checkpoint.mtbf_hours)
        mtbf = self.past.between_failures(expected)
        for place, peer in enumerate(self.members):
            order = messages.StartRound(
                round=self.number,
                nodes=nodes,
                address=address_of(peer, self.members),
                node_rank=place,
                first_rank=place * tasks,
                local_world_size=tasks,
                world_size=self.world_size,
                num_nodes=len(self.members),
                master_addr=master_host(self.members),
                master_port=port,
                mtbf_hours=mtbf / timedelta(hours=1),
                save_cost=self.past.save_cost,
            )
            await self.agents.send(peer.node_rank, order)
        return True

    async def _reserved_port(self) -> int | None:
        """Return the port reserved on rank 0's node; None at a notice, or if the node is lost."""
        deadline = time.monotonic() + self.agents.settings.runtime.agent_timeout_s
        while not (self._lost or self.noticed.is_set()):
            if (left_s := deadline - time.monotonic()) <= 0:
                break
            message = await self._hear(left_s, self.noticed)
            if isinstance(message, messages.PortReserved):
                return message.port
        return None

    async def _watch(self) -> None:
        """Follow the agents until all ranks have ended, one fails or hangs, or a notice comes."""
        judging = None
        if self.judge is not None:
            prune = partial(self.agents.broadcast, messages.Prune())
            judging = asyncio.create_task(self.judge.run(prune))
        self.watching = True
        try:
            while not (self._over() or self.noticed.is_set()):
                await self._hear(None, self.noticed)
        finally:
            self.watching = False
            if judging is not None:
                judging.cancel()

    async def _hear(
        self, limit_s: float | None, noticed: asyncio.Event | None = None
    ) -> messages.Message | None:
        """Process one message and return it; None at a notice or after the limit."""
        came = await self.agents.next_message(limit_s, noticed)
        return None if came is None else await self._take(*came)

    async def _take(self, sender: int, message: messages.Message) -> messages.Message:
        match message:
            case messages.StoreBound():
                host = master_host(self.members)
                await self.agents.broadcast(messages.StoreAddress(host=host, port=message.port))
            case messages.StepBegun():
                self.usual_step = timedelta(seconds=message.usual_s)
                self._stepped_at = time.monotonic()
                self._begin(message.step)
                self._advance(message.step, message.total)
            case messages.Restoring():
                self._load = CheckpointLoad(checkpoint=message.checkpoint, others=message.others)
            case messages.Saved():
                self.on_saved(self.number, message)
            case messages.Warn():
                self.journal.warn(message.message)
            case messages.Reported() if self.judge is not None:
                self.judge.hear(message)
            case messages.NodeSteps():
                await self._judge(sender, message)
            case _ if isinstance(message, _OfRound) and message.round == self.number:
                self._take_of_round(sender, message)
            case AgentLost():
                self._lose(sender, message.silent_s)
        return message

    def _take_of_round(self, sender: int, message: _OfRound) -> None:
        """Take what says in which round it was said."""
        match message:
            case messages.RankEnded():
                self.exits.take(message.exit, message.alone_s)
                self._end_rank(message.exit)
            case messages.Profiled():
                self.profiles.take(message)
            case messages.LayoutTold():
                self._take_layout(message)
            case _:
                self._hang.take(sender, message)
                if self.stacks_asked is not None:
                    self.stacks_asked.take(sender, message)

    def _take_layout(self, message: messages.LayoutTold) -> None:
        """Take a rank's layout: all layouts are recorded at once."""
        told = RankLayout(layout=message.layout, held=message.held, whole=message.whole)
        self._layouts[message.rank] = told
        if len(self._layouts) < self.world_size:
            return
        try:
            report = layout_report(self._layouts)
        except ValueError as error:
            self.journal.warn(f"the ranks disagree: {error}")
        else:
            self.journal.record(events.LayoutReported(at=now(), round=self.number, report=report))

    async def _judge(self, sender: int, message: messages.NodeSteps) -> None:
        """Pass on what ranks are judged by."""
        nodes = [peer.node for peer in self.members if peer.node_rank == sender]
        if nodes and message.round == self.number and self.stepping:
            await self.stragglers.take(message, nodes[0], time.monotonic())

    def _end_rank(self, exit_: RankExit) -> None:
        self.profiles.ended(self.number, exit_.rank)
        if exit_.failed:
            self._failed_at = min(self._failed_at, time.monotonic())
            self._begin(exit_.step)
        self._cut_short = self._cut_short or self.leaving
        if exit_.step is not None:  # which an earlier round may have done
            self._advance(exit_.step, exit_.total)

    def _lose(self, node_rank: int, silent_s: float) -> None:
        """Count a member's node as lost; spare nodes do not matter."""
        for place, peer in enumerate(self.members):
            if peer.node_rank == node_rank:
                self.exits.lose(place)
                self._lost[place] = time.monotonic() - silent_s
                self._silent_s = max(self._silent_s, silent_s)

    def _begin(self, step: int | None) -> None:
        if step is not None and self.first_step is None:
            self.first_step = step
            self.start_up = timedelta(seconds=time.monotonic() - self._began_at)
            self.journal.record(events.StepReached(at=now(), round=self.number, step=step))

    def _advance(self, step: int, total: int | None) -> None:
        self._total = total or self._total
        if self.step is None or step > self.step:
            self.step = step
        self.journal.note_step(self.number, self.step, self._total)

    def _over(self) -> bool:
        return self.exits.complete or self._troubled() or self._hang.found is not None

    def _troubled(self) -> bool:
        return bool(self._lost) or self.exits.failed

    async def _let_leave(self) -> None:
        """Pass the notice on, and give ranks in a step loop the time to act on it."""
        await self.agents.broadcast(messages.Notice())
        await self._wait(
            self.agents.settings.runtime.notice_grace_s,
            lambda: self.exits.accounted or self._troubled(),
        )

    async def _save_stacks(self, limit_s: float) -> None:
        """Have every member save what its ranks are doing, before they are killed."""
        await self.agents.broadcast(messages.SaveStacks())
        await self._wait(
            limit_s, lambda: len(self._hang.complete) >= len(self.members) - len(self._lost)
        )

    async def _stop(self) -> None:
        """End what is left and take every exit record that still comes."""
        grace_s = self.agents.settings.runtime.stop_grace_s
        if self._troubled() or self._hang.found is not None:
            # The peers of a failed rank wait in a collective: patience gains nothing.
            grace_s = min(grace_s, _GRACE_OF_PEERS_S)
        await self.agents.broadcast(messages.StopRound(grace_s=grace_s))
        await self._hear_exits(grace_s + _PATIENCE_S)

    async def _hear_exits(self, limit_s: float) -> None:
        """Take exit records for `limit_s` seconds and while they come: unread is not silent.

        A process that was held up by a file system finds all of them unread, and the time over.
        """
        began = time.monotonic()
        deadline = began + limit_s
        while not self.exits.accounted and time.monotonic() - began < limit_s + _NO_LONGER_S:
            count = len(self.exits)
            if await self._hear(max(deadline - time.monotonic(), _UNREAD_S)) is None:
                return
            if len(self.exits) > count:
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
        if self._hang.found is not None or self._lost or self.noticed.is_set():
            return
        ends = self.exits.in_order()
        failure = first_failure(ends)
        if failure is not None and failure.cause is Cause.communication:
            limit_s = self.agents.settings.runtime.node_timeout_s + 2.0
            await self._wait(limit_s, lambda: bool(self._lost) or self.noticed.is_set())
        elif not self._asked and any(one.signal or one.reason is ExitReason.left for one in ends):
            await self._wait(_NOTICE_WAIT_S, self.noticed.is_set)

    def _loss(self) -> Failure | None:
        """Return the failure of agents that left, or were lost, if there is one."""
        if self.agents.given_up_s and self.exits.missing():
            return given_up(self.agents.given_up_s, self.step)
        absence = NodeSilence(
            nodes=self.nodes,
            tasks_per_node=self._tasks_per_node,
            silent=self.exits.missing(),
            lost=self._lost,
            failed_at=self._failed_at,
            step=self.step,
            layout=self.layout,
        )
        return loss(absence, self.exits.in_order())
