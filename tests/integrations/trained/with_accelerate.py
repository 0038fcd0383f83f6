"""Trains with Accelerate: first as a plain script does, then with hpckit's Accelerator."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import recorded
import torch
from torch.utils.data import DataLoader

from hpckit.errors import UsageError
from hpckit.integrations.accelerate import Accelerator


def list_batches(_accelerator: Any, loader: Any) -> Iterator[Any]:
    for _ in range(3):
        yield from loader


def train(training: str, pause_s: float, kind: Any, batches: Any) -> None:
    accelerate.utils.set_seed(5)
    accelerator = kind(gradient_accumulation_steps=2)
    net = recorded.make_model()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    own = torch.Generator().manual_seed(6)
    loader = DataLoader(recorded.Numbers(own), 2, shuffle=True, generator=own)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for step, (numbers, noise) in enumerate(batches(accelerator, loader)):
        with accelerator.accumulate(model):
            loss = (model(numbers / 48) + noise - numbers / 10).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        at = step // 2 if training == "whole" else accelerator.run.step
        recorded.record(training, at, loss, numbers)
        if training == "broken":
            accelerator.log({"loss": loss.item()})
        time.sleep(pause_s)


if not Path("whole-0.jsonl").exists():
    train("whole", 0, accelerate.Accelerator, list_batches)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001
train("broken", 0.1, Accelerator, lambda one, loader: one.steps(loader, epochs=3))
recorded.be_killed_at_the_end()
try:
    train("again", 0, Accelerator, lambda one, loader: one.steps(loader, epochs=3))
except UsageError as error:
    Path(f"refused-{os.environ['RANK']}").write_text(error.message)
