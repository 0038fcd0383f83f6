"""What the ranks of a node say of their collectives: those that live are asked, others left a file.

Bounded in time: a rank that does not answer is left out. What torch's flight recorder left in a
file at a time-out of NCCL is a pickle. That is a program, and reading one with the pickle module
runs it. Here its words are read one by one, and only those are followed that build dicts, lists,
tuples, texts, numbers and truths. Nothing else is even looked up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickletools
import socket
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hpckit.model.diagnosis.collectives import RankCollectives
from hpckit.model.plain import from_plain, to_plain
from hpckit.planning.recovery.flight_recorder import DumpedBy, parse_flight_dumps
from hpckit.record.layout import RoundPaths
from hpckit.record.store import read_json, write_json
from hpckit.runtime.channel.rank_pipe import MOST_BYTES, READY
from hpckit.runtime.threads import run_in_thread
from hpckit.values import dataclass, field, replace

MOST_TRACE_BYTES = 16 * 1024 * 1024
"""A dump of 2000 collectives has 0.3 to 4 MB."""
MOST_WORDS = 2_000_000
"""About three seconds of reading."""
_WRITABLE_BY_OTHERS = 0o022


class TraceFileError(ValueError):
    """A file that is no dump of the flight recorder, or not one of our own ranks."""


def read_flight_recorder_dump(path: Path) -> Any:
    """Return the content of a dump; raises OSError and TraceFileError.

    The file and its folder must belong to this user, and nobody else may write them.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise TraceFileError(f"{path} is not a file")
        for status in (about, path.parent.stat()):
            if status.st_uid != os.geteuid() or status.st_mode & _WRITABLE_BY_OTHERS:
                raise TraceFileError(f"others can write {path}")
        data = file.read(MOST_TRACE_BYTES + 1)
    if len(data) > MOST_TRACE_BYTES:
        raise TraceFileError(f"{path} is larger than {MOST_TRACE_BYTES} bytes")
    return parse_plain_pickle(data)


def parse_plain_pickle(data: bytes) -> Any:
    """Return the plain value that a pickle holds; raises TraceFileError for any other pickle."""
    reader = _Reader()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MOST_WORDS:
                raise TraceFileError("the pickle is too long")
            if opcode.name == "STOP":
                return reader.stack.pop()
            reader.apply_pickle_opcode(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise TraceFileError(f"no plain pickle: {error}") from None
    raise TraceFileError("the pickle has no end")


class _Mark:
    """Where a list of items begins on the stack."""


class _Reader:
    """The state of reading: what is built so far, and what has a number to be named by."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def apply_pickle_opcode(self, name: str, argument: Any) -> None:
        """Follow one word; raises TraceFileError for one that builds no plain value."""
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _NEW:
            self.stack.append(_NEW[name]())
        elif name in _PUT:
            self._memo[argument] = self.stack[-1]
        elif name in _GET:
            self.stack.append(self._memo[argument])
        elif name in _BUILD:
            _BUILD[name](self)
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self.stack[-1]
        elif name not in _IGNORED:
            raise TraceFileError(f"no plain pickle: it holds {name}")

    def pop_to_mark(self) -> list[Any]:
        """Take what came since the latest mark from the stack."""
        place = len(self.stack) - 1
        while not isinstance(self.stack[place], _Mark):  # IndexError without one
            place -= 1
            if place < 0:
                raise TraceFileError("no plain pickle: a list without a beginning")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def extend_list(self, items: list[Any]) -> None:
        """Add values to a list."""
        if type(self.stack[-1]) is not list:
            raise TraceFileError("no plain pickle: values are added to what is not a list")
        self.stack[-1].extend(items)

    def update_dict(self, items: list[Any]) -> None:
        """Add pairs, keys and values in turn, to a dict."""
        if type(self.stack[-1]) is not dict:
            raise TraceFileError("no plain pickle: pairs are added to what is not a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in {str, int}:
                raise TraceFileError("no plain pickle: a key is neither a text nor a number")
            self.stack[-1][key] = value

    def pop_values(self, size: int) -> list[Any]:
        """Take the last `size` values from the stack."""
        items = self.stack[-size:]
        del self.stack[-size:]
        return items


_VALUES = frozenset(
    {"BININT", "BININT1", "BININT2", "INT", "LONG1", "BINFLOAT"}
    | {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
_NEW: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": _Mark,
}
_PUT = frozenset({"BINPUT", "LONG_BINPUT"})
_GET = frozenset({"BINGET", "LONG_BINGET"})
_BUILD: dict[str, Callable[[_Reader], None]] = {
    "APPEND": lambda reader: reader.extend_list(reader.pop_values(1)),
    "APPENDS": lambda reader: reader.extend_list(reader.pop_to_mark()),
    "SETITEM": lambda reader: reader.update_dict(reader.pop_values(2)),
    "SETITEMS": lambda reader: reader.update_dict(reader.pop_to_mark()),
    "TUPLE": lambda reader: reader.stack.append(tuple(reader.pop_to_mark())),
    "TUPLE1": lambda reader: reader.stack.append(tuple(reader.pop_values(1))),
    "TUPLE2": lambda reader: reader.stack.append(tuple(reader.pop_values(2))),
    "TUPLE3": lambda reader: reader.stack.append(tuple(reader.pop_values(3))),
}
_IGNORED = frozenset({"PROTO", "FRAME"})


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

    def open_socket_for_rank(self, rank: int) -> socket.socket:
        """Return the rank's end of a new line; the caller closes it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003  # the socket's own signature
        self._lines[rank] = ours
        return theirs

    def close_socket_of_rank(self, rank: int) -> None:
        """Forget the line to a rank that has ended."""
        line = self._lines.pop(rank, None)
        if line is not None:
            line.close()

    async def ask_ranks_for_collectives(
        self, ranks: Iterable[int], wait_s: float = WAIT_S
    ) -> list[RankCollectives]:
        """Return what these ranks say, and write it into the round's folder."""
        self._asked += 1
        asked = [rank for rank in ranks if rank in self._lines]
        answers = await asyncio.gather(*(self._ask_rank_for_collectives(rank, wait_s) for rank in asked))
        found = [answer for answer in answers if answer is not None]
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(wait_s):
                await run_in_thread(lambda: self._write_collectives_of_ranks(found))
        return found

    def read_collectives_left_by_rank(self, rank: int) -> RankCollectives | None:
        """Return what an ended rank left in a file, its own or NCCL's; None if there is nothing."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return self._parse_collectives_of_rank(rank, read_json(self.paths.rank_collectives_file(rank)))
        file = self.paths.nccl_trace(rank)
        try:
            by = DumpedBy(rank=rank, node=self.node, at_s=file.stat().st_mtime)
            found = parse_flight_dumps([read_flight_recorder_dump(file)], by)
        except (OSError, TraceFileError):
            return None
        if found is not None:
            self._write_collectives_of_ranks([found])
        return found

    def _write_collectives_of_ranks(self, found: Iterable[RankCollectives]) -> None:
        for statement in found:
            with contextlib.suppress(OSError):
                write_json(self.paths.rank_collectives_file(statement.rank), to_plain(statement))

    async def _ask_rank_for_collectives(self, rank: int, wait_s: float) -> RankCollectives | None:
        line, number = self._lines[rank], str(self._asked)
        try:
            heard = self._drain_rank_socket(line)
            if rank not in self._ready and READY not in heard:
                return None
            self._ready.add(rank)
            line.send(number.encode() + b"\n")
            async with asyncio.timeout(wait_s):
                text = await self._read_answer_to_question(line, number)
            return self._parse_collectives_of_rank(rank, json.loads(text)["collectives"])
        except (OSError, TimeoutError, ValueError, TypeError, KeyError):
            return None

    def _parse_collectives_of_rank(self, rank: int, said: Any) -> RankCollectives:
        """Return a statement as that of this rank on this node; raises ValueError, TypeError."""
        return replace(from_plain(RankCollectives, said), rank=rank, node=self.node)

    @staticmethod
    def _drain_rank_socket(line: socket.socket) -> bytes:
        """Return what has come: that the rank listens, or an answer that came too late."""
        heard = b""
        with contextlib.suppress(BlockingIOError):
            while len(heard) < MOST_BYTES and (more := line.recv(65536)):
                heard += more
        return heard

    @staticmethod
    async def _read_answer_to_question(line: socket.socket, number: str) -> bytes:
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
