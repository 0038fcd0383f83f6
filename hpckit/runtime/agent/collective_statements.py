"""What the ranks of a node say of their collectives: those that live are asked, others left a file.

Bounded in time: a rank that does not answer is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterable
from typing import Any

from hpckit.model.diagnosis.collectives import RankCollectives
from hpckit.model.plain import from_plain, to_plain
from hpckit.planning.recovery.flight_recorder import DumpedBy, read_dumps
from hpckit.record.layout import RoundPaths
from hpckit.record.store import read_json, write_json
from hpckit.runtime.agent.trace_files import TraceFileError, read_trace
from hpckit.runtime.channel.rank_pipe import MOST_BYTES, READY
from hpckit.runtime.threads import aside
from hpckit.values import dataclass, field, replace

WAIT_S = 2.5
"""For all ranks together, which are asked at once; a dump takes about 0.1 s."""


@dataclass(slots=True, kw_only=True)
class CollectiveStatements:
    """The lines to the ranks of one node in one round, by rank."""

    paths: RoundPaths
    node: str
    _lines: dict[int, socket.socket] = field(default_factory=dict, init=False)
    _ready: set[int] = field(default_factory=set, init=False)
    _asked: int = field(default=0, init=False)

    def open(self, rank: int) -> socket.socket:
        """Return the rank's end of a new line; the caller closes it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003  # the socket's own signature
        self._lines[rank] = ours
        return theirs

    def close(self, rank: int) -> None:
        """Forget the line to a rank that has ended."""
        line = self._lines.pop(rank, None)
        if line is not None:
            line.close()

    async def ask(self, ranks: Iterable[int], wait_s: float = WAIT_S) -> list[RankCollectives]:
        """Return what these ranks say, and write it into the round's folder."""
        self._asked += 1
        asked = [rank for rank in ranks if rank in self._lines]
        answers = await asyncio.gather(*(self._answer(rank, wait_s) for rank in asked))
        found = [answer for answer in answers if answer is not None]
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(wait_s):
                await aside(lambda: self._keep(found))
        return found

    def left_by(self, rank: int) -> RankCollectives | None:
        """Return what an ended rank left in a file, its own or NCCL's; None if there is nothing."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return self._here(rank, read_json(self.paths.collectives(rank)))
        file = self.paths.nccl_trace(rank)
        try:
            by = DumpedBy(rank=rank, node=self.node, at_s=file.stat().st_mtime)
            found = read_dumps([read_trace(file)], by)
        except (OSError, TraceFileError):
            return None
        if found is not None:
            self._keep([found])
        return found

    def _keep(self, found: Iterable[RankCollectives]) -> None:
        for statement in found:
            with contextlib.suppress(OSError):
                write_json(self.paths.collectives(statement.rank), to_plain(statement))

    async def _answer(self, rank: int, wait_s: float) -> RankCollectives | None:
        line, number = self._lines[rank], str(self._asked)
        try:
            heard = self._heard(line)
            if rank not in self._ready and READY not in heard:
                return None
            self._ready.add(rank)
            line.send(number.encode() + b"\n")
            async with asyncio.timeout(wait_s):
                text = await self._line(line, number)
            return self._here(rank, json.loads(text)["collectives"])
        except (OSError, TimeoutError, ValueError, TypeError, KeyError):
            return None

    def _here(self, rank: int, said: Any) -> RankCollectives:
        """Return a statement as that of this rank on this node; raises ValueError, TypeError."""
        return replace(from_plain(RankCollectives, said), rank=rank, node=self.node)

    @staticmethod
    def _heard(line: socket.socket) -> bytes:
        """Return what has come: that the rank listens, or an answer that came too late."""
        heard = b""
        with contextlib.suppress(BlockingIOError):
            while len(heard) < MOST_BYTES and (more := line.recv(65536)):
                heard += more
        return heard

    @staticmethod
    async def _line(line: socket.socket, number: str) -> bytes:
        """Return the answer to this question; raises ValueError if the rank hangs up."""
        rest = b""
        loop = asyncio.get_running_loop()
        while len(rest) < MOST_BYTES:
            more = await loop.sock_recv(line, 65536)
            if not more:
                break
            *whole, rest = (rest + more).split(b"\n")
            for text in whole:
                if json.loads(text).get("question") == [number]:
                    return text
        raise ValueError("no answer")
