"""Train Lightning's own demonstration model: a script that continues from its checkpoints."""

import os

import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from reports import Reports

checkpoint = ModelCheckpoint(dirpath="checkpoints", save_last=True, every_n_train_steps=20)
trainer = lightning.Trainer(
    num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    strategy="ddp",
    max_epochs=3,
    limit_val_batches=0,
    logger=False,
    callbacks=[checkpoint, Reports()],
)
trainer.fit(BoringModel(), ckpt_path="last")
