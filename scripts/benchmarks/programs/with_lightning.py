"""The training as Lightning runs it, with its SLURMEnvironment and a ModelCheckpoint."""

import signal
from typing import Any

import torch
import torch.distributed as dist
import work
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Module(LightningModule):
    """The same linear model, optimizer and step."""

    def __init__(self) -> None:
        super().__init__()
        self.network = work.network()

    def on_train_start(self) -> None:
        """Record which rank this is."""
        work.append("ranks.jsonl", rank=dist.get_rank())

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        """Do a step of the configured length."""
        work.time.sleep(work.SETTINGS["step_s"])
        loss: torch.Tensor = self.network(batch[0]).pow(2).mean()
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        """Record the step."""
        work.record(self.global_step - 1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the same optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    """Train from the last checkpoint, if there is one."""
    width = work.SETTINGS["width"]
    keep = ModelCheckpoint(
        dirpath=work.HERE / "lightning", every_n_train_steps=work.SAVE_EVERY, save_last=True
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=work.SETTINGS["nodes"],
        strategy="ddp",
        max_steps=work.STEPS,
        default_root_dir=work.HERE,
        plugins=[SLURMEnvironment(auto_requeue=True, requeue_signal=signal.SIGUSR1)],
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
    )
    data = DataLoader(TensorDataset(torch.ones(2 * work.STEPS, width)), batch_size=1)
    trainer.fit(Module(), data, ckpt_path="last", weights_only=False)


if __name__ == "__main__":
    main()
