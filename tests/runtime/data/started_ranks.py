"""Starts a script as real ranks with torchrun's variables, as many as are asked for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How a rank ended, and what it printed."""

    code: int
    output: str


def start_ranks(script: Path, world_size: int, *arguments: str) -> list[RankEnd]:
    """Run a script on so many gloo ranks to its end, in its folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("HPCKIT_")}
    shape = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, script.name, *arguments],
            cwd=script.parent,
            env=outside
            | {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
            | {name: str(value) for name, value in shape.items()}
            | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=200)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [
        RankEnd(code=rank.returncode, output=output)
        for rank, output in zip(ranks, outputs, strict=True)
    ]
