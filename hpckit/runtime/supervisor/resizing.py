"""A running run that grows and shrinks: users' requests, and the nodes of satellite jobs.

Notices when a round could have another size, and has its ranks leave at a boundary; the nodes of
the next round, and what growing is worth, are decided in planning.recovery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

from hpckit.model import events, messages
from hpckit.model.counted import format_count
from hpckit.model.elastic import Resize, ResizeAnswer, ResizeRequest
from hpckit.model.states import DrainAction
from hpckit.planning.fallback import find_layout_for_ranks
from hpckit.planning.layout import plan_run_layout
from hpckit.planning.recovery.boundary import decide_on_resize, list_nodes_for_resize
from hpckit.planning.recovery.round_view import NewRound, RoundView
from hpckit.planning.recovery.run_size import count_replicas_to_order, find_min_replicas, is_growth_worthwhile
from hpckit.planning.rounds.round_state import RoundState
from hpckit.runtime.clock import now
from hpckit.runtime.mailbox import resize_mailbox
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.outlook import Outlook
from hpckit.runtime.supervisor.round import Round
from hpckit.runtime.supervisor.wanted_size import WantedSize
from hpckit.runtime.threads import await_with_limit, run_in_thread
from hpckit.values import dataclass, field, replace

LOOK_S = 2.0
"""How often it is looked whether a round can follow what it was asked."""
_SETTLED = timedelta(seconds=30)
"""How long a round must have run: nodes that are lost one after the other get no job each."""


@dataclass(slots=True)
class Resizing:
    """Has the ranks of a run leave for another size, and answers who asks for one."""

    journal: Journal
    agents: Agents
    outlook: Outlook
    _told: str = field(default="", init=False)
    _ordered: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    """By job, how many replicas it completes, and with how many nodes."""
    _refused: int = field(default=0, init=False)
    """How many replicas there was no job for; they are given up."""

    @property
    def _wanted(self) -> WantedSize:
        return self.outlook.wanted_size

    async def end_rounds_to_resize(self) -> None:
        """Have a round leave once it can continue in the size it was asked for; until cancelled."""
        while True:
            await await_with_limit(LOOK_S, self._wanted.news.wait())
            self._wanted.news.clear()
            round_ = self.outlook.stepping_round
            if self._wanted.asked and round_ is not None:
                await self._end_round_if_resizable(round_)

    async def _end_round_if_resizable(self, round_: Round) -> None:
        view = round_.view_now()
        action = self.outlook.judge_round(decide_on_resize, view)
        gone = {*view.members} - {*view.standing}
        if isinstance(action, NewRound) or gone:
            # Nodes that leave take their ranks with them, whatever follows.
            await round_.ask_ranks_to_save_and_leave()
            return
        await self._release_unused_satellites(view.members)
        wanted = self._wanted.round_sizes.wanted
        if action.because != self._told and len(view.members) != wanted:
            self._told = action.because
            words = f"asked for another number of replicas, and not there yet: {action.because}"
            self.journal.record_warning(words)

    async def update_for_new_round(self, members: tuple[str, ...]) -> None:
        """Note which nodes a new round has; let satellites go that are not needed any more."""
        self._wanted.record_round_members(members)
        self._warn_of_fallback(len(members))
        await self._release_unused_satellites(members)
        self._wanted.keep_request_if_satellites_wait()
        self._told = ""

    def _warn_of_fallback(self, nodes: int) -> None:
        """Record that a round is in another layout, as it has no whole replica."""
        if nodes % self._wanted.size.replica_nodes == 0:
            return
        settings = self.agents.settings
        layout = find_layout_for_ranks(settings, nodes * settings.resources.tasks_per_node)
        words = (
            f"no whole replica of {plan_run_layout(settings)} on {format_count(nodes, 'node')}: "
            f"the run continues as {layout} (parallel.fallback)"
        )
        self.journal.record_warning(words)

    def _list_partial_replica_nodes(self, view: RoundView, after: int = 0) -> Sequence[str]:
        """Return the usable nodes without ranks that are too few for a replica.

        Not among them are those for `after` replicas, and as many as resources.spare_nodes. The
        nodes of a round that has no whole replica (parallel.fallback) are among them.
        """
        whole = self._wanted.size.replica_nodes
        usable = self.outlook.judge_round(list_nodes_for_resize, view)
        idle = [node for node in usable if node not in view.members]
        kept = after * whole + self.agents.settings.resources.spare_nodes
        part = view.members[: len(view.members) % whole]
        found = (*part, *idle[: max(0, len(idle) - kept)])
        return found[: len(found) % whole]

    def undo_growth(self, because: str) -> None:
        """Have no more replicas than before the present round, which failed at once."""
        wanted = self._wanted
        wanted.size = wanted.size.with_bound(len(wanted.grown_from) // wanted.size.replica_nodes)
        words = f"growing was undone, as the first round with more replicas failed: {because}"
        self.journal.record_warning(words)

    async def _release_unused_satellites(self, members: tuple[str, ...]) -> None:
        """Let satellites go that no rank runs on, and that are leaving or not needed any more."""
        peers = self.agents.peers.values()
        there = {peer.satellite for peer in peers} - {None}
        used = {peer.satellite for peer in peers if peer.node in members}
        for satellite in filter(None, there - used):
            own, size = self.agents.list_satellite_peers(satellite), self._wanted.size
            if size.bound is not None and len(members) >= size.bound * size.replica_nodes:
                self.agents.dismiss_satellite(satellite, "the run has no use for it")
            if any(peer.leaving for peer in own):
                for peer in own:
                    await self.agents.send_message(peer.node_rank, messages.Shutdown())

    async def answer_resize_requests(self, before: int, _: int) -> None:
        """Answer the requests after this one, in their order."""
        mailbox = resize_mailbox(self.journal.paths)
        for request in await run_in_thread(lambda: mailbox.read_requests(before)):
            write = partial(mailbox.put_answer, self._accept_or_refuse_resize(request))
            self.journal.files.queue_replaceable_work(f"resize {request.id}", write)

    def _accept_or_refuse_resize(self, request: ResizeRequest) -> ResizeAnswer:
        """Take a request in; nothing changes if it is refused."""
        round_, wanted = self.outlook.round, self._wanted
        size = wanted.size
        nodes = wanted.round_sizes.wanted if round_ is None else len(round_.state.members)
        held = nodes // size.replica_nodes
        answer = ResizeAnswer(id=request.id, at=now(), replicas=held)
        refused = self._explain_resize_refusal(request, held)
        if refused is not None:
            return replace(answer, refused=refused)
        if request.resize is Resize.shrink:
            wanted.size, wanted.asked = size.with_bound(request.replicas), True
            return answer
        view = None if round_ is None else round_.view_now()
        there: Sequence[object] = self.agents.standing_peers
        if view is not None:
            there = self.outlook.judge_round(list_nodes_for_resize, view)
        standing = size.count_replicas_held_by_bound(
            request.replicas, len(there), wanted.count_staying_satellite_nodes()
        )
        wanted.size, wanted.asked = (size.with_raised_bound(request.replicas), wanted.asked or standing > 0)
        idle = () if view is None else self._list_partial_replica_nodes(view, standing)
        return replace(answer, standing=standing, idle_nodes=len(idle))

    def _explain_resize_refusal(self, request: ResizeRequest, held: int) -> str | None:
        if request.replicas < 1:
            return f"{request.replicas} is no number of replicas"
        if request.resize is Resize.grow:
            return self._wanted.size.explain_no_growth(request.replicas, held)
        least = find_min_replicas(self.agents.settings)
        return self._wanted.size.explain_no_shrink(request.replicas, held, least)

    def dismiss_drained_satellites(self, found: Mapping[str, str], *, saved: bool) -> Mapping[str, str]:
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
            self.agents.dismiss_satellite(peer.satellite, f"{node} is being drained{why}")
            told = events.NodeDraining(at=now(), node=node, reason=found[node], action=DrainAction.leave)
            self.journal.record_event(told)
            self._wanted.ask_for_resize()
        return {node: why for node, why in found.items() if node not in brought}

    async def regrow_after_save(self, duration: timedelta) -> None:
        """Bring the run back to its size without a user's asking, if that is worth its restart.

        Call it when a save, which took so long, has just been committed. The nodes are spares, or
        come with a satellite job.
        """
        round_ = self.outlook.stepping_round
        if round_ is None:
            return
        view, size = round_.view_now(), self._wanted.size
        held, whole = len(view.members), size.replica_nodes
        action = self.outlook.judge_round(decide_on_resize, view)
        if isinstance(action, NewRound):
            worth = _is_growth_worth_restart(round_.state, len(action.nodes), duration)
            if worth and not self._wanted.asked:
                self._wanted.ask_for_resize()
            return
        missing = count_replicas_to_order(size, held // whole, self._count_awaited_replicas() + self._refused)
        ready, after = missing > 0 and view.ran >= _SETTLED, (held // whole + missing) * whole
        if ready and _is_growth_worth_restart(round_.state, after, duration):
            await self._submit_satellite(missing, len(self._list_partial_replica_nodes(view)))

    def _count_awaited_replicas(self) -> int:
        """Return how many replicas are to be completed by nodes that have yet to come."""
        arrivals = self.agents.arrivals
        orders = self._ordered.items()
        return sum(replicas for job, (replicas, nodes) in orders if arrivals[job] < nodes)

    async def _submit_satellite(self, replicas: int, idle: int) -> None:
        allocation = self.outlook.assignment.allocation
        regrow = None if allocation is None else allocation.regrow
        if regrow is None:
            return
        lost = format_count(replicas, "lost replica")
        submitted = await run_in_thread(lambda: regrow(replicas, idle))
        if submitted is None:
            self._refused += replicas
            words = f"no satellite job could be submitted to bring {lost} back"
        else:
            job, nodes = submitted
            self._ordered[job] = (replicas, nodes)
            self._wanted.unasked.add(job)
            words = f"satellite job {job} was submitted to bring {lost} back"
        self.journal.record_warning(words)


def _is_growth_worth_restart(state: RoundState, nodes: int, save: timedelta) -> bool:
    """Return whether a round grows to this many nodes without being asked; a save takes so long."""
    left = state.remaining_time
    return left is not None and is_growth_worthwhile(len(state.members), nodes, left, state.start_up + save)
