"""One training whose loop belongs to a trainer: its steps, checkpoints, metrics and waits in a run.

A trainer restores and saves by its own means. hpckit says when, gives the folder, checks and keeps what is in
it as it does for `run.state()`, and brings back the random generators of each rank. It knows no trainer.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
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
from hpckit.values import dataclass, field

_FILES = "trainer"
"""The folder of the trainer's own files in a checkpoint."""


def check_installed(library: str, extra: str) -> None:
    """Raise UsageError if this library, which an extra brings, is not installed."""
    if find_spec(library) is None:
        raise UsageError(
            f"hpckit.integrations.{extra} needs {library}, which is not installed in {sys.executable}",
            hint=f"pip install 'hpckit-slurm[{extra}]'",
        )


def is_in_run() -> bool:
    """Return whether this process is a rank that hpckit started."""
    environ = copy_environment()
    return "HPCKIT_ATTEMPT_DIR" in environ and rank_info(environ).source is RankSource.agent


def let_accelerate_use_cpus() -> None:
    """Have Accelerate, and so transformers, form a group of ranks without GPUs, too."""
    if is_in_run() and not torch.accelerator.is_available():
        environ = copy_environment()
        set_environment_variables({"ACCELERATE_USE_CPU": environ.get("ACCELERATE_USE_CPU", "true")})


def find_callback(callbacks: list[Any], kind: type[Any]) -> Any:
    """Return the one callback of this kind, None without one; raises UsageError for several."""
    found = [callback for callback in callbacks if isinstance(callback, kind)]
    if len(found) > 1:
        raise UsageError(
            f"the Trainer has {len(found)} of hpckit's callbacks; each would count its steps",
            hint="give one: callbacks=[Callback()]",
        )
    return found[0] if found else None


def wrap_training(
    trainer: type[Any], method: str, before: Callable[[Any, dict[str, Any]], Any]
) -> frozenset[str]:
    """Let a Trainer's method call `before` with itself and its arguments, which it may change.

    What that returns is called when the training has returned. Without it, for trainers without hpckit's
    callback, the method is as it was. Returns the names of the method's arguments.
    """
    original = getattr(trainer, method)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def train(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        after = before(bound.args[0], bound.arguments)
        result = original(*bound.args, **bound.kwargs)
        if after is not None:
            after()
        return result

    setattr(trainer, method, train)
    return frozenset(signature.parameters)


@contextmanager
def set_for_now(target: Any, **values: Any) -> Iterator[None]:
    """Set attributes of an object within, and set them back."""
    before = {name: getattr(target, name) for name in values}
    vars(target).update(values)
    try:
        yield
    finally:
        vars(target).update(before)


class _Mark:
    """What is registered: which library wrote the files beside it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def state_dict(self) -> dict[str, str]:
        """Return the name."""
        return {"files_of": self.name}

    def load_state_dict(self, _state: Mapping[str, str]) -> None:
        """Do nothing: the trainer loads its files itself."""


@dataclass(slots=True, kw_only=True)
class TrainerRun:
    """The training of one trainer in a run; all ranks make the same calls.

    `write` saves the trainer's state into a folder, on all ranks. `folder` has what it saved last, None at a
    first start; `start` is the step that follows. `note` is kept for each rank by itself.
    """

    run: Run
    library: str
    write: Callable[[Path], None]
    folder: Path | None = None
    start: int = 0
    note: dict[str, Any] = field(default_factory=dict)
    _random: dict[str, Any] | None = None
    _steps: Iterator[int] | None = None
    _waits: ExitStack = field(default_factory=ExitStack)

    def restore(self) -> None:
        """Choose the newest good checkpoint, the same on all ranks, for the trainer to load.

        The generators stay as they are until the first step. Raises UsageError for a run that already has a
        state or a loop, and CheckpointError.
        """
        run = self.run
        if run.registered or run._loop is not None:  # noqa: SLF001  # its own
            raise UsageError(
                f"{self.library} trains in a run that already has steps or state: run.state(), run.steps() "
                "or another training came before",
                hint="one training of a run has hpckit's line; others in the script go without it",
            )
        run.state(**{self.library: _Mark(self.library)})
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
        own = self._note_file(self.folder)
        if own.exists():  # not if the number of ranks has grown
            self.note = torch.load(own, weights_only=True)

    @property
    def resumes(self) -> bool:
        """Whether it continues from a checkpoint, and its first step has not begun."""
        return self._random is not None

    @property
    def begun(self) -> bool:
        """Whether its steps have begun."""
        return self._steps is not None

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
        self.stop_waiting()
        if self._steps is not None:
            next(self._steps, None)
        if self._random is not None:
            generators.load_state_dict(self._random)
            self._random = None

    def end(self, step: int) -> None:
        """End the steps before this one, all of them or fewer, and save the last state."""
        self.stop_waiting()
        run, steps = self.run, self._steps
        if steps is None:  # nothing was left to do
            steps = run.steps(self.start, start=self.start)
        loop = run._loop  # noqa: SLF001
        if loop is None or step >= loop.total:
            for _ in steps:
                pass
        elif loop.ended_at is None:
            steps.close()  # type: ignore[attr-defined]
            loop.end_loop(step, veto=run._vetoes_final_save())  # noqa: SLF001

    def log(self, step: int | None, metrics: Mapping[str, Any]) -> None:
        """Record those of a trainer's metrics that are single numbers or texts."""
        kept = {
            name: value
            for name, value in metrics.items()
            if name not in OWN_KEYS and (isinstance(value, int | float | str) or _is_single_number(value))
        }
        if kept:
            self.run.log(step=step, **kept)

    def start_waiting(self, *, unwatched: bool = False) -> None:
        """Count the time from here as waiting for data; with `unwatched`, as work longer than a step."""
        self.stop_waiting()
        waits: AbstractContextManager[None] = self.run.unwatched() if unwatched else self.run.timed("data")
        self._waits.enter_context(waits)

    def stop_waiting(self) -> None:
        """Count it no longer."""
        self._waits.close()

    def _note_file(self, folder: Path) -> Path:
        return folder / f"note-{self.run.rank}.pt"

    def _write_files(self, folder: Path) -> None:
        files = folder / _FILES
        files.mkdir(exist_ok=True)
        # A run that saves more often draws the same numbers.
        with self.run.unwatched(), generators.preserve_generators():
            self.write(files)
            torch.save(_without_arrays(self.note), self._note_file(files))


def open_trainer_run(library: str, write: Callable[[Path], None], run: Run | None) -> TrainerRun:
    """Return the training of this library in `run`, by default that of the process, restored so far."""
    training = TrainerRun(run=run or attach(), library=library, write=write)
    training.restore()
    return training


def _without_arrays(value: Any) -> Any:
    """Return a note that torch reads without running code: numpy's generator has an array."""
    if isinstance(value, dict):
        return {name: _without_arrays(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_without_arrays, value))
    return value.tolist() if type(value).__module__ == "numpy" else value


def _is_single_number(value: Any) -> bool:
    return getattr(value, "numel", partial(int, 0))() == 1
