"""Trains with Lightning: first as a plain script does, then with hpckit's line."""

import os
import signal
import time
from pathlib import Path

import lightning
import recorded
import torch
from torch.utils.data import DataLoader

from hpckit.integrations.lightning import Callback


class Model(lightning.LightningModule):
    def __init__(self, training: str, pause_s: float) -> None:
        super().__init__()
        self.training_of, self.pause_s = training, pause_s
        self.net = recorded.make_model()

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        numbers, noise = batch
        loss = (self.net(numbers / 48) + noise - numbers / 10).square().mean()
        handler = getattr(signal.getsignal(signal.SIGTERM), "__qualname__", "")
        recorded.record(self.training_of, self.global_step, loss, numbers, handler)
        self.log("train_loss", loss)
        time.sleep(self.pause_s)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        self.log("val_loss", self.net(batch[0] / 48).square().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.01)


def train(training: str, pause_s: float, **more: object) -> None:
    lightning.seed_everything(7)
    trainer = lightning.Trainer(
        accelerator="cpu",
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=3,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        **more,
    )
    data = recorded.Numbers()
    trainer.fit(Model(training, pause_s), DataLoader(data, 2, shuffle=True), DataLoader(data, 8))


if not Path("whole-0.jsonl").exists():
    train("whole", 0)
train("broken", 0.1, callbacks=[Callback()])
