"""The Hugging Face Trainer in a run, and so TRL's: `Trainer(callbacks=[Callback()])`.

The Trainer's own save at SIGTERM (`TrainingArguments.enable_jit_checkpoint`) is off while the callback is in
a run: each rank would save alone, at a step of its own. It must change nothing outside of a run.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hpckit.errors import UsageError
from hpckit.integrations.trainer_run import (
    TrainerRun,
    check_installed,
    find_callback,
    is_in_run,
    let_accelerate_use_cpus,
    open_trainer_run,
    set_for_now,
    wrap_training,
)
from hpckit.runtime.rank.run import Run

check_installed("transformers", "transformers")
from transformers import Trainer, TrainerCallback  # noqa: E402  # after the better error

_SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")
"""What the Trainer adds up between two logs, and does not save (transformers 5)."""


class Callback(TrainerCallback):
    """Steps, metrics, checkpoints, hang detection and data waits of a run for a Trainer.

    Saves the Trainer's checkpoint into the run's folder at the interval of `checkpoint`, and at a notice
    before the stop; what the Trainer saves in `output_dir` stays its own. `train()` continues from the newest
    good one, with the same batches and, on each rank, the same random numbers; until the run has one, from
    `resume_from_checkpoint` as usual. A step is an optimizer step. What the Trainer logs, the run does.
    `run` is that of a training function, by default `hpckit.attach()`.

    Outside a run it does nothing. Raises UsageError if given twice, for a second `train()`, and if the
    Trainer has another number of processes than the run has ranks.

    Example: `Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Callback()])`.
    """

    def __init__(self, run: Run | None = None) -> None:
        self._run = run
        self._training: TrainerRun | None = None
        self._trainer: Any = None
        self._at: int | None = None

    def _restore(self, trainer: Any, arguments: dict[str, Any]) -> Callable[[], None]:
        """Have `train()` begin from the run's newest checkpoint; return what is called after it."""
        self._trainer = trainer
        self._training = training = open_trainer_run("transformers", self._write, self._run)
        if trainer.args.world_size != training.run.world_size:
            raise UsageError(
                f"the Trainer has {trainer.args.world_size} processes, and the run "
                f"{training.run.world_size} ranks",
                hint="import hpckit.integrations.transformers before TrainingArguments are made",
            )
        if training.folder is not None:
            (saved,) = training.folder.glob("checkpoint-*")
            arguments["resume_from_checkpoint"] = str(saved)
        for name, within in (("get_batch_samples", training.run.timed("data")), ("evaluate", None)):
            _call_within(trainer, name, within, training.run)
        return self._end

    def _end(self) -> None:
        if self._training is not None:
            self._training.end(self._trainer.state.global_step)

    def _write(self, folder: Path) -> None:
        trainer, training = self._trainer, self._training
        if training is not None:
            sums = {name: getattr(trainer, name, None) for name in _SUMS}
            training.note = {
                name: value.item() if isinstance(value, torch.Tensor) else value
                for name, value in sums.items()
            }
        with set_for_now(trainer.args, output_dir=str(folder), push_to_hub=False, save_total_limit=None):
            trainer._save_checkpoint(trainer.model, trial=None)  # noqa: SLF001  # as its own save at SIGTERM

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take over the signals, and begin the steps."""
        training = self._training
        if training is None:
            if is_in_run():
                raise UsageError(
                    "hpckit's callback came after Trainer.train() had begun",
                    hint="give it to the Trainer: Trainer(callbacks=[Callback()])",
                )
            return
        _drop_own_save_at_sigterm()
        for name, value in training.note.items():
            before = getattr(self._trainer, name, None)
            if isinstance(before, torch.Tensor):
                before.fill_(value)
            elif before is not None:
                setattr(self._trainer, name, value)
        samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        training.begin(state.max_steps, state.global_step, samples)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin a step: save, or leave, as all ranks agree."""
        if self._training is not None:
            self._training.cross_boundary()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Log what the Trainer does."""
        if self._training is not None and self._training.begun:
            self._training.log(max(state.global_step - 1, 0), logs or {})


def _call_within(trainer: Any, name: str, measured: Any, run: Run) -> None:
    """Have a method of this trainer count as waiting for data, or as work longer than a step."""
    method = getattr(trainer, name)

    def call(*args: Any, **named: Any) -> Any:
        with measured or run.unwatched():
            return method(*args, **named)

    setattr(trainer, name, call)


def _drop_own_save_at_sigterm() -> None:
    manager = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if type(manager).__module__ == "transformers.trainer_jit_checkpoint":
        signal.signal(signal.SIGTERM, manager._original_sigterm_handler)  # type: ignore[union-attr]  # noqa: SLF001


def _begin_train(trainer: Any, arguments: dict[str, Any]) -> Callable[[], None] | None:
    callback = find_callback(trainer.callback_handler.callbacks, Callback)
    if callback is None or not is_in_run():
        return None
    return callback._restore(trainer, arguments)  # type: ignore[no-any-return]  # noqa: SLF001


let_accelerate_use_cpus()
wrap_training(Trainer, "train", _begin_train)
