"""Learn to add two numbers: each step has its batch, wherever and however often it is done."""

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import hpckit

EPOCHS = 5

run = hpckit.attach()
numbers = torch.randn(256, 2, generator=torch.Generator().manual_seed(1))
data = TensorDataset(numbers, numbers.sum(dim=1, keepdim=True))
batches = run.batches(data, batch_size=32, workers=2)  # 32 samples of all ranks together
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(2, 1).to(run.device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.state(model=model, optimizer=optimizer)
for step in run.steps(EPOCHS * len(batches)):
    inputs, wanted = next(batches)  # this rank's rows of the step's batch
    loss = (model(inputs.to(run.device)) - wanted.to(run.device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(step=step, epoch=batches.epoch(step), loss=loss)
