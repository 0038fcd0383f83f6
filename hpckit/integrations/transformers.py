"""The Hugging Face Trainer in a run, and so TRL's: `Trainer(callbacks=[Callback()])`.

The Trainer's own save at SIGTERM (`TrainingArguments.enable_jit_checkpoint`) is off while the callback is in
a run: each rank would save alone, at a step of its own. It must change nothing outside of a run.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import torch

from hpckit.errors import UsageError
from hpckit.integrations import trainer_run
from hpckit.runtime.rank.run import Run

trainer_run.check_installed("transformers", "transformers")
import transformers.trainer  # noqa: E402  # after the better error
from transformers import Trainer, TrainerCallback  # noqa: E402

_SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")
"""What the Trainer adds up between two logs, and does not save (transformers 5)."""


class Callback(TrainerCallback):
    """Steps, metrics, checkpoints, hang detection and data waits of a run for a Trainer.

    Saves the Trainer's checkpoint into the run's folder at the interval of `checkpoint`, and at a notice
    before the stop; what the Trainer saves in `output_dir` stays its own. `train()` continues from the newest
    good one, with the same batches and, on each rank, the same random numbers; until the run has one, from
    `resume_from_checkpoint` as usual. A step is an optimizer step. What the Trainer logs, the run does.
    `run` is that of a training function, by default `hpckit.attach()`. Without `replay` the batches of the
    epoch that are trained are skipped unread after a stop, and data workers draw other random numbers.

    Outside a run it does nothing. Raises UsageError if given twice, for a second `train()`, and if the
    Trainer has another number of processes than the run has ranks.

    Example: `Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Callback()])`.
    """

    def __init__(self, run: Run | None = None, *, replay: bool = True) -> None:
        self._run, self._skip = run, None if replay else _skip_first_batches
        self._training: Any = None
        self._trainer: Any = None

    def _restore(self, trainer: Any, arguments: dict[str, Any]) -> None:
        """Have `train()` begin from the run's newest checkpoint, if there is one."""
        self._trainer = trainer
        self._training = training = trainer_run.TrainerRun("transformers", self._write, self._run)
        hint = "import hpckit.integrations.transformers before TrainingArguments are made"
        trainer_run.check_ranks("the Trainer", trainer.args.world_size, training.run.world_size, hint)
        if training.folder is not None:
            (saved,) = training.folder.glob("checkpoint-*")
            arguments["resume_from_checkpoint"] = str(saved)
        make_loader, init_state = trainer.get_train_dataloader, trainer._init_training_state  # noqa: SLF001

        def init_training_state(*given: Any) -> Any:
            found = init_state(*given)  # wrong for a loader without a length: computed from the step
            training.note.setdefault("epochs", found[0])
            return training.note.get("at", found)

        trainer._init_training_state = init_training_state  # noqa: SLF001
        training.ahead = trainer.args.gradient_accumulation_steps + 1
        trainer.evaluate = training.run.unwatched()(trainer.evaluate)
        trainer.get_train_dataloader = lambda: trainer_run.FollowedLoader(make_loader(), training, self._skip)

    def _end(self) -> None:
        self._trainer._tr_loss.zero_()  # noqa: SLF001  # it is in the other sum, too
        self._training.end(self._trainer.state.global_step)

    def _write(self, folder: Path) -> None:
        trainer, training = self._trainer, self._training
        # The best model stays the one in `output_dir`: this folder goes, some saves later.
        best = {"best_model_checkpoint": trainer.state.best_model_checkpoint}
        args = {"output_dir": str(folder), "push_to_hub": False, "save_total_limit": None}
        with trainer_run.set_for_now(trainer.args, **args), trainer_run.set_for_now(trainer.state, **best):
            training.note |= {"sums": {name: getattr(trainer, name, None) for name in _SUMS}, **best}
            trainer._save_checkpoint(trainer.model, trial=None)  # noqa: SLF001  # as its own save at SIGTERM

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take over the signals, and begin the steps."""
        training = self._training
        if training is None:
            if trainer_run.is_in_run():
                raise UsageError(
                    "hpckit's callback came after Trainer.train() had begun",
                    hint="give it to the Trainer: Trainer(callbacks=[Callback()])",
                )
            return
        manager = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)  # of its own save
        if type(manager).__module__ == "transformers.trainer_jit_checkpoint":
            signal.signal(signal.SIGTERM, manager._original_sigterm_handler)  # type: ignore[union-attr]  # noqa: SLF001
        if training.folder is not None:
            self._set_back(state, training.note)
            if "stopped" in training.note or state.global_step >= state.max_steps:
                trainer = self._trainer  # which would train a step more
                trainer._run_epoch = lambda **_: setattr(trainer.control, "should_training_stop", True)  # noqa: SLF001
                return
        samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        training.begin(state.max_steps, state.global_step, samples)

    def _set_back(self, state: Any, note: dict[str, Any]) -> None:
        """Set what the Trainer does not: sums between two logs, the best model, counters of callbacks."""
        state.best_model_checkpoint = note.get("best_model_checkpoint", state.best_model_checkpoint)
        for name, value in note.get("sums", {}).items():
            before = getattr(self._trainer, name, None)
            if isinstance(before, torch.Tensor):
                before.copy_(value)
            elif before is not None:
                setattr(self._trainer, name, value)
        for name, saved in state.stateful_callbacks.items():
            same = [one for one in self._trainer.callback_handler.callbacks if type(one).__name__ == name]
            kept = saved if isinstance(saved, list) else [saved]
            for callback, values in zip(reversed(same), reversed(kept), strict=False):
                vars(callback).update(values.get("attributes", {}))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin a step: save, or leave, as all ranks agree."""
        training = self._training
        if training is not None:
            fetched = self._trainer.current_gradient_accumulation_steps
            training.note["at"] = (training.note["epochs"] - 1, training.taken - fetched)
            training.cross_boundary()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Log what the Trainer does."""
        if self._training is not None:
            self._training.log(max(state.global_step - 1, 0), logs or {})


def _skip_batches(loader: Any, number: int = 0) -> Any:
    if not isinstance(loader, trainer_run.FollowedLoader):
        return _skip_first_batches(loader, number)
    loader.skipped = number
    return loader


trainer_run.let_accelerate_use_cpus()
_module: Any = transformers.trainer
_skip_first_batches, _module.skip_first_batches = _module.skip_first_batches, _skip_batches
trainer_run.wrap_training(Trainer, "train", "callback_handler.callbacks", Callback)
