"""Learn to add two numbers: a training function for hpckit."""

import torch
from torch.nn.parallel import DistributedDataParallel


def train(config, run):
    model = DistributedDataParallel(torch.nn.Linear(2, 1).to(run.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    run.state(model=model, optimizer=optimizer)
    torch.manual_seed(config.seed + 1 + run.data_rank)  # other numbers on every data rank
    for step in run.steps(config.steps):
        numbers = torch.randn(64, 2).to(run.device)
        loss = (model(numbers) - numbers.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(step=step, loss=loss)
