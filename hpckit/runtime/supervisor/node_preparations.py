"""Has agents prepare their nodes before ranks start there, and bring results out at the end.

What that is, a feature knows (`hpckit.run_features`); which node is too slow, planning.recovery.
Without such a feature nothing is sent, and nothing is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from hpckit.model import events, messages
from hpckit.model.counted import format_short_list
from hpckit.model.failure import Cause, Failure
from hpckit.planning.recovery.loss import SLOW_FACTOR, build_preparation_failure, find_slow_nodes
from hpckit.record.launches import load_run_settings
from hpckit.run_features import find_run_hooks
from hpckit.runtime.assignment import Assignment
from hpckit.runtime.channel.pace import BEAT_S
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor.agent_step import AgentSteps
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.callers import Peer
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.node_inspections import find_address_for_other_nodes
from hpckit.runtime.supervisor.notices import Notices
from hpckit.values import dataclass, field, field_names

_RESTARTS = 3
"""How often agents that end while they prepare their nodes are started again, for one round."""

Chooser = Callable[[int, Sequence[int]], tuple[tuple[int, ...], ...]]
"""Of a number of nodes, and the places of those that are ready: the providers of each, as places."""


@dataclass(slots=True)
class NodePreparations:
    """The preparations of an attempt."""

    assignment: Assignment
    agents: Agents
    steps: AgentSteps
    notices: Notices
    journal: Journal
    _choose: Chooser | None = field(init=False)
    """None for a run that needs none."""
    _asked: dict[str, Peer] = field(default_factory=dict, init=False)
    _providers: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    _ready: dict[str, float] = field(default_factory=dict, init=False)
    _problems: dict[str, tuple[Cause, str]] = field(default_factory=dict, init=False)
    _out: set[str] = field(default_factory=set, init=False)
    _out_s: dict[str, float] = field(default_factory=dict, init=False)
    _noticed_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        launch = self.assignment.launch
        settings, config = load_run_settings(launch, self.assignment.index)
        hooks = find_run_hooks(settings, config, "choose_providers")
        self._choose = partial(hooks[0], launch, config) if hooks else None

    async def prepare_nodes(self, nodes: Sequence[str]) -> Failure | None:
        """Return when ranks can start on these nodes, or what keeps them from it; None at a notice.

        The others that stand, such as spares, are prepared beside. An agent that has ended is started
        again, as after a round, and finds on its node what it had.
        """
        noticed = self.notices.noticed
        if self._choose is None:
            return None
        for _ in range(_RESTARTS):
            failure = await self._prepare_standing_nodes(nodes)
            if failure is not None or noticed.is_set() or not {*nodes} & self.agents.left.keys():
                return failure
            await self.steps.restart_departed_agents(self.agents, noticed)
        return None

    async def _prepare_standing_nodes(self, nodes: Sequence[str]) -> Failure | None:
        began, noticed = time.monotonic(), self.notices.noticed
        await self._ask_new_agents(again={*self._problems})
        while not noticed.is_set():
            await self._ask_new_agents(again=set())
            there = {peer.node: peer for peer in self.agents.standing_peers}
            waiting = [node for node in nodes if node in there and not self._is_settled(node, there[node])]
            if not waiting:
                problems = {node: self._problems[node] for node in nodes if node in self._problems}
                return build_preparation_failure(problems, len(nodes))
            await self._stop_slow_nodes(time.monotonic() - began, waiting)
            await self.agents.receive_message(BEAT_S, noticed)
        return None

    def _is_settled(self, node: str, peer: Peer) -> bool:
        """Whether nothing more is expected of a node; an agent that is new there begins anew."""
        return self._asked.get(node) is peer and (node in self._ready or node in self._problems)

    async def _ask_new_agents(self, again: set[str]) -> None:
        """Ask all agents that were not asked yet, or that could not do it before."""
        peers = self.agents.standing_peers
        places = {peer.node: place for place, peer in enumerate(peers)}
        new = [peer for peer in peers if self._asked.get(peer.node) is not peer or peer.node in again]
        for peer in new:
            self._ready.pop(peer.node, None)
            self._problems.pop(peer.node, None)
        if not new or self._choose is None:
            return
        ready = [places[node] for node in self._ready if node in places]
        chosen = self._choose(len(peers), ready)
        for peer in new:
            givers = [peers[place] for place in chosen[places[peer.node]] if peers[place].port]
            addresses = tuple(
                f"{find_address_for_other_nodes(one, peers) or one.node}:{one.port}" for one in givers
            )
            self._asked[peer.node] = peer
            self._providers[peer.node] = tuple(one.node for one in givers)
            await self.agents.send_message(peer.node_rank, messages.Prepare(providers=addresses))

    async def _stop_slow_nodes(self, waited_s: float, waiting: Sequence[str]) -> None:
        done = list(self._ready.values())
        for node in find_slow_nodes(waited_s, done, {node: self._providers[node] for node in waiting}):
            words = (
                f"its data took {waited_s:.0f} s, more than {SLOW_FACTOR} times as long as that of the others"
            )
            self._problems[node] = (Cause.straggler, words)
            await self.agents.send_message(self._asked[node].node_rank, messages.Prepare(stop=True))

    def take_message(self, peer: Peer, message: messages.Prepared | messages.StagedOut) -> None:
        """Take in what an agent tells of its node, at any time."""
        if isinstance(message, messages.StagedOut):
            self._take_results(peer, message)
            return
        for staged in message.staged:
            values: dict[str, Any] = {name: getattr(staged, name) for name in field_names(staged)}
            self.journal.record_event(events.Staged(at=now(), **values))
        if message.cause is not None:
            self._problems[peer.node] = (message.cause, message.problem)
        elif message.complete and peer.node not in self._problems:
            self._ready[peer.node] = sum(staged.seconds for staged in message.staged)
        # Whoever waits for a message looks again.
        self.agents.inbox.put_nowait((peer.node_rank, messages.Beat()))

    def _take_results(self, peer: Peer, message: messages.StagedOut) -> None:
        if message.last:
            self._out.add(peer.node)
            self.agents.inbox.put_nowait((peer.node_rank, messages.Beat()))
            return
        self._out_s[peer.node] = message.seconds
        self.notices.deadline.results = timedelta(seconds=max(self._out_s.values()))
        self.journal.record_event(
            events.StagedOut(
                at=now(), node=peer.node, name=message.name, bytes=message.bytes, seconds=message.seconds
            )
        )

    async def bring_out_at_notice(self) -> None:
        """Have results brought out at a notice, while ranks save and leave."""
        if self._choose is not None:
            await self.notices.noticed.wait()
            self._noticed_at = time.monotonic()
            await self.agents.broadcast_message(messages.BringOut())

    async def bring_results_out(self) -> None:
        """Have all nodes bring out what is left, and wait for it as long as there is time."""
        if self._choose is None:
            return
        await self.agents.broadcast_message(messages.BringOut(final=True))
        since_s = None if self._noticed_at is None else time.monotonic() - self._noticed_at
        limit_s = self.notices.deadline.seconds_for_results(since_s)
        until = time.monotonic() + limit_s
        while (left_s := until - time.monotonic()) > 0:
            if not (waiting := {peer.node for peer in self.agents.standing_peers} - self._out):
                return
            await self.agents.receive_message(min(left_s, BEAT_S))
        words = f"results were not all brought out within {limit_s:.0f} s: the rest stays on the disk of "
        self.journal.record_warning(words + format_short_list(sorted(waiting), 3))
