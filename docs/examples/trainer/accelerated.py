"""Learn to add two numbers with Accelerate, with hpckit's two lines."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from hpckit.integrations.accelerate import Accelerator  # was: from accelerate import Accelerator

torch.manual_seed(1)
accelerator = Accelerator()
numbers = torch.randn(640, 2)
net = torch.nn.Linear(2, 1)
model, optimizer, loader = accelerator.prepare(
    net, torch.optim.SGD(net.parameters(), lr=0.05), DataLoader(TensorDataset(numbers), 16, shuffle=True)
)
for (batch,) in accelerator.steps(loader, epochs=3):  # was: for epoch in range(3): for batch in loader:
    loss = (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"loss": loss.item()})
