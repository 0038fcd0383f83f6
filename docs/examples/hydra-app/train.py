"""Learn to add two numbers: what is trained, and how, is named in the configuration."""

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch.nn.parallel import DistributedDataParallel


def train(config, run):
    model = DistributedDataParallel(instantiate(config.model).to(run.device))
    optimizer = instantiate(config.optimizer)(model.parameters())  # _partial_: true
    run.state(model=model, optimizer=optimizer)
    if run.is_main:
        print(OmegaConf.to_yaml(OmegaConf.create(dict(config))))
    torch.manual_seed(config.seed + 1 + run.data_rank)
    for step in run.steps(config.steps):
        numbers = torch.randn(64, 2).to(run.device)
        loss = (model(numbers) - numbers.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(step=step, loss=loss)
