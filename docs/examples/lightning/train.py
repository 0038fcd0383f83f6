"""Train Lightning's own demonstration model, with hpckit's line."""

import os

import lightning
from lightning.pytorch.demos.boring_classes import BoringModel

from hpckit.integrations.lightning import Callback

trainer = lightning.Trainer(
    num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    strategy="ddp",
    max_epochs=3,
    logger=False,
    callbacks=[Callback()],  # the line
)
trainer.fit(BoringModel())
