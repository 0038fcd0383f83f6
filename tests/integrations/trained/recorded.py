"""What the trainings here share: a model with dropout, data, and a row for each batch that is trained."""

import json
import os
from pathlib import Path

import torch
from torch.utils.data import Dataset


class Numbers(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """48 samples; the noise is drawn anew each time, from torch's own generator."""

    def __init__(self, *, noise: bool = True) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([float(index)]), torch.rand(1) if self.noise else torch.zeros(1)


def make_model() -> torch.nn.Module:
    """Return one whose losses depend on the random numbers of each step."""
    return torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))


def record(training: str, step: int, loss: torch.Tensor, samples: torch.Tensor, handler: str = "") -> None:
    """Append a row of this rank: the batch that it trains."""
    row = {
        "step": step,
        "loss": loss.item(),
        "samples": samples.flatten().tolist(),
        "handler": handler,
        "pid": os.getpid(),
        "start": f"{os.environ['HPCKIT_ATTEMPT_DIR'][-1]}.{os.environ['HPCKIT_ROUND']}",
    }
    with Path(f"{training}-{os.environ['RANK']}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
