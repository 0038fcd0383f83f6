"""Runs programs as real ranks with torchrun's variables, as many as are asked for."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
PATIENCE_S = 200
"""A rank that takes longer prints where it is, and leaves with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How a rank ended (negative: the signal), and what it printed."""

    code: int
    output: str


class RankServerLostError(Exception):
    """A rank server ended while ranks were to run; says how."""


@dataclass(slots=True, kw_only=True)
class RankServer:
    """The process that has imported torch, and forks ranks; another one when it has ended."""

    process: subprocess.Popen[str] | None = None

    def run(self, program: Path, ranks: int, words: tuple[str, ...], folder: Path) -> list[RankEnd]:
        """Run a program as so many ranks in a folder, until all have ended."""
        with tempfile.TemporaryDirectory(prefix="hpckit-ranks-") as logs, socket.socket() as held:
            world = {
                "ranks": ranks,
                "words": [str(program), *words],
                "folder": str(folder),
                "environ": variables() | rendezvous(held, ranks),
                "logs": logs,
                "patience_s": PATIENCE_S,
            }
            codes = self._ask(world)
            outputs = [Path(logs, f"{rank}.log").read_text() for rank in range(ranks)]
        return [RankEnd(code=code, output=output) for code, output in zip(codes, outputs, strict=True)]

    def _ask(self, world: dict[str, Any]) -> list[int]:
        if self.process is not None and self.process.poll() is not None:
            warnings.warn(f"{self._take_end()}; another one starts", stacklevel=4)
        if self.process is None:
            self.process = _start_server()
        orders, answers = self.process.stdin, self.process.stdout
        assert orders is not None
        assert answers is not None
        with suppress(BrokenPipeError):
            orders.write(json.dumps(world) + "\n")
            orders.flush()
        answer = answers.readline()
        if not answer:
            raise RankServerLostError(self._take_end())
        codes: list[int] = json.loads(answer)
        return codes

    def _take_end(self) -> str:
        process, self.process = self.process, None
        assert process is not None
        process.communicate(timeout=PATIENCE_S)
        return f"the rank server, process {process.pid}, has ended with {process.returncode}"

    def end(self) -> None:
        """Let it leave."""
        if self.process is not None:
            self.process.communicate()


def _start_server() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(TESTS / "rank_server.py")],
        env=variables(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@cache
def rank_server() -> RankServer:
    """Return the server of this process; it leaves when this process does."""
    server = RankServer()
    atexit.register(server.end)
    return server


def variables() -> dict[str, str]:
    """Return the environment that all ranks have."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("HPCKIT_")}
    return outside | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}


def rendezvous(held: socket.socket, ranks: int) -> dict[str, str]:
    """Return a world's own variables. Nobody else is given its port while the socket is open."""
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that rank 0's store may bind it
    held.bind(("127.0.0.1", 0))
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(held.getsockname()[1]),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }


def start_ranks(program: Path, ranks: int, *words: str, folder: Path | None = None) -> list[RankEnd]:
    """Run a program as so many ranks to its end, in its folder or another one."""
    return rank_server().run(program, ranks, words, folder or program.parent)
