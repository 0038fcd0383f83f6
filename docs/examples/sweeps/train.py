"""Learn to add two numbers, with a learning rate and a batch size to choose."""

import torch


def train(config, run):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    run.state(model=model, optimizer=optimizer)
    for step in run.steps(config.steps):
        numbers = torch.randn(config.batch_size, 2)
        loss = (model(numbers) - numbers.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(step=step, loss=loss)
