"""Worlds of real ranks that train, save and load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAINER = Path(__file__).with_name("trainer.py")

World = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where a run keeps its checkpoints."""
    return tmp_path / "checkpoints"


@pytest.fixture
def world(tmp_path: Path, folder: Path) -> World:
    """Return what trains with so many ranks and returns what each of them saw."""

    def run(ranks: int, **orders: Any) -> list[dict[str, Any]]:
        results = Path(tempfile.mkdtemp(dir=tmp_path))
        orders = {"folder": str(folder), "epoch": 1, "wait": True} | orders
        orders |= {"results": str(results), "store": str(results / "store")}
        command = [sys.executable, str(TRAINER), json.dumps(orders)]
        started = [
            subprocess.Popen(
                command,
                env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(ranks)
        ]
        printed = [process.communicate(timeout=120)[0] for process in started]
        assert [process.returncode for process in started] == [0] * ranks, "\n".join(printed)
        return [json.loads((results / f"{rank}.json").read_text()) for rank in range(ranks)]

    return run
