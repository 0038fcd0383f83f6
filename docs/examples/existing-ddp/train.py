"""Learn to add two numbers: a script as written for torchrun, with hpckit's four lines."""

import argparse

import torch
from torch.nn.parallel import DistributedDataParallel

import hpckit

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
arguments = parser.parse_args()

run = hpckit.attach()  # was: dist.init_process_group(...), and reading LOCAL_RANK
model = DistributedDataParallel(torch.nn.Linear(2, 1).to(run.device))
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
run.state(model=model, optimizer=optimizer)
torch.manual_seed(1 + run.data_rank)
for step in run.steps(50):  # was: range(50)
    numbers = torch.randn(64, 2).to(run.device)
    loss = (model(numbers) - numbers.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(step=step, loss=loss)  # was: if rank == 0: print(step, loss)
