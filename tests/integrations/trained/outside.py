"""Uses each integration outside of a run, as on a laptop, and prints what came of it as JSON."""

import json

import accelerate
import lightning
import recorded
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import hpckit
from hpckit.errors import UsageError
from hpckit.integrations.accelerate import Accelerator

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


def fit_boring_model(*callbacks: object, **more: object) -> int:
    trainer = lightning.Trainer(accelerator="cpu", max_steps=3, callbacks=[*callbacks], **QUIET, **more)
    trainer.fit(BoringModel())
    return trainer.global_step


def train_tiny_model(*callbacks: object) -> int:
    config = GPT2Config(vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1)
    words = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 8
    arguments = TrainingArguments(output_dir="out", max_steps=3, report_to="none", use_cpu=True)
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=words, callbacks=[*callbacks])
    trainer.train()
    return trainer.state.global_step


def loop_with_accelerate() -> int:
    accelerator = Accelerator(cpu=True)
    assert isinstance(accelerator, accelerate.Accelerator)
    assert accelerator.run is None
    net = recorded.make_model()
    model, loader = accelerator.prepare(net, DataLoader(recorded.Numbers(), 16))
    taken = [model(numbers) for numbers, _ in accelerator.steps(loader, epochs=2)]
    accelerator.log({"loss": 0.5})
    return len(taken)


def explain_refusal(use: object, *arguments: object) -> str:
    try:
        use(*arguments)
    except UsageError as error:
        return error.message
    return "nothing"


torch.manual_seed(1)
by_lightning, by_transformers = hpckit.integrations.lightning, hpckit.integrations.transformers
print(
    json.dumps(
        {
            "lightning": fit_boring_model(by_lightning.Callback(), plugins=[by_lightning.Environment()]),
            "transformers": train_tiny_model(by_transformers.Callback()),
            "accelerate": loop_with_accelerate(),
            "two": [
                explain_refusal(fit_boring_model, by_lightning.Callback(), by_lightning.Callback()),
                explain_refusal(train_tiny_model, by_transformers.Callback(), by_transformers.Callback()),
            ],
        }
    )
)
