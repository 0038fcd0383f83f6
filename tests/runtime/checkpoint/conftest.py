"""Worlds of real ranks that train, save and load."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rank_worlds import start_ranks

HERE = Path(__file__).parent

World = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where a run keeps its checkpoints."""
    return tmp_path / "checkpoints"


@pytest.fixture
def world(tmp_path: Path, folder: Path) -> World:
    """Return what trains with so many ranks and returns what each of them saw."""

    def run(ranks: int, *, program: str = "trainer", **orders: Any) -> list[dict[str, Any]]:
        results = Path(tempfile.mkdtemp(dir=tmp_path))
        orders = {"folder": str(folder), "epoch": 1, "wait": True} | orders
        orders |= {"results": str(results), "store": str(results / "store")}
        ends = start_ranks(HERE / f"{program}.py", ranks, json.dumps(orders), folder=results)
        assert all(end.code == 0 for end in ends), "\n".join(end.output for end in ends)
        return [json.loads((results / f"{rank}.json").read_text()) for rank in range(ranks)]

    return run
