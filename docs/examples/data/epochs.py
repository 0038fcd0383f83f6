"""Learn to add two numbers, by epochs: a data loader, a sampler, and a step for each epoch."""

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hpckit

run = hpckit.attach()
numbers = torch.randn(256, 2, generator=torch.Generator().manual_seed(1))
data = TensorDataset(numbers, numbers.sum(dim=1, keepdim=True))
sampler = DistributedSampler(data, run.data_size, run.data_rank)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(2, 1).to(run.device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.state(model=model, optimizer=optimizer)
for epoch in run.steps(10):  # was: range(10)
    sampler.set_epoch(epoch)  # the same order on every try
    for inputs, wanted in loader:
        loss = (model(inputs.to(run.device)) - wanted.to(run.device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.log(step=epoch, loss=loss)
