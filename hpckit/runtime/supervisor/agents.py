"""The supervisor's side of its agents in one attempt: which have come, their messages, which are lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from hpckit.errors import ChannelError
from hpckit.model import events, messages
from hpckit.model.failure import SHELL_SIGNAL, Cause, Failure
from hpckit.model.launch import LaunchConfig
from hpckit.planning.recovery.loss import build_missing_agents_failure, build_preparation_failure
from hpckit.planning.rounds.round_turns import AgentLost
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import write_text_atomically
from hpckit.runtime.assignment import Step
from hpckit.runtime.channel import tcp
from hpckit.runtime.channel.listen import LOOPBACK, open_listening_socket
from hpckit.runtime.channel.pace import BEAT_S, PATIENCE, are_many_nodes_delayed, message_interval_s
from hpckit.runtime.clock import now
from hpckit.runtime.descriptors import open_file_limit
from hpckit.runtime.signals import NOTICES
from hpckit.runtime.supervisor.callers import SPARE_FILES, AgentListener, Peer
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.patience import retry_transient_file_errors
from hpckit.runtime.threads import await_with_limit, run_in_thread, start_task_fatal_on_error
from hpckit.values import dataclass, field, replace

_NOTICE_S = 2.0
_REFUSALS_S = 30.0
"""How long other nodes may take to come or to refuse once one has refused: it shows whose fault it is."""
_LEFT_S = 3 * BEAT_S
"""An agent whose connection ends this soon after a sign of life has left: a lost node is silent."""

_HEARD_AT_ONCE = (messages.Noticed, messages.Paused, messages.Prepared, messages.StagedOut, messages.Warn)


@dataclass(slots=True)
class Agents:
    """All agents of an attempt that are there. `inbox` holds their messages, with their rank.

    `left` are the ranks, by node, of agents that are gone although their nodes were still sending messages.
    If agents left because they received nothing from this process, `given_up_s` is how long that lasted.
    `hear` gets at once, with the agent, what does not wait in the inbox: Hello, and _HEARD_AT_ONCE.
    """

    settings: LaunchConfig
    secret: str
    journal: Journal
    hear: Callable[[Peer, messages.Message], None]
    peers: dict[int, Peer] = field(default_factory=dict, init=False)
    inbox: asyncio.Queue[tuple[int, messages.Message]] = field(default_factory=asyncio.Queue, init=False)
    left: dict[str, int] = field(default_factory=dict, init=False)
    given_up_s: float = field(default=0.0, init=False)
    arrivals: Counter[str] = field(default_factory=Counter, init=False)
    """How many nodes each satellite job has brought, by its id; those that left again, too."""
    _accepting: asyncio.Task[None] | None = field(default=None, init=False)
    _beating: asyncio.Task[None] | None = field(default=None, init=False)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _refused: Failure | None = field(default=None, init=False)
    _problems: dict[str, tuple[Cause, str]] = field(default_factory=dict, init=False)
    """Of nodes where no agent can start."""
    _closing: bool = field(default=False, init=False)
    _names: dict[int, str] = field(default_factory=dict, init=False)
    _satellites: int = field(default=0, init=False)

    async def start_listening(self, paths: AttemptPaths, hosts: list[str]) -> None:
        """Bind first, then publish the address."""
        bound = open_listening_socket(hosts[0] if hosts == [LOOPBACK] else "")
        callers = AgentListener(bound=bound, secret=self.secret, attend=self._admit_connected_agent)
        port = int(bound.getsockname()[1])
        record = tcp.format_supervisor_address(hosts, port)
        self._accepting = start_task_fatal_on_error(callers.accept_callers())
        await run_in_thread(
            lambda: retry_transient_file_errors(lambda: write_text_atomically(paths.address, record))
        )
        self._beating = start_task_fatal_on_error(self._run_heartbeat_loop())

    async def _admit_connected_agent(self, channel: tcp.Channel) -> None:
        try:
            hello = await channel.receive()
        except (ChannelError, OSError):
            hello = None
        found = hello.container if isinstance(hello, messages.Hello) else None
        if isinstance(hello, messages.Hello) and found is not None:
            self.journal.record_container_check(hello.node, found)
        if isinstance(hello, messages.Refused):
            self._take_refusal(hello)
        elif isinstance(hello, messages.Hello) and hello.satellite is not None:
            await self._admit_satellite(channel, hello)
        elif isinstance(hello, messages.Hello) and hello.node in self.left:
            # Its new step numbers its nodes from 0 again, but it takes its former place.
            hello = replace(hello, node_rank=self.left.pop(hello.node))
            await self._read_agent_until_gone(channel, hello)
        elif isinstance(hello, messages.Hello) and hello.node_rank not in self._names:
            await self._read_agent_until_gone(channel, hello)
        elif isinstance(hello, messages.Hello):
            first = self._names[hello.node_rank]
            words = f"node rank {hello.node_rank} came twice: {first} and {hello.node}"
            self._refused = Failure(cause=Cause.agents_missing, message=words)
            self._arrived.set()
        await channel.close()

    def _take_refusal(self, refusal: messages.Refused) -> None:
        """Note that no agent can start on a node: what awaits it ends; a satellite's adds a warning."""
        if refusal.satellite is not None:
            self.journal.record_warning(f"{refusal.node}: {refusal.problem}")
            return
        self._problems[refusal.node] = (refusal.cause, refusal.problem)
        self._arrived.set()

    async def _admit_satellite(self, channel: tcp.Channel, hello: messages.Hello) -> None:
        """Take a node of another job in, behind all nodes of the run's own."""
        if any(peer.node == hello.node for peer in self.peers.values()) or hello.node in self.left:
            words = f"the run has {hello.node} already: satellite job {hello.satellite} cannot add "
            self.journal.record_event(events.Warned(at=now(), message=words + "ranks there, and was let go"))
            with contextlib.suppress(OSError):
                await channel.send(messages.Shutdown())
            return
        resources = self.settings.resources
        self._satellites += 1
        rank = resources.nodes + resources.spare_nodes - 1 + self._satellites
        await self._read_agent_until_gone(channel, replace(hello, node_rank=rank))

    async def _read_agent_until_gone(self, channel: tcp.Channel, hello: messages.Hello) -> None:
        rank = hello.node_rank
        peer = Peer(
            node=hello.node,
            node_rank=rank,
            channel=channel,
            heard_at=_loop_time(),
            switches=hello.switches,
            satellite=hello.satellite,
            port=hello.port,
        )
        self.peers[rank], self._names[rank] = peer, hello.node
        self._arrived.set()
        try:
            self.journal.record_event(
                events.AgentJoined(
                    at=now(),
                    node=hello.node,
                    node_rank=rank,
                    pid=hello.pid,
                    switches=hello.switches,
                    satellite=hello.satellite,
                )
            )
            if peer.satellite is not None:
                self.arrivals[peer.satellite] += 1
            self.hear(peer, hello)
            while (message := await channel.receive()) is not None:
                peer.heard_at = _loop_time()
                if isinstance(message, _HEARD_AT_ONCE):
                    self.hear(peer, message)
                elif isinstance(message, messages.SupervisorSilent):
                    self.given_up_s = max(self.given_up_s, message.silent_s)
                elif not isinstance(message, messages.Beat):
                    self.inbox.put_nowait((rank, message))
        except ChannelError:
            pass  # forged or broken: as good as gone
        finally:
            self._record_gone_agent(rank)

    def dismiss_satellite(self, satellite: str, reason: str) -> None:
        """Count the nodes of a satellite job as leaving: they take part in no further round."""
        for peer in self.list_satellite_peers(satellite):
            peer.leaving = peer.leaving or reason

    def list_satellite_peers(self, satellite: str) -> tuple[Peer, ...]:
        """Return the agents of a satellite job that are there."""
        return tuple(peer for peer in self.peers.values() if peer.satellite == satellite)

    def _record_gone_agent(self, rank: int) -> None:
        peer = self.peers.pop(rank, None)
        if peer is None or self._closing:
            return
        silent_s = round(_loop_time() - peer.heard_at, 3)
        if peer.satellite is not None and peer.leaving:
            self.journal.record_event(
                events.SatelliteLeft(at=now(), node=peer.node, satellite=peer.satellite, reason=peer.leaving)
            )
        elif peer.satellite is None and (self.given_up_s or silent_s < _LEFT_S):
            self.left[peer.node] = rank
        else:
            self.journal.record_event(events.NodeLost(at=now(), node=peer.node, silent_s=silent_s))
        self.inbox.put_nowait((rank, AgentLost(node_rank=rank, silent_s=silent_s)))
        peer.channel.abort()

    async def await_returning_agents(self, step: Step, noticed: asyncio.Event, limit_s: float) -> None:
        """Wait for the agents of a step that take the places of those that have left.

        Return when all are there, the step ends, a notice comes, or the time is over.
        """
        await self._await_arrivals(step, noticed, limit_s, lambda: not self.left or bool(self._problems))
        for node, (_, problem) in self._problems.items():
            self.journal.record_warning(f"{node}: {problem}")
        self._problems.clear()
        # The last messages of those that are gone belong to a round that is over.
        while not self.inbox.empty():
            self.inbox.get_nowait()

    async def _await_arrivals(
        self, step: Step, noticed: asyncio.Event, limit_s: float, enough: Callable[[], bool]
    ) -> int | None:
        """Wait until `enough` have come, the step ends, a notice comes, or the time is over.

        Return the step's exit code if it has ended.
        """
        deadline = _loop_time() + limit_s
        ended, stopped = asyncio.ensure_future(step.wait()), asyncio.ensure_future(noticed.wait())
        try:
            while not enough() and (left_s := deadline - _loop_time()) > 0:
                if ended.done() or stopped.done():
                    break
                self._arrived.clear()
                arrival = asyncio.ensure_future(self._arrived.wait())
                await asyncio.wait(
                    {arrival, ended, stopped}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                arrival.cancel()
            return ended.result() if ended.done() else None
        finally:
            ended.cancel()
            stopped.cancel()

    def give_up_departed_agents(self, *, blamed: bool) -> None:
        """Stop expecting agents that left; if their nodes are `blamed`, they count as lost."""
        for node in self.left:
            if blamed and not self.given_up_s:
                self.journal.record_event(events.NodeLost(at=now(), node=node, silent_s=0.0))
        self.left.clear()
        self.given_up_s = 0.0

    async def _run_heartbeat_loop(self) -> None:
        """Send signs of life, and detect missing ones.

        If this process itself was held up (a file system that does not answer), it cannot distinguish the
        silence of the others from its own, so all of them get their full time again.
        """
        before = _loop_time()
        while True:
            await asyncio.sleep(BEAT_S)
            at, held_up = _loop_time(), _loop_time() - before > 2 * BEAT_S
            before = at
            if held_up:
                for peer in self.peers.values():
                    peer.heard_at = at
            self._drop_silent_agents(at)
            self._send_due_heartbeats(at)

    def _drop_silent_agents(self, at: float) -> None:
        """Count agents that are silent for too long as lost.

        Many that fall silent together, while their kernels still accept data, are held up: they get
        as much time as they give a supervisor.
        """
        limit_s = self.settings.runtime.node_timeout_s
        patient = are_many_nodes_delayed([at - peer.heard_at for peer in self.peers.values()], limit_s)
        for peer in list(self.peers.values()):
            quiet_s, channel = at - peer.heard_at, peer.channel
            if quiet_s <= limit_s or channel.has_unread_data():
                continue
            if not patient or quiet_s > PATIENCE * limit_s or not channel.is_all_acknowledged():
                self._record_gone_agent(peer.node_rank)

    def _send_due_heartbeats(self, at: float) -> None:
        """Send signs of life to agents that are due.

        They wait longer for one than they may be silent themselves.
        """
        beat = messages.encode_message(messages.Beat())
        pace = message_interval_s(len(self.peers), PATIENCE * self.settings.runtime.node_timeout_s)
        for peer in self.peers.values():
            if at - peer.told_at > pace - BEAT_S / 2:
                peer.told_at = at
                peer.channel.send_encoded_without_waiting(beat)

    async def await_all_agents(
        self, wanted: int, step: Step, noticed: asyncio.Event, *, names: tuple[str, ...]
    ) -> Failure | None:
        """Wait until all agents have come; return the failure that names the missing ones."""
        if wanted > open_file_limit() - SPARE_FILES:
            return _fail_for_too_many_nodes(wanted)
        limit_s = self.settings.runtime.agent_timeout_s

        def own_nodes() -> list[str]:
            return [peer.node for peer in self.peers.values() if peer.satellite is None]

        def is_settled() -> bool:
            return len(own_nodes()) >= wanted or self._refused is not None or bool(self._problems)

        code = await self._await_arrivals(step, noticed, limit_s, is_settled)
        if self._problems:
            await self._await_arrivals(
                step, noticed, _REFUSALS_S, lambda: len({*own_nodes(), *self._problems}) >= wanted
            )
            return build_preparation_failure(self._problems, wanted)
        if self._refused is not None:
            return self._refused
        if len(own_nodes()) >= wanted:
            return None
        if code is not None and code - SHELL_SIGNAL in NOTICES:
            # A notice may end a step that unpacks an image, before the batch script hears it.
            await await_with_limit(_NOTICE_S, noticed.wait())
        told = noticed.is_set()
        if told:
            why = "asked to stop before all agents had come"
        elif code is not None:
            why = f"the agents ended with exit code {code} before all had come"
        else:
            why = f"waited {limit_s:g} s for the agents"
        return build_missing_agents_failure(names, {*own_nodes()}, wanted=wanted, why=why, told=told)

    @property
    def standing_peers(self) -> tuple[Peer, ...]:
        """The agents that are there now and stay, in the allocation's order, satellites last."""
        there = (self.peers[rank] for rank in sorted(self.peers))
        return tuple(peer for peer in there if not peer.leaving)

    @property
    def standing_nodes(self) -> tuple[str, ...]:
        """The nodes of these agents."""
        return tuple(peer.node for peer in self.standing_peers)

    @property
    def satellite_nodes(self) -> tuple[str, ...]:
        """The nodes of satellites, to be asked about with those of the run's own job."""
        return tuple(peer.node for peer in self.peers.values() if peer.satellite is not None)

    async def broadcast_message(self, message: messages.Message) -> None:
        """Send to every agent without waiting; each connection's reader notices a lost agent."""
        body = messages.encode_message(message)
        for peer in list(self.peers.values()):
            with contextlib.suppress(OSError):
                peer.channel.send_encoded_without_waiting(body)

    async def send_message(self, node_rank: int, message: messages.Message) -> None:
        """Send to one agent; do nothing if it is gone."""
        peer = self.peers.get(node_rank)
        if peer is not None:
            with contextlib.suppress(ConnectionError, OSError):
                await peer.channel.send(message)

    async def receive_message(
        self, limit_s: float | None, noticed: asyncio.Event | None = None
    ) -> tuple[int, messages.Message] | None:
        """Return a message with its agent's rank; None at a notice, or when the time is over."""
        if not self.inbox.empty():
            # Thousands may wait here, but beats and the readers of connections also need their
            # turn.
            await asyncio.sleep(0)
            return self.inbox.get_nowait()
        incoming = asyncio.ensure_future(self.inbox.get())
        waiting: set[asyncio.Future[Any]] = {incoming}
        if noticed is not None:
            waiting.add(asyncio.ensure_future(noticed.wait()))
        try:
            await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            return incoming.result() if incoming.done() else None
        finally:
            for future in waiting:
                future.cancel()

    async def receive_until_stop_signal(
        self, limit_s: float, noticed: asyncio.Event
    ) -> AsyncIterator[tuple[int, messages.Message]]:
        """Yield messages with their agents' ranks, until a notice, or until the time is over."""
        deadline = _loop_time() + limit_s
        while not noticed.is_set() and (left_s := deadline - _loop_time()) > 0:
            if (came := await self.receive_message(left_s, noticed)) is not None:
                yield came

    async def shut_agents_down(self, leave_s: float, *, final: bool) -> None:
        """Ask all agents to leave and stop listening; `final`: the run will not come back."""
        self._closing = True
        for task in filter(None, (self._accepting, self._beating)):
            task.cancel()
        await self.broadcast_message(messages.Shutdown(final=final))
        leaving = [asyncio.ensure_future(peer.channel.close()) for peer in self.peers.values()]
        if leaving:
            await asyncio.wait(leaving, timeout=leave_s)


def _fail_for_too_many_nodes(nodes: int) -> Failure:
    return Failure(
        cause=Cause.agents_missing,
        message=f"the supervisor of {nodes} nodes needs {nodes + SPARE_FILES} open files and may "
        f"have {open_file_limit()}: have the hard limit raised (`ulimit -Hn`; for jobs LimitNOFILE "
        "of slurmd)",
        signature=Cause.agents_missing,
    )


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
