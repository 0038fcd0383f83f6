"""Worlds of real ranks that train, save and load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

SERVER = Path(__file__).with_name("rank_server.py")
TESTS = SERVER.parents[2]

World = Callable[..., list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class RankServer:
    """The process that has imported the trainer, and forks its ranks."""

    orders: IO[str]
    answers: IO[str]

    def run(self, ranks: int, orders: dict[str, Any], logs: Path) -> list[int]:
        """Let so many ranks follow these orders to their end; returns their exit codes."""
        world = {"ranks": ranks, "orders": orders, "logs": str(logs)}
        self.orders.write(json.dumps(world) + "\n")
        self.orders.flush()
        codes: list[int] = json.loads(self.answers.readline())
        return codes


@pytest.fixture(scope="session")
def rank_server() -> Iterator[RankServer]:
    """Return a server of ranks; one for all tests."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER)],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        yield RankServer(process.stdin, process.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where a run keeps its checkpoints."""
    return tmp_path / "checkpoints"


@pytest.fixture
def world(tmp_path: Path, folder: Path, rank_server: RankServer) -> World:
    """Return what trains with so many ranks and returns what each of them saw."""

    def run(ranks: int, **orders: Any) -> list[dict[str, Any]]:
        results = Path(tempfile.mkdtemp(dir=tmp_path))
        orders = {"folder": str(folder), "epoch": 1, "wait": True} | orders
        orders |= {"results": str(results), "store": str(results / "store")}
        codes = rank_server.run(ranks, orders, results)
        printed = [(results / f"{rank}.log").read_text() for rank in range(ranks)]
        assert codes == [0] * ranks, "\n".join(printed)
        return [json.loads((results / f"{rank}.json").read_text()) for rank in range(ranks)]

    return run
