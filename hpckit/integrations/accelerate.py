"""Accelerate in a run: `Accelerator` with the run's steps, checkpoints and metrics.

The loop stays the user's own. Outside a run it is Accelerate's own Accelerator, whose `steps()` only loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpckit.integrations import trainer_run
from hpckit.runtime.rank.attach import attach
from hpckit.runtime.rank.run import Run

trainer_run.check_installed("accelerate", "accelerate")
import accelerate  # noqa: E402  # after the better error

trainer_run.let_accelerate_use_cpus()


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # Accelerate has no types
    """Accelerate's Accelerator, made from hpckit's run; it takes the same arguments.

    `run` is hpckit's Run, by default `hpckit.attach()`, and None outside of a run. Raises UsageError if
    Accelerate has another number of processes than the run has ranks.
    """

    def __init__(self, *args: Any, run: Run | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self.run = (run or attach()) if trainer_run.is_in_run() else None
        self.epoch, self._batches = 0, 0
        self._training: Any = None
        if self.run is not None:
            hint = "begin the command with python, not with accelerate launch"
            trainer_run.check_ranks("Accelerate", self.num_processes, self.run.world_size, hint)

    def steps(self, loader: Any, *, epochs: int, replay: bool = True) -> Iterator[Any]:
        """Yield the batches of a prepared loader, `epochs` times over, as two nested loops would.

        In a run, load the newest good checkpoint first (`load_state`), and continue with the batch that
        follows it. Between two optimizer steps state is saved (`save_state`, into the run's folder) at the
        interval of `checkpoint`, and at a notice, after which all ranks leave there: SystemExit is raised out
        of the loop. Call it after `prepare()` and `register_for_checkpointing()`. `self.epoch` is the number
        of the epoch, `loader` has a length.

        A step is an optimizer step: with `accumulate()` it has several batches. Without `replay` the batches
        of the epoch that are trained are skipped unread after a stop, and data workers draw other random
        numbers. Raises UsageError for a second training in a run, and CheckpointError.

        Example: `for batch in accelerator.steps(loader, epochs=3):`.
        """
        size = len(loader)
        training: trainer_run.TrainerRun | None = None
        if self.run is not None:
            self._training = training = trainer_run.TrainerRun("accelerate", self._write, self.run)
            if training.folder is not None:
                self.load_state(str(training.folder))
                self._batches = training.note["batches"]
            training.begin(math.ceil(size / self.gradient_accumulation_steps) * epochs, training.start)
            skip = None if replay else accelerate.skip_first_batches
            loader = trainer_run.FollowedLoader(loader, training, skip)
            loader.skipped = self._batches % size
        for epoch in range(self._batches // size, epochs):
            self.epoch = epoch
            if hasattr(loader, "set_epoch"):
                loader.set_epoch(epoch)
            for batch in loader:
                if training is not None:
                    if self.sync_gradients:
                        training.cross_boundary()
                    self._batches += 1
                yield batch
        if training is not None:
            training.end((training.run.step or 0) + 1)

    def _write(self, folder: Path) -> None:
        self._training.note["batches"] = self._batches
        kept = self.project_configuration
        with trainer_run.set_for_now(kept, automatic_checkpoint_naming=False, iteration=kept.iteration):
            self.save_state(str(folder))

    def log(self, values: Mapping[str, Any], step: int | None = None, **more: Any) -> None:
        """Log to Accelerate's trackers, if it has any, and to the run; all ranks may call it."""
        super().log(dict(values), step=step, **more)
        if self._training is not None:
            self._training.log(step, values)
