"""The beginning and the end of each rank of these tests: reads its orders, says what it saw."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpckit.errors import HpckitError

Program = Callable[[dict[str, Any], int], dict[str, Any]]
"""Follows orders in a world of so many ranks, and returns what it saw."""


def follow_orders(*programs: Program) -> None:
    """Do as one rank what the orders name, the first program unless they name one."""
    orders = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size > 1 or orders.get("group"):
        dist.init_process_group(
            "gloo", init_method=f"file://{orders['store']}", rank=rank, world_size=world_size
        )
    named = {program.__name__: program for program in programs}
    try:
        result = named[orders.get("do", programs[0].__name__)](orders, world_size)
    except HpckitError as error:
        result = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    Path(orders["results"], f"{rank}.json").write_text(json.dumps(result))
    if dist.is_initialized():
        dist.destroy_process_group()
