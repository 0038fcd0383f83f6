"""The training as torchrun runs it: loads the last save and saves every few steps."""

import torch.distributed as dist
import work

dist.init_process_group("gloo")
model, optimizer = work.begin()
for step in range(work.load(model, optimizer), work.STEPS):
    work.train_one(model, optimizer, step)
    if (step + 1) % work.SAVE_EVERY == 0:
        work.save(model, optimizer, step + 1)
dist.destroy_process_group()
