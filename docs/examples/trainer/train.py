"""Train a tiny language model with Hugging Face's Trainer, with hpckit's line."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from hpckit.integrations.transformers import Callback


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        tokens = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


set_seed(1)  # before the model is made
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
arguments = TrainingArguments(output_dir="trained", max_steps=100, logging_steps=5, report_to="none")
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=arguments,
    train_dataset=Tokens(),
    callbacks=[Callback()],  # the line
)
trainer.train()
