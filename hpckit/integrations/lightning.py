"""Lightning in a run: `Trainer(callbacks=[Callback()])`, and the environment of its ranks.

Also for `pytorch_lightning`, if the script has imported that and not `lightning`. Lightning's handling of
signals, its requeueing included, is off while the callback is in a run. It must change nothing outside one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hpckit.errors import UsageError
from hpckit.integrations import trainer_run
from hpckit.runtime.environ import copy_environment
from hpckit.runtime.rank.run import Run

_OLD_NAME = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
trainer_run.check_installed("pytorch_lightning" if _OLD_NAME else "lightning", "lightning")
from torchmetrics import Metric  # noqa: E402  # after the better error

if _OLD_NAME and not TYPE_CHECKING:
    import lightning_fabric as fabric
    import pytorch_lightning as pytorch
    from lightning_fabric.plugins.environments import lightning, torchelastic
else:
    from lightning import fabric, pytorch
    from lightning.fabric.plugins.environments import lightning, torchelastic

_FILE = "lightning.ckpt"
_ENDLESS = 2**31
"""Steps of a training that knows no end."""
_SHAPE = 'Trainer(strategy="ddp", num_nodes=resources.nodes, devices=resources.tasks_per_node)'


class Environment(torchelastic.TorchElasticEnvironment):
    """Lightning's ranks are those of the run: `Trainer(plugins=[Environment()])`.

    Lightning finds them without it, too, unless it is told of another environment such as SLURMEnvironment.
    Outside a run, and not under torchrun, it is Lightning's usual environment of a single machine.
    """

    def __new__(cls) -> Any:
        """Return Lightning's usual environment if nothing has started ranks."""
        is_rank = "WORLD_SIZE" in copy_environment()
        return super().__new__(cls) if is_rank else lightning.LightningEnvironment()

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Raise UsageError if the Trainer has another number of processes than the run has ranks."""
        trainer_run.check_ranks("the Trainer", num_devices * num_nodes, self.world_size(), _SHAPE)


class Callback(pytorch.Callback):
    """Steps, metrics, checkpoints, hang detection and data waits of a run for Lightning's Trainer.

    Saves the Trainer's checkpoint into the run's folder at the interval of `checkpoint`, and at a notice
    before the stop. `fit()` continues from the newest good one: with the same batches, and the same random
    numbers on each rank. A step is an optimizer step; with manual optimization, a batch. Each step logs
    `loss`; what the model logs follows at the Trainer's `log_every_n_steps`, and after each validation and
    epoch. `run` is that of a training function, by default `hpckit.attach()`.

    Outside a run it does nothing. Raises UsageError if given twice, for a second `fit()`, and if the Trainer
    has another number of processes than the run has ranks.

    Example: `Trainer(strategy="ddp", num_nodes=2, devices=4, callbacks=[Callback()])`.
    """

    def __init__(self, run: Run | None = None) -> None:
        super().__init__()
        self._run = run
        self._training: trainer_run.TrainerRun | None = None
        self._trainer: Any = None
        self._at: int | None = None
        self._writes = False
        self._averages: dict[str, Any] = {}

    def _restore(self, trainer: Any, arguments: dict[str, Any]) -> None:
        """Have `fit()` begin from the run's newest checkpoint, if there is one."""
        self._trainer = trainer
        self._training = training = trainer_run.TrainerRun("lightning", self._write, self._run)
        if training.folder is not None:
            arguments["ckpt_path"] = training.folder / _FILE
            if "weights_only" in arguments:  # of hyperparameters that are more than numbers
                arguments["weights_only"] = False

    def _end(self) -> None:
        if self._training is not None and self._at is None:
            self._training.end(self._training.start)  # it had ended before

    def _write(self, folder: Path) -> None:
        try:
            with trainer_run.set_for_now(self, _writes=True):
                self._trainer.save_checkpoint(folder / _FILE)
        except OSError:
            self._trainer.strategy.barrier()  # where the other ranks wait
            raise

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Have Lightning continue at the batch that a save of hpckit's comes before."""
        if self._training is None or not self._writes:
            return
        loop, states = trainer.fit_loop.epoch_loop, checkpoint["loops"]["fit_loop"]
        logged = [(key, one) for key, one in loop._results.items() if one.is_tensor and one.meta.on_epoch]  # noqa: SLF001
        self._training.note |= {
            "metrics": dict(trainer._logger_connector._callback_metrics),  # noqa: SLF001
            "averages": self._averages | _list_states(logged),
            "torchmetrics": _list_states(pl_module.named_modules()),
        }
        # Lightning counts a batch that it finds begun, and trusts loaders that have read ahead.
        states["state_dict"].pop("combined_loader", None)
        if not loop._should_accumulate():  # noqa: SLF001
            states["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check that the callback was in time, and that Trainer and run have the same ranks."""
        if stage != "fit" or not trainer_run.is_in_run():
            return
        if self._training is None:
            raise UsageError(
                "hpckit's callback came after Trainer.fit() had begun",
                hint="give it to the Trainer: Trainer(callbacks=[Callback()])",
            )
        trainer_run.check_ranks("the Trainer", trainer.world_size, self._training.run.world_size, _SHAPE)
        if "stopped" in self._training.note:
            trainer.should_stop = True  # as before the end, by EarlyStopping

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Take over the signals, go to where the data was, and begin the steps."""
        training = self._training
        if training is None:
            return
        trainer._signal_connector.teardown()  # noqa: SLF001  # its handlers leave with exit code 0
        total = trainer.estimated_stepping_batches
        _follow_fetches(trainer.fit_loop, training)
        if training.folder is not None:
            self._set_back(trainer, pl_module, training.note)
            with training.run.unwatched():
                _skip_batches(trainer.fit_loop, training)
        begun = trainer.fit_loop.epoch_loop.batch_progress.total
        start = trainer.global_step if pl_module.automatic_optimization else begun.completed
        training.begin(_ENDLESS if total in {-1, float("inf")} else int(total), start)

    def _set_back(self, trainer: Any, pl_module: Any, note: dict[str, Any]) -> None:
        """Set what Lightning does not: metrics so far, and the number of the batch within all epochs."""
        total = trainer.fit_loop.epoch_loop.batch_progress.total
        total.ready = total.completed  # the save came when the next batch was ready
        trainer._logger_connector._callback_metrics.update(note.get("metrics", {}))  # noqa: SLF001
        self._averages = note.get("averages", {})
        for name, states in note.get("torchmetrics", {}).items():
            metric: Any = pl_module.get_submodule(name)
            vars(metric).update(states)
            metric.to(metric.device)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Note the generators from which the order of the epoch follows."""
        if self._training is not None:
            self._training.begin_epoch(*trainer.fit_loop._combined_loader.flattened)  # noqa: SLF001

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Begin a step, if this is its first batch: save, or leave, as all ranks agree."""
        if self._training is None:
            return
        by_batch = not pl_module.automatic_optimization
        at = trainer.fit_loop.epoch_loop.total_batch_idx if by_batch else trainer.global_step
        if at != self._at:
            self._at = at
            self._training.cross_boundary()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """Log the step, if this was its last batch."""
        training = self._training
        if training is None or self._at is None:
            return
        automatic = pl_module.automatic_optimization
        if not automatic or trainer.global_step != self._at:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            values = {"loss": loss} if loss is not None else {}
            if (self._at + 1) % max(trainer.log_every_n_steps, 1) == 0:
                values = {**trainer.callback_metrics, **values}
            training.log(self._at, values)
        _add_averages(trainer.fit_loop.epoch_loop._results, self._averages)  # noqa: SLF001

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Let a validation take longer than a step."""
        if self._training is not None:
            self._training.waits.enter_context(self._training.run.unwatched())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what it found."""
        if self._training is not None:
            self._training.waits.close()
            self._log_all(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what the epoch found."""
        self._averages.clear()
        self._log_all(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last state."""
        if self._training is not None and self._at is not None:
            self._training.end(trainer.global_step if pl_module.automatic_optimization else self._at + 1)

    def _log_all(self, trainer: Any) -> None:
        if self._training is not None and self._at is not None and not trainer.sanity_checking:
            self._training.log(self._at, trainer.callback_metrics)


def _follow_fetches(loop: Any, training: trainer_run.TrainerRun) -> None:
    """Have the loop tell of each batch that it fetches."""
    epoch_loop = loop.epoch_loop
    before, after = epoch_loop._on_before_fetch, epoch_loop._on_after_fetch  # noqa: SLF001

    def begin_fetch() -> None:
        before()
        training.begin_fetch(loop._data_fetcher.fetched)  # noqa: SLF001
        training.waits.close()
        training.waits.enter_context(training.run.timed("data"))

    def end_fetch() -> None:
        after()
        training.waits.close()

    epoch_loop._on_before_fetch, epoch_loop._on_after_fetch = begin_fetch, end_fetch  # noqa: SLF001


def _skip_batches(loop: Any, training: trainer_run.TrainerRun) -> None:
    """Fetch the batches of the epoch again that are trained: they leave their workers as they were."""
    done, fetcher = loop.epoch_loop.batch_progress.current.completed, loop._data_fetcher  # noqa: SLF001
    epoch, loaders = loop.epoch_progress.current.processed, fetcher.combined_loader.flattened
    training.begin_epoch(*loaders, made=epoch == 0)
    fetcher._start_profiler = loop.epoch_loop._on_before_fetch  # noqa: SLF001
    fetcher._stop_profiler = loop.epoch_loop._on_after_fetch  # noqa: SLF001
    for loader in loaders:
        fabric.utilities.data._set_sampler_epoch(loader, epoch)  # noqa: SLF001
    if epoch > 0:  # Lightning has made the iterator of the first epoch
        iter(fetcher)
    for _ in range(done):
        next(fetcher)
    fetcher.fetched -= done  # the loop adds them itself


def _list_states(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return what metrics have added up."""
    return {name: one.metric_state for name, one in named if isinstance(one, Metric)}


def _add_averages(results: dict[str, Any], saved: dict[str, Any]) -> None:
    """Add what was added up before the stop to what is logged again, and take it out of `saved`."""
    for key in saved.keys() & results.keys():
        result = results[key]
        extreme = result.meta.is_max_reduction or result.meta.is_min_reduction
        add = result.meta.reduce_fx if extreme else torch.add
        for name, value in saved.pop(key).items():
            setattr(result, name, add(getattr(result, name), value.to(result.value.device)))


trainer_run.wrap_training(pytorch.Trainer, "fit", "callbacks", Callback)
