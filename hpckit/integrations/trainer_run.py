"""One training whose loop belongs to a trainer: its steps, checkpoints, metrics and waits in a run.

A trainer restores and saves by its own means. hpckit says when, gives the folder, checks and keeps what is in
it as it does for `run.state()`, and brings back the random generators of each rank. It knows no trainer.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from itertools import count
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from hpckit.errors import UsageError
from hpckit.model.parallel.sample_order import Position
from hpckit.model.rank import RankSource
from hpckit.record.metrics.log import OWN_KEYS
from hpckit.runtime import generators
from hpckit.runtime.environ import copy_environment, rank_info, set_environment_variables
from hpckit.runtime.rank.attach import attach
from hpckit.runtime.rank.run import Run

_FILES, _NOTE = "trainer", "note-{}.pt"
"""In a checkpoint: the folder of the trainer's own files, and in that the note of a rank."""
_TRAINS = "HPCKIT_RANK_TRAINS"
"""The process of a rank that has a training. Its children have the variable, too, and are no ranks."""
_HOLDERS = ("base_dataloader", "batch_sampler", "sampler", "dataset", "collate_fn")
"""Attributes of a data loader, and of what it has, that may have generators of their own."""


def check_installed(library: str, extra: str) -> None:
    """Raise UsageError if this library, which an extra brings, is not installed."""
    if find_spec(library) is None:
        raise UsageError(
            f"hpckit.integrations.{extra} needs {library}, which is not installed in {sys.executable}",
            hint=f"pip install 'hpckit-slurm[{extra}]'",
        )


def check_ranks(trainer: str, processes: int, ranks: int, hint: str) -> None:
    """Raise UsageError if a trainer has another number of processes than the run has ranks."""
    if processes != ranks:
        raise UsageError(f"{trainer} has {processes} processes, and the run {ranks} ranks", hint=hint)


def is_in_run() -> bool:
    """Return whether this process is a rank that hpckit started, and not a child of one that trains."""
    environ, own = copy_environment(), str(os.getpid())
    is_known = "HPCKIT_ATTEMPT_DIR" in environ and environ.get(_TRAINS, own) == own
    return is_known and rank_info(environ).source is RankSource.agent


def let_accelerate_use_cpus() -> None:
    """Have Accelerate, and so transformers, form a group of ranks without GPUs, too."""
    if is_in_run() and not torch.accelerator.is_available():
        environ = copy_environment()
        set_environment_variables({"ACCELERATE_USE_CPU": environ.get("ACCELERATE_USE_CPU", "true")})


def wrap_training(trainer: type[Any], method: str, callbacks: str, kind: type[Any]) -> None:
    """Let a Trainer's method train with the callback of this `kind`, which is in its attribute `callbacks`.

    In a run `_restore` of the callback is called with the Trainer and all of the method's arguments, which it
    may change, and `_end` when the training has returned. Else the method is as it was. It raises UsageError
    for several callbacks of the kind.
    """
    original = getattr(trainer, method)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def train(self: Any, *args: Any, **named: Any) -> Any:
        found = [callback for callback in attrgetter(callbacks)(self) if isinstance(callback, kind)]
        if len(found) > 1:
            raise UsageError(
                f"the Trainer has {len(found)} of hpckit's callbacks; each would count its steps",
                hint="give one: callbacks=[Callback()]",
            )
        if not found or not is_in_run():
            return original(self, *args, **named)
        bound = signature.bind(self, *args, **named)
        bound.apply_defaults()
        found[0]._restore(self, bound.arguments)  # noqa: SLF001
        result = original(*bound.args, **bound.kwargs)
        found[0]._end()  # noqa: SLF001
        return result

    setattr(trainer, method, train)


@contextmanager
def set_for_now(target: Any, **values: Any) -> Iterator[None]:
    """Set attributes of an object within, and set them back."""
    before = {name: getattr(target, name) for name in values}
    vars(target).update(values)
    try:
        yield
    finally:
        vars(target).update(before)


class TrainerRun:
    """The training of one trainer in a run, by default that of the process; all ranks make the same calls.

    `write` saves the trainer's state into a folder, on all ranks. `folder` has what it saved last in the
    newest good checkpoint, the same on all ranks, for the trainer to load; None at a first start. `start` is
    the step that follows. `note` is kept for each rank by itself. Of the batches of an epoch `taken` are
    handed out, and up to `ahead` are fetched when a step begins. `waits` has what the time until the next
    step is counted as: `run.timed("data")`, `run.unwatched()`.

    The generators stay as they are until the first step. Raises UsageError for a process or a run that
    already has a training, a state or a loop, and CheckpointError.
    """

    def __init__(self, library: str, write: Callable[[Path], None], run: Run | None) -> None:
        run = run or attach()
        self.library, self.write, self.run = library, write, run
        self.folder: Path | None = None
        self.note: dict[str, Any] = {}
        self.start, self.taken, self.ahead = 0, 0, 2
        self.waits = ExitStack()
        self._generators: list[Any] = []
        self._random: dict[str, Any] | None = None
        self._steps: Iterator[int] | None = None
        if _TRAINS in copy_environment() or run.registered or run._loop is not None:  # noqa: SLF001  # its own
            raise UsageError(
                f"{self.library} trains in a run that already has steps or state: run.state(), run.steps() "
                "or another training came before",
                hint="one training of a run has hpckit's line, others in the script go without it; folds are "
                "runs of a sweep: -m params.fold=0,1,2 -- python train.py --fold '${params.fold}'",
            )
        set_environment_variables({_TRAINS: str(os.getpid())})
        says = {"files_of": self.library}  # its files, which the trainer loads itself
        run.state(**{self.library: SimpleNamespace(state_dict=lambda: says, load_state_dict=lambda _: None)})
        checkpoints = run._open_checkpoints()  # noqa: SLF001
        if checkpoints is None:
            return
        checkpoints.checkpointer.let_write(self._write_files)
        run._checkpoints = checkpoints  # noqa: SLF001
        with generators.preserve_generators():
            self.start = checkpoints.restore(Position(step=0)).step
            if checkpoints.folder is None:
                return
            self._random = generators.state_dict()
        self.folder = checkpoints.folder / _FILES
        own, first = (self.folder / _NOTE.format(rank) for rank in (run.rank, 0))
        self.note = torch.load(own if own.exists() else first, map_location="cpu", weights_only=True)
        if not own.exists():  # the number of ranks has grown
            self.note = {name: self.note[name] for name in ("batches", "stopped") if name in self.note}

    def begin(self, total: int, start: int, samples_per_step: int = 0) -> None:
        """Begin the steps, up to `total`; `start` is where the trainer continues.

        Raises UsageError if that is not where the checkpoint ended.
        """
        checkpoints = self.run._checkpoints  # noqa: SLF001
        if self.folder is not None and start != self.start:
            raise UsageError(
                f"{self.library} continues at step {start}, and the checkpoint that it was given ends before "
                f"step {self.start}",
                hint="load no other checkpoint once the run has its own",
            )
        if checkpoints is not None:
            checkpoints.begin_at(Position(step=start, samples=start * samples_per_step))
        self._steps = self.run.steps(max(total, start), start=start, samples_per_step=samples_per_step)

    def cross_boundary(self) -> None:
        """Begin the next step; saves before it, or raises SystemExit, as all ranks agree."""
        self.waits.close()
        if self._steps is not None:
            next(self._steps, None)
        if self._random is not None:
            generators.load_state_dict(self._random)
            self._random = None

    def begin_epoch(self, *loaders: Any, made: bool = False) -> None:
        """Note the generators before an epoch; set them in a resumed one, unless its iterators are `made`."""
        self._generators = [generator for loader in loaders for generator in _find_generators(loader)]
        if self._random is None or "epoch" not in self.note:
            kept = generators.state_dict(self._generators)
            self.note |= {"epoch": kept, "fetches": {}, "epochs": self.note.get("epochs", 0) + 1}
            return
        if not made:
            generators.load_state_dict(self.note["epoch"], self._generators)
        lasting = any(getattr(loader, "persistent_workers", False) for loader in loaders)
        if lasting and self.note.get("epochs", 0) > 1 and self.run.is_main:
            self.run._warn_once(  # noqa: SLF001
                "data workers that outlive an epoch (persistent_workers=True) have begun again: they draw "
                "other random numbers than without the stop"
            )

    def begin_fetch(self, number: int) -> None:
        """Note the generators before a batch is fetched, of the first and those read `ahead`, or set them."""
        fetches = self.note.setdefault("fetches", {})
        if self._random is None:
            fetches[number] = generators.state_dict(self._generators)
            for old in [*fetches][1 : -self.ahead]:
                del fetches[old]
        elif number in fetches:
            generators.load_state_dict(fetches[number], self._generators)

    def end(self, step: int) -> None:
        """End the steps before this one, all of them or fewer, and save the last state."""
        self.waits.close()
        run = self.run
        steps = self._steps or run.steps(self.start, start=self.start)  # or nothing was left to do
        loop = run._loop  # noqa: SLF001
        if loop is None or step >= loop.total:
            for _ in steps:
                pass
        elif loop.ended_at is None:
            self.note["stopped"] = True
            steps.close()  # type: ignore[attr-defined]
            loop.end_loop(step, veto=run._vetoes_final_save())  # noqa: SLF001

    def log(self, step: int | None, metrics: Mapping[str, Any]) -> None:
        """Record those of a trainer's metrics that are single numbers or texts."""
        kept = {
            name: value
            for name, value in metrics.items()
            if name not in OWN_KEYS
            and (isinstance(value, int | float | str) or (torch.is_tensor(value) and value.numel() == 1))
        }
        if kept and self._steps is not None:
            self.run.log(step=step, **kept)

    def _write_files(self, folder: Path) -> None:
        files = folder / _FILES
        files.mkdir(exist_ok=True)
        # A run that saves more often draws the same numbers.
        with self.run.unwatched(), generators.preserve_generators():
            self.write(files)
            # Torch reads a note without running code, but not the array that numpy's generator has.
            note = torch.utils._pytree.tree_map(_array_to_list, self.note)  # noqa: SLF001  # torch has no other
            torch.save(note, files / _NOTE.format(self.run.rank))


class FollowedLoader:
    """A data loader of one training, whose epoch can go on behind any of its batches.

    The next epoch fetches `skipped` batches, which are trained, again: samplers, data sets and data workers
    are then as they were. Or `skip(loader, number)` returns a loader of the rest.
    """

    def __init__(self, loader: Any, training: TrainerRun, skip: Callable[[Any, int], Any] | None) -> None:
        self.loader, self.training, self.skip, self.skipped = loader, training, skip, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        training, skipped, loader = self.training, self.skipped, self.loader
        self.skipped = 0
        training.begin_epoch(loader)
        again = 0 if self.skip else skipped
        batches = iter(self.skip(loader, skipped) if skipped and self.skip else loader)
        with training.run.unwatched() if again else nullcontext():
            for number in range(again):
                training.begin_fetch(number)
                next(batches, None)
        for number in count(skipped):
            training.begin_fetch(number)
            with training.run.timed("data"):
                batch = next(batches, self)
            if batch is self:
                return
            training.taken = number + 1
            yield batch


def _find_generators(holder: Any, depth: int = 4) -> list[Any]:
    """Return the generators in attributes of a data loader, its samplers and its data set."""
    held = vars(holder) if hasattr(holder, "__dict__") else {}
    found = [value for value in held.values() if isinstance(value, generators.OWN_GENERATORS)]
    for name in _HOLDERS if depth else ():
        found += _find_generators(held.get(name), depth - 1)
    return [*dict.fromkeys(found)]


def _array_to_list(value: Any) -> Any:
    return value.tolist() if type(value).__module__ == "numpy" else value
