"""What every contestant trains, and its records for the benchmarks; independent of who runs it.

A linear model under DistributedDataParallel, with steps of a fixed minimum length, and after every
step one line of JSON: the time, the process, the step. `settings.json` next to this file has the
numbers.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HERE = Path(__file__).resolve().parent
SETTINGS = json.loads((HERE / "settings.json").read_text())
STEPS: int = SETTINGS["steps"]
SAVE_EVERY: int = SETTINGS["save_every"]
STATE = HERE / "state.pt"
_LIFE = f"{os.getpid()}-{time.time():.3f}"


def append(name: str, **values: object) -> None:
    """Append one line in a single write."""
    line = json.dumps({"at": time.time(), "life": _LIFE, "pid": os.getpid(), **values})
    with (HERE / name).open("a") as file:
        file.write(line + "\n")


def begin() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Record which rank this is, and return the model and its optimizer."""
    torch.manual_seed(0)
    append("ranks.jsonl", rank=dist.get_rank(), host=socket.gethostname())
    model = DistributedDataParallel(network())
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def network() -> torch.nn.Module:
    """Return the model; the settings determine its size."""
    width = SETTINGS["width"]
    return torch.nn.Linear(width, width)


def train_one(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    """Do a step of the configured length, and record it."""
    began = time.monotonic()
    loss = model(torch.ones(1, SETTINGS["width"])).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(max(SETTINGS["step_s"] - (time.monotonic() - began), 0))
    record(step)
    return float(loss)


def record(step: int) -> None:
    """Record a finished step."""
    if dist.get_rank() == 0:
        append("steps.jsonl", step=step)


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, done: int) -> None:
    """Save as in tutorials: rank 0, torch.save, rename."""
    if dist.get_rank() != 0:
        return
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
    torch.save(state, STATE.with_suffix(".new"))
    STATE.with_suffix(".new").replace(STATE)


def load(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the last save; return the number of steps done."""
    if not STATE.exists():
        return 0
    state: dict[str, Any] = torch.load(STATE)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["done"])
