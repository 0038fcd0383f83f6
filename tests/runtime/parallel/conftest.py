"""Worlds of gloo ranks that train a small model in one layout after the other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PATIENCE_S = 240


def run_world(
    folder: Path, cases: dict[str, Any], *, ranks: int, program: str = "equality_program.py"
) -> list[dict[str, Any]]:
    """Run the cases in a world of ranks; return for each rank what it found, by case."""
    order = folder / "order.json"
    listed = [{"name": name, **one} for name, one in cases.items()]
    out = folder / "found"
    order.write_text(json.dumps({"cases": listed, "out": str(out), "patience_s": PATIENCE_S}))
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    environ = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1]),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
    started = []
    for rank, log in enumerate(logs):
        with log.open("w") as file:
            started.append(
                subprocess.Popen(
                    [sys.executable, HERE / program, order],
                    env={**environ, "RANK": str(rank)},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
    codes = [one.wait(timeout=PATIENCE_S + 30) for one in started]
    assert codes == [0] * ranks, "\n\n".join(log.read_text()[-3000:] for log in logs)
    found = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(ranks)]
    return [dict(zip(cases, one, strict=True)) for one in found]


@pytest.fixture(scope="session", name="in_world")
def in_world_fixture() -> Any:
    """Hand out what runs cases in a world."""
    return run_world
