"""One round: all ranks started, watched to their end, and what it came to.

Responsible for one start of all ranks; it must not decide what follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from hpckit.model import events
from hpckit.model.failure import Cause, Failure, RankExit
from hpckit.planning.decide import RoundView
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import write_json
from hpckit.runtime import messages
from hpckit.runtime.agents import Agents, Lost

_NOTICE_WAIT_S = 1.0
"""A rank that died of a signal may have died of a notice that we have not heard yet."""
_PROGRESS_S = 1.0
"""progress.json is replaced at most this often: it is for people, on a shared file system."""
_GRACE_OF_PEERS_S = 2.0
_PATIENCE_S = 5.0
"""Beyond the grace period, for agents to report the ends of their ranks."""


@dataclass(slots=True)
class Round:
    """One start of all ranks."""

    number: int
    agents: Agents
    paths: AttemptPaths
    noticed: asyncio.Event
    record: Callable[[events.Event], None]
    _exits: dict[int, RankExit] = field(default_factory=dict, init=False)
    _lost: set[int] = field(default_factory=set, init=False)
    _cut_short: bool = field(default=False, init=False)
    _step: int | None = field(default=None, init=False)
    _progress_at: float = field(default=0.0, init=False)

    async def run(self) -> RoundView:
        """Start all ranks and return when none is left."""
        if not await self._start():
            return self._view()
        await self._watch()
        if self.noticed.is_set() and self._step is not None:
            await self._let_leave()
        if not self._done() or self._troubled():
            await self._stop()
        if any(exit_.signal for exit_ in self._exits.values()) and not self.noticed.is_set():
            await self._wait_for_notice()
        self._tell_progress(force=True)
        return self._view()

    def _view(self) -> RoundView:
        return RoundView(
            round=self.number,
            exits=tuple(self._exits[rank] for rank in sorted(self._exits)),
            cut_short=self._cut_short,
            failure=self._loss(),
        )

    @property
    def _tasks_per_node(self) -> int:
        return self.agents.settings.resources.tasks_per_node

    @property
    def _world_size(self) -> int:
        return self._tasks_per_node * len(self.agents.peers)

    async def _start(self) -> bool:
        """Have every agent start its ranks; false where the first one does not answer."""
        await self.agents.send(0, messages.ReservePort())
        port = await self._reserved_port()
        if port is None:
            return False
        peers = [self.agents.peers[rank] for rank in sorted(self.agents.peers)]
        self.record(
            events.RoundStarted(
                at=_now(),
                round=self.number,
                world_size=self._world_size,
                nodes=tuple(peer.node for peer in peers),
            )
        )
        for place, peer in enumerate(peers):
            order = messages.StartRound(
                round=self.number,
                first_rank=place * self._tasks_per_node,
                local_world_size=self._tasks_per_node,
                world_size=self._world_size,
                num_nodes=len(peers),
                master_addr=self.agents.master_host(),
                master_port=port,
            )
            await self.agents.send(peer.node_rank, order)
        return True

    async def _reserved_port(self) -> int | None:
        """Return the port reserved on rank 0's node; None at a notice, or when it is lost."""
        deadline = time.monotonic() + self.agents.settings.runtime.agent_timeout_s
        stopped = asyncio.ensure_future(self.noticed.wait())
        try:
            while 0 not in self._lost and not stopped.done() and time.monotonic() < deadline:
                message = await self._hear(stopped, deadline - time.monotonic())
                if isinstance(message, messages.PortReserved):
                    return message.port
        finally:
            stopped.cancel()
        return None

    async def _watch(self) -> None:
        """Follow the agents until all ranks ended, one failed, or a notice came."""
        stopped = asyncio.ensure_future(self.noticed.wait())
        try:
            while not self._done() and not self._troubled() and not stopped.done():
                await self._hear(stopped, None)
        finally:
            stopped.cancel()

    async def _hear(
        self, stopped: asyncio.Future[Literal[True]] | None, limit_s: float | None
    ) -> messages.Message | None:
        """Take in one message and return it; None at a notice or after the limit."""
        incoming = asyncio.ensure_future(self.agents.inbox.get())
        waiting: set[asyncio.Future[Any]] = {incoming} if stopped is None else {incoming, stopped}
        await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not incoming.done():
            incoming.cancel()
            return None
        sender, message = incoming.result()
        await self._take(sender, message)
        return message

    async def _take(self, sender: int, message: messages.Message) -> None:
        match message:
            case messages.StoreBound():
                host = self.agents.master_host()
                await self.agents.broadcast(messages.StoreAddress(host=host, port=message.port))
            case messages.StepBegun():
                self._advance(message.step)
            case messages.RankEnded() if message.round == self.number:
                self._exits[message.exit.rank] = message.exit
                self._cut_short = self._cut_short or self.noticed.is_set()
                self.record(events.RankExited(at=_now(), round=message.round, exit=message.exit))
            case Lost():
                self._lost.add(sender)
            case _:
                pass

    def _advance(self, step: int) -> None:
        if self._step is None:
            self.record(events.StepReached(at=_now(), round=self.number, step=step))
        self._step = step if self._step is None else max(step, self._step)
        self._tell_progress(force=False)

    def _tell_progress(self, *, force: bool) -> None:
        now = time.monotonic()
        if self._step is None or (not force and now - self._progress_at < _PROGRESS_S):
            return
        self._progress_at = now
        at = _now().isoformat(timespec="milliseconds")
        with contextlib.suppress(OSError):  # a courtesy; a full disk must not end training
            write_json(self.paths.progress, {"round": self.number, "step": self._step, "at": at})

    def _done(self) -> bool:
        return len(self._exits) == self._world_size

    def _troubled(self) -> bool:
        return bool(self._lost) or any(exit_.failed for exit_ in self._exits.values())

    async def _let_leave(self) -> None:
        """Pass the notice on, and give ranks that run a step loop the time to act on it."""
        await self.agents.broadcast(messages.Notice())
        deadline = time.monotonic() + self.agents.settings.runtime.notice_grace_s
        while not self._accounted() and not self._troubled():
            if (left := deadline - time.monotonic()) <= 0:
                return
            await self._hear(None, left)

    async def _stop(self) -> None:
        """End what is left and take in every exit record that still comes."""
        grace_s = self.agents.settings.runtime.stop_grace_s
        if self._troubled():
            # The peers of a failed rank wait in a collective: nothing is gained by patience.
            grace_s = min(grace_s, _GRACE_OF_PEERS_S)
        await self.agents.broadcast(messages.StopRound(grace_s=grace_s))
        deadline = time.monotonic() + grace_s + _PATIENCE_S
        while not self._accounted() and (left := deadline - time.monotonic()) > 0:
            await self._hear(None, left)

    def _accounted(self) -> bool:
        """Whether every rank has ended, or its node is lost."""
        gone = len(self._lost) * self._tasks_per_node
        return len(self._exits) + gone >= self._world_size

    async def _wait_for_notice(self) -> None:
        stopped = asyncio.ensure_future(self.noticed.wait())
        await asyncio.wait({stopped}, timeout=_NOTICE_WAIT_S)
        stopped.cancel()

    def _loss(self) -> Failure | None:
        """Name the nodes of the ranks that nothing was heard of, if there are any."""
        silent = [rank for rank in range(self._world_size) if rank not in self._exits]
        if not silent:
            return None
        order = sorted(self.agents.peers)
        places = sorted({order[rank // self._tasks_per_node] for rank in silent})
        nodes = ", ".join(self.agents.peers[place].node for place in places)
        words = "lost the agent of" if self._lost else "no exit record came from"
        names = ", ".join(map(str, silent))
        return Failure(cause=Cause.node_lost, message=f"{words} {nodes} (rank {names})", node=nodes)


def _now() -> datetime:
    return datetime.now(UTC)
