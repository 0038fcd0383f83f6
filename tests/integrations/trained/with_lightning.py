"""Trains with Lightning: first as a plain script does, then with hpckit's line."""

import os
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
        average = float(self.trainer.callback_metrics.get("train_loss_epoch", 0))  # of the epoch before
        more = [self.trainer.fit_loop.epoch_loop.total_batch_idx, average]
        recorded.record(self.training_of, self.global_step, loss, numbers, more)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.trainer.should_stop = recorded.STOPS_EARLY and self.global_step == 7
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
    data = recorded.Numbers(torch.Generator().manual_seed(8))
    trainer.fit(Model(training, pause_s), DataLoader(data, 2, shuffle=True), DataLoader(data, 8))


if not Path("whole-0.jsonl").exists():
    train("whole", 0)
train("broken", 0.1, callbacks=[Callback()])
recorded.be_killed_at_the_end()
