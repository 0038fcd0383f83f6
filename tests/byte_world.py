"""The layouts of four ranks, and what such ranks train the byte model with."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import one_mesh
import torch
import torch.distributed as dist
from byte_model import LENGTH, VALUES
from torch import Tensor

from hpckit.errors import HpckitError
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import Parallel, Precision, Recompute, Reduction
from hpckit.model.rank import RankInfo, RankSource
from hpckit.runtime.parallel import mesh
from hpckit.runtime.rank.parallel_run import ParallelRun

LAYOUTS: dict[str, dict[str, int]] = {
    "ddp": {"replicate": 4},
    "fsdp": {"shard": 4},
    "hsdp": {"replicate": 2, "shard": 2},
    "tensor": {"tensor": 4},
    "fsdp x tensor": {"shard": 2, "tensor": 2},
    "replicate x tensor": {"replicate": 2, "tensor": 2},
    "pipeline": {"pipeline": 4},
    "pipeline x fsdp": {"pipeline": 2, "shard": 2},
    "replicate x pipeline": {"replicate": 2, "pipeline": 2},
    "pipeline x tensor": {"pipeline": 2, "tensor": 2},
    "context": {"context": 4},
    "context x fsdp": {"context": 2, "shard": 2},
    "context x tensor": {"context": 2, "tensor": 2},
    "context x pipeline": {"context": 2, "pipeline": 2},
}


def batch(rows: int, step: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets [rows, length] of a step."""
    generator = torch.Generator().manual_seed(1000 + step)
    text = torch.randint(VALUES, (rows, LENGTH + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def rank_of_world() -> RankInfo:
    """Return which rank this process is."""
    rank, world = dist.get_rank(), dist.get_world_size()
    return RankInfo(
        rank=rank,
        world_size=world,
        local_rank=rank,
        local_world_size=world,
        node_rank=0,
        num_nodes=1,
        source=RankSource.torchrun,
    )


def make_run(case: dict[str, Any]) -> ParallelRun:
    """Return this rank's run of a case: its layout, the whole one, and its settings by name."""
    kinds = {"params": Precision, "recompute": Recompute, "reduce": Reduction}
    settings: dict[str, Any] = {
        name: kinds[name](value) if name in kinds else value
        for name, value in case.get("parallel", {}).items()
    }
    return ParallelRun(
        info=rank_of_world(),
        device=torch.device("cpu"),
        seed=7,
        layout=Layout(**case.get("layout", {})),
        full_layout=Layout(**case["full"]) if "full" in case else None,
        parallel=Parallel(**settings),
    )


def run_cases(tried: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Try each case of the file that is named; write what this rank found, or what refused it."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    mesh.init_device_mesh = one_mesh.init_device_mesh  # type: ignore[assignment,attr-defined]
    dist.init_process_group("gloo")
    found = []
    for case in cases:
        begun = time.monotonic()
        try:
            one = tried(case)
        except HpckitError as error:
            one = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
        found.append({"seconds": time.monotonic() - begun, **one})
    Path(f"found.{dist.get_rank()}").write_text(json.dumps(found))
    dist.destroy_process_group()
