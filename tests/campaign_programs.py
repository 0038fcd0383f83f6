"""What a campaign of faults trains: the same few layers, brought to hpckit in three ways.

Responsible for the programs and for reading what they logged; it must not disturb them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

STEPS = 60

MODEL = '''
"""Learns nothing, but deterministically: the losses of a step depend on all steps before it."""
import time, torch
from torch.nn.parallel import DistributedDataParallel


def build():
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 8))
    )
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def train(model, optimizer):
    time.sleep(0.1)
    loss = model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
'''

FUNCTION = f"""
from model import build, train


def main(config, run):
    model, optimizer = build()
    run.state(model=model, optimizer=optimizer)
    for _ in run.steps({STEPS}):
        run.log(loss=train(model, optimizer))
"""

ATTACHED = f"""
import hpckit
from model import build, train

run = hpckit.attach()
model, optimizer = build()
run.state(model=model, optimizer=optimizer)
for _ in run.steps({STEPS}):
    run.log(loss=train(model, optimizer))
"""

PLAIN = f"""
import json, os, sys
import torch, torch.distributed as dist
from model import build, train

folder = os.environ["HPCKIT_RUN_DIR"]
saved = os.path.join(folder, "plain.pt")
dist.init_process_group("gloo")
rank = dist.get_rank()
model, optimizer = build()
step = 0
if os.path.exists(saved):
    state = torch.load(saved, weights_only=True)
    step = state["step"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"][rank])
while step < {STEPS}:
    loss = train(model, optimizer)
    if rank == 0:
        with open(os.path.join(folder, "plain.jsonl"), "a") as log:
            log.write(json.dumps({{"step": step, "loss": loss}}) + "\\n")
    step += 1
    if step % 5 == 0:
        mine = torch.get_rng_state()
        random = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(random, mine)
        if rank == 0:
            state = {{"step": step, "model": model.state_dict(),
                     "optimizer": optimizer.state_dict(), "random": random}}
            torch.save(state, saved + ".new")
            os.replace(saved + ".new", saved)
dist.barrier()
dist.destroy_process_group()
"""

FILES = {"model.py": MODEL, "whole.py": FUNCTION, "attached.py": ATTACHED, "plain.py": PLAIN}

WORDS = {
    "function": ("experiment=function", "entry_point=whole:main"),
    "attach": ("experiment=command", 'command="python attached.py"'),
    "command": ("experiment=command", 'command="python plain.py"'),
}
"""How each way of training is launched."""


def logged(run: Path) -> Iterator[tuple[int, float]]:
    """Yield step and loss of every line that a run has logged, in whichever way it does."""
    files = [*sorted(run.glob("attempts/*/metrics.jsonl")), *run.glob("plain.jsonl")]
    for file in files:
        for line in file.read_text().splitlines():
            row = json.loads(line)
            yield row["step"], row["loss"]
