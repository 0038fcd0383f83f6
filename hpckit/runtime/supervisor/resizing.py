"""A running run that grows and shrinks: users' requests, and the nodes of satellite jobs.

Notices when a round could have another size, and has its ranks leave at a boundary; the nodes of
the next round, and what growing is worth, are decided in planning.recovery. It submits nothing
but through `Resizing.order`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial

from hpckit.model import events, messages
from hpckit.model.counted import counted
from hpckit.model.elastic import Resize, ResizeAnswer, ResizeRequest
from hpckit.model.states import DrainAction
from hpckit.planning.fallback import layout_of_world
from hpckit.planning.layout import layout_of
from hpckit.planning.recovery.node_choice import RoundSizes
from hpckit.planning.recovery.round_view import NewRound, RoundView, Stay
from hpckit.planning.recovery.run_size import (
    RunSize,
    least_replicas,
    replicas_to_order,
    size_of,
    worth_growing,
)
from hpckit.runtime.clock import now
from hpckit.runtime.mailbox import resize_mailbox
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.round import Round
from hpckit.runtime.threads import aside, done_within
from hpckit.values import dataclass, field, replace

LOOK_S = 2.0
"""How often it is looked whether a round can follow what it was asked."""
_SETTLED = timedelta(seconds=30)
"""How long a round must have run: nodes that are lost one after the other get no job each."""


@dataclass(slots=True, kw_only=True)
class Resizing:
    """How large the run is to be, and who asked for it.

    `round` is the latest round, if any; `judge` returns what follows if it were asked to leave now;
    `usable` the nodes that a round of another size may have, present ones included.
    `order` submits a job for a number of replicas, less a number of idle nodes, and returns Slurm's
    id of it and its number of nodes; None: never.
    `asked` is whether the run was asked to have another size, and may be restarted for it.
    """

    journal: Journal
    agents: Agents
    judge: Callable[[RoundView], NewRound | Stay]
    usable: Callable[[RoundView], Sequence[str]]
    order: Callable[[int, int], tuple[str, int] | None] | None
    round: Round | None = field(default=None, init=False)
    size: RunSize = field(init=False)
    asked: bool = field(default=False, init=False)
    unasked: set[str] = field(default_factory=set, init=False)
    """Satellites that no user asked for: they wait until growing is worth its restart."""
    grown_from: tuple[str, ...] = field(default=(), init=False)
    """The members of the round before, if the present one has these and more."""
    _members: tuple[str, ...] = field(default=(), init=False)
    _told: str = field(default="", init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _ordered: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    """By job, how many replicas it completes, and with how many nodes."""
    _refused: int = field(default=0, init=False)
    """How many replicas there was no job for; they are given up."""

    def __post_init__(self) -> None:
        self.size = size_of(self.agents.settings)
        self.agents.on_satellite = self._hear_satellite

    @property
    def wanted_nodes(self) -> int:
        """How many nodes a round is to have."""
        return self.size.wanted_nodes(self._satellite_count)

    @property
    def fewest_nodes(self) -> int:
        """How many nodes a round must have; fewer than configured if the user said so."""
        resources = self.agents.settings.resources
        fewest = resources.min_nodes or resources.nodes
        return min(fewest, self.wanted_nodes or fewest)

    @property
    def round_sizes(self) -> RoundSizes:
        """How many nodes a round may have."""
        return RoundSizes(
            wanted=self.wanted_nodes,
            fewest=self.fewest_nodes,
            replica_nodes=self.size.replica_nodes,
            fallback=self.size.fallback_nodes,
        )

    @property
    def losing(self) -> bool:
        """Whether the present round is to leave because nodes of a satellite leave it."""
        here = {peer.node: peer for peer in self.agents.peers.values()}
        members = (here.get(node) for node in self._members)
        return self.asked and any(member is None or member.leaving for member in members)

    @property
    def _satellite_count(self) -> int:
        return sum(peer.satellite is not None for peer in self.agents.standing)

    def _hear_satellite(self) -> None:
        peers = (peer for peer in self.agents.peers.values() if peer.satellite is not None)
        if any(peer.leaving or peer.satellite not in self.unasked for peer in peers):
            self.resize()

    def resize(self) -> None:
        """Have the run continue in another size as soon as it can."""
        self.asked = True
        self._news.set()

    async def watch(self) -> None:
        """Have a round leave once it can continue in the size it was asked for; until cancelled."""
        while True:
            await done_within(LOOK_S, self._news.wait())
            self._news.clear()
            round_ = self.round
            if self.asked and round_ is not None and round_.state.stepping:
                await self._consider(round_)

    async def _consider(self, round_: Round) -> None:
        view = round_.view()
        action = self.judge(view)
        gone = {*view.members} - {*view.standing}
        if isinstance(action, NewRound) or gone:
            # Nodes that leave take their ranks with them, whatever follows.
            await round_.leave()
            return
        await self._let_go(view.members)
        if action.because != self._told and len(view.members) != self.wanted_nodes:
            self._told = action.because
            words = f"asked for another number of replicas, and not there yet: {action.because}"
            self.journal.warn(words)

    async def began(self, members: tuple[str, ...]) -> None:
        """Note which nodes a new round has; let satellites go that are not needed any more."""
        more = len(members) > len(self._members) and {*self._members} <= {*members}
        self.grown_from = self._members if more else ()
        self._members = members
        self._tell_fallback(len(members))
        await self._let_go(members)
        waiting = (peer for peer in self.agents.standing if peer.node not in members)
        self.asked = any(request.satellite not in {None, *self.unasked} for request in waiting)
        self._told = ""

    def _tell_fallback(self, nodes: int) -> None:
        """Record that a round is in another layout, as it has no whole replica."""
        if nodes % self.size.replica_nodes == 0:
            return
        settings = self.agents.settings
        layout = layout_of_world(settings, nodes * settings.resources.tasks_per_node)
        words = (
            f"no whole replica of {layout_of(settings)} on {counted(nodes, 'node')}: the run "
            f"continues as {layout} (parallel.fallback)"
        )
        self.journal.warn(words)

    def idle_nodes(self, view: RoundView, after: int = 0) -> Sequence[str]:
        """Return the usable nodes without ranks that are too few for a replica.

        Not among them are those for `after` replicas, and as many as resources.spare_nodes. The
        nodes of a round that has no whole replica (parallel.fallback) are among them.
        """
        whole = self.size.replica_nodes
        idle = [node for node in self.usable(view) if node not in view.members]
        kept = after * whole + self.agents.settings.resources.spare_nodes
        part = view.members[: len(view.members) % whole]
        found = (*part, *idle[: max(0, len(idle) - kept)])
        return found[: len(found) % whole]

    def undo(self, because: str) -> None:
        """Have no more replicas than before the present round, which failed at once."""
        self.size = self.size.shrunk(len(self.grown_from) // self.size.replica_nodes)
        words = f"growing was undone, as the first round with more replicas failed: {because}"
        self.journal.warn(words)

    async def _let_go(self, members: tuple[str, ...]) -> None:
        """Let satellites go that no rank runs on, and that are leaving or not needed any more."""
        there = {peer.satellite for peer in self.agents.peers.values()} - {None}
        used = {peer.satellite for peer in self.agents.peers.values() if peer.node in members}
        for satellite in filter(None, there - used):
            peers = self.agents.satellite_peers(satellite)
            bound = self.size.bound
            if bound is not None and len(members) >= bound * self.size.replica_nodes:
                self.agents.dismiss(satellite, "the run has no use for it")
            if any(peer.leaving for peer in peers):
                for peer in peers:
                    await self.agents.send(peer.node_rank, messages.Shutdown())

    async def answer(self, before: int, _: int) -> None:
        """Answer the requests after this one, in their order."""
        mailbox = resize_mailbox(self.journal.paths)
        for request in await aside(lambda: mailbox.requested(before)):
            write = partial(mailbox.write, self._answer(request))
            self.journal.files.put_latest(f"resize {request.id}", write)

    def _answer(self, request: ResizeRequest) -> ResizeAnswer:
        """Take a request in; nothing changes if it is refused."""
        round_ = self.round
        nodes = self.wanted_nodes if round_ is None else len(round_.state.members)
        held = nodes // self.size.replica_nodes
        answer = ResizeAnswer(id=request.id, at=now(), replicas=held)
        refused = self._refusal(request, held)
        if refused is not None:
            return replace(answer, refused=refused)
        if request.resize is Resize.shrink:
            self.size, self.asked = self.size.shrunk(request.replicas), True
            return answer
        view = None if round_ is None else round_.view()
        there = len(self.agents.standing if view is None else self.usable(view))
        satellites = self._satellite_count
        standing = self.size.standing(request.replicas, there, satellites)
        self.size, self.asked = self.size.grown(request.replicas), self.asked or standing > 0
        idle = () if view is None else self.idle_nodes(view, standing)
        return replace(answer, standing=standing, idle_nodes=len(idle))

    def _refusal(self, request: ResizeRequest, held: int) -> str | None:
        if request.replicas < 1:
            return f"{request.replicas} is no number of replicas"
        if request.resize is Resize.grow:
            return self.size.not_grown(request.replicas, held)
        least = least_replicas(self.agents.settings)
        return self.size.not_shrunk(request.replicas, held, least)

    @property
    def satellite_nodes(self) -> tuple[str, ...]:
        """The nodes of satellites, to be asked about with those of the run's own job."""
        peers = self.agents.peers.values()
        return tuple(peer.node for peer in peers if peer.satellite is not None)

    def leave_drained(self, found: Mapping[str, str], *, saved: bool) -> Mapping[str, str]:
        """Let drained satellites go once the run has saved; return the other nodes of `found`.

        The nodes of the satellite's job are left together, as they came together.
        """
        peers = self.agents.peers.values()
        brought = {peer.node: peer for peer in peers if peer.satellite is not None}
        for node in found if saved else ():
            peer = brought.get(node)
            if peer is None or peer.satellite is None or peer.leaving:
                continue
            why = f" ({found[node]})" if found[node] else ""
            self.agents.dismiss(peer.satellite, f"{node} is being drained{why}")
            told = events.NodeDraining(
                at=now(), node=node, reason=found[node], action=DrainAction.leave
            )
            self.journal.record(told)
            self.resize()
        return {node: why for node, why in found.items() if node not in brought}

    async def saved(self, duration: timedelta) -> None:
        """Bring the run back to its size without a user's asking, if that is worth its restart.

        Call it when a save, which took so long, has just been committed. The nodes are spares, or
        come with a satellite job.
        """
        round_ = self.round
        if round_ is None or not round_.state.stepping:
            return
        view, size = round_.view(), self.size
        held, whole = len(view.members), size.replica_nodes
        action = self.judge(view)
        if isinstance(action, NewRound):
            worth = self._is_worth(round_, held, len(action.nodes), duration)
            if worth and not self.asked:
                self.resize()
            return
        missing = replicas_to_order(size, held // whole, self._coming() + self._refused)
        ready, after = missing > 0 and view.ran >= _SETTLED, (held // whole + missing) * whole
        if ready and self._is_worth(round_, held, after, duration):
            await self._submit(missing, len(self.idle_nodes(view)))

    def _coming(self) -> int:
        """Return how many replicas are to be completed by nodes that have yet to come."""
        arrivals = self.agents.arrivals
        orders = self._ordered.items()
        return sum(replicas for job, (replicas, nodes) in orders if arrivals[job] < nodes)

    @staticmethod
    def _is_worth(round_: Round, held: int, after: int, duration: timedelta) -> bool:
        left, start_up = round_.state.remaining, round_.state.start_up
        return left is not None and worth_growing(held, after, left, start_up + duration)

    async def _submit(self, replicas: int, idle: int) -> None:
        """Submit a job, whatever comes of it."""
        order = self.order
        if order is None:
            return
        lost = counted(replicas, "lost replica")
        submitted = await aside(lambda: order(replicas, idle))
        if submitted is None:
            self._refused += replicas
            words = f"no satellite job could be submitted to bring {lost} back"
        else:
            job, nodes = submitted
            self._ordered[job] = (replicas, nodes)
            self.unasked.add(job)
            words = f"satellite job {job} was submitted to bring {lost} back"
        self.journal.warn(words)
