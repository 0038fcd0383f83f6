"""Trains with the Hugging Face Trainer: first as a plain script does, then with hpckit's line."""

import time
from pathlib import Path
from typing import Any

import recorded
import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.trainer_callback import ExportableState

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
            recorded.record(self.training_of, trainer.state.global_step, loss, numbers, self.counter.steps)
            time.sleep(self.pause_s)
        return SequenceClassifierOutput(loss=loss, logits=numbers)


class Counter(TrainerCallback, ExportableState):
    def __init__(self) -> None:
        self.steps = 0

    def on_step_end(self, _arguments: object, _state: object, control: Any, **_: object) -> None:
        self.steps += 1
        control.should_training_stop = recorded.STOPS_EARLY and self.steps == 8

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"steps": self.steps}}


def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {
        "numbers": torch.stack([one[0] for one in samples]),
        "noise": torch.stack([one[1] for one in samples]),
    }


def make_trainer(training: str, pause_s: float, *callbacks: TrainerCallback) -> Trainer:
    torch.manual_seed(3)
    model = Model(PretrainedConfig())
    model.training_of, model.pause_s, model.counter = training, pause_s, Counter()
    arguments = TrainingArguments(
        output_dir=training,
        num_train_epochs=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=4,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        label_names=["noise"],
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_num_workers=1,
        enable_jit_checkpoint=training == "broken",
    )
    data = recorded.Numbers()
    return Trainer(model, arguments, collate, data, data, callbacks=[model.counter, *callbacks])


if not Path("whole-0.jsonl").exists():
    trainer = make_trainer("whole", 0)
    trainer.train()
trainer = make_trainer("broken", 0.1, hpckit.integrations.transformers.Callback())
trainer.train()
Path("best").write_text(trainer.state.best_model_checkpoint)
recorded.be_killed_at_the_end()
