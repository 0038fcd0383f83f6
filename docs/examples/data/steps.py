"""Learn to add two numbers, by optimizer steps: a run may stop in the middle of an epoch."""

from itertools import islice

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hpckit

EPOCHS = 5


def batches(step):
    epoch, done = divmod(step, len(loader))
    while True:
        sampler.set_epoch(epoch)  # the order follows from the seed and the epoch
        yield from islice(loader, done, None)
        epoch, done = epoch + 1, 0


run = hpckit.attach()
numbers = torch.randn(256, 2, generator=torch.Generator().manual_seed(1))
data = TensorDataset(numbers, numbers.sum(dim=1, keepdim=True))
sampler = DistributedSampler(data, run.world_size, run.rank)
loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=2)
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(2, 1).to(run.device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.state(model=model, optimizer=optimizer)
stream = None
for step in run.steps(EPOCHS * len(loader)):
    stream = stream or batches(step)  # the first step is not 0 after an interruption
    inputs, wanted = next(stream)
    loss = (model(inputs.to(run.device)) - wanted.to(run.device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(step=step, epoch=step // len(loader), loss=loss)
