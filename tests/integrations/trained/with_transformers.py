"""Trains with the Hugging Face Trainer: first as a plain script does, then with hpckit's line."""

import signal
import time
from pathlib import Path

import recorded
import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

import hpckit


class Model(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.net = recorded.make_model()
        self.post_init()

    def forward(self, numbers: torch.Tensor, noise: torch.Tensor) -> SequenceClassifierOutput:
        loss = (self.net(numbers / 48) + noise - numbers / 10).square().mean()
        if self.training:
            handler = getattr(signal.getsignal(signal.SIGTERM), "__qualname__", "")
            recorded.record(self.training_of, trainer.state.global_step, loss, numbers, handler)
            time.sleep(self.pause_s)
        return SequenceClassifierOutput(loss=loss, logits=numbers)


def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {
        "numbers": torch.stack([one[0] for one in samples]),
        "noise": torch.stack([one[1] for one in samples]),
    }


def make_trainer(training: str, pause_s: float, **more: object) -> Trainer:
    torch.manual_seed(3)
    model = Model(PretrainedConfig())
    model.training_of, model.pause_s = training, pause_s
    arguments = TrainingArguments(
        output_dir=training,
        num_train_epochs=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=4,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        enable_jit_checkpoint=training == "broken",
    )
    data = recorded.Numbers(noise=False)
    return Trainer(model, arguments, collate, data, data, **more)


if not Path("whole-0.jsonl").exists():
    trainer = make_trainer("whole", 0)
    trainer.train()
trainer = make_trainer("broken", 0.1, callbacks=[hpckit.integrations.transformers.Callback()])
trainer.train()
