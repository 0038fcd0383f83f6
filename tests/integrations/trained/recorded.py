"""What the trainings here share: a model with dropout, data, and a row for each batch that is trained."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset

STOPS_EARLY = "early" in sys.argv
"""Whether the training ends itself after 8 steps, and its process is killed once it has."""


class Numbers(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """48 samples; the noise is drawn anew each time, from torch's own generator or another one."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([float(index)]), torch.rand(1, generator=self.generator)


def make_model() -> torch.nn.Module:
    """Return one whose losses depend on the random numbers of each step."""
    return torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))


def record(training: str, step: int, loss: torch.Tensor, samples: torch.Tensor, more: object = None) -> None:
    """Append a row of this rank: the batch that it trains, and what more has to be as without a stop."""
    row = {
        "step": step,
        "loss": loss.item(),
        "samples": samples.flatten().tolist(),
        "more": more,
        "handler": getattr(signal.getsignal(signal.SIGTERM), "__qualname__", ""),
        "pid": os.getpid(),
        "start": f"{os.environ['HPCKIT_ATTEMPT_DIR'][-1]}.{os.environ['HPCKIT_ROUND']}",
    }
    with Path(f"{training}-{os.environ['RANK']}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def be_killed_at_the_end() -> None:
    """Kill this process once the training has ended, but not the one after it."""
    if STOPS_EARLY and not Path("ended").exists():
        Path("ended").touch()
        os.kill(os.getpid(), signal.SIGKILL)
