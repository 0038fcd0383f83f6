"""The step loop's side of checkpoints: where to begin, when to save, what to report.

Joins a run's registered state, its save interval and its Checkpointer. It does not know how a
checkpoint is written or chosen.

By default the interval follows from the measured cost of a save and the expected time between
failures (Young 1974: the square root of 2 * cost * time between failures minimises the sum of
saving and of lost work). The cost of a save to training is its stall. Writing in the background
still loads the file system, so at most a tenth of the time is spent writing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import nn

from hpckit.model import messages
from hpckit.model.goodput import SaveCost
from hpckit.model.launch import Checkpoint
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.sample_order import Position
from hpckit.record.attempts import is_latest_attempt
from hpckit.record.launches import configured_checkpoint_dir
from hpckit.record.layout import AttemptPaths
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.checkpoint.errors import CheckpointError, FencedError, StateError
from hpckit.runtime.checkpoint.initial_weights import FirstWeights
from hpckit.runtime.checkpoint.loading import LoadedCheckpoint
from hpckit.runtime.checkpoint.saving import SaveOutcome
from hpckit.values import dataclass, field

_SHORTEST = timedelta(seconds=5)
"""Shortest interval, and the time of a run's first save.

The first save measures what a save costs, and gives runs that fail early, often in the first
minute, something to continue from.
"""

WRITING = 0.1
"""Maximum share of the time spent writing: ten such runs keep a file system busy."""


def compute_young_interval(cost: timedelta, between_failures: timedelta) -> timedelta:
    """Return the best interval between saves of this cost (Young's first order)."""
    seconds = math.sqrt(2 * cost.total_seconds() * between_failures.total_seconds())
    return max(timedelta(seconds=seconds), _SHORTEST)


@dataclass(slots=True, kw_only=True)
class SaveInterval:
    """The saves of one rank. `clock` gives monotonic seconds.

    `known` is the cost of the latest save, of this round or passed on from an earlier one; None
    before the run's first save.
    """

    settings: Checkpoint
    clock: Callable[[], float] = time.monotonic
    known: SaveCost | None = None
    _at: float = field(init=False)
    _step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._at = self.clock()

    def restart_at_step(self, step: int) -> None:
        """Restart the interval at this step and at the current time."""
        self._step, self._at = step, self.clock()

    def is_due(self, step: int) -> bool:
        """Return whether a save is due before this step."""
        if self.settings.interval_steps is not None:
            return step - self._step >= self.settings.interval_steps
        return self.clock() - self._at >= self.interval.total_seconds()

    def steps_until_due(self, step: int) -> int | None:
        """Return in how many steps a save is due, at least 1; None if the interval is a time."""
        if self.settings.interval_steps is None:
            return None
        return max(self._step + self.settings.interval_steps - step, 1)

    @property
    def interval(self) -> timedelta:
        """Time between the starts of two saves, if the interval is not set in steps."""
        if self.settings.interval_min is not None:
            return timedelta(minutes=self.settings.interval_min)
        between_failures = timedelta(hours=self.settings.mtbf_hours)
        if self.known is None:
            return _SHORTEST
        return max(compute_young_interval(self.known.stall, between_failures), self.known.duration / WRITING)

    @property
    def is_set_by_user(self) -> bool:
        """Whether the user has set how often to save."""
        return not (self.settings.interval_steps is None and self.settings.interval_min is None)


_PROVING_STEPS = 3
"""Steps after which a restored checkpoint counts as good; one that kills its run does so early."""


def open_checkpointer(
    folder: Path,
    configured: Checkpoint,
    *,
    epoch: int,
    seed: int,
    layout: Layout,
    may_commit: Callable[[], bool],
) -> Checkpointer:
    """Return what saves into a folder and restores from it, as `Checkpointer` says; collective."""
    settings = CheckpointSettings(epoch=epoch, keep=configured.keep, seed=seed, layout=layout)
    shared = configured_checkpoint_dir(configured)
    return Checkpointer(folder, settings, may_commit=may_commit, shared=shared)


def owns_run(attempt_folder: Path, attempt: int, round_: int) -> bool:
    """Return whether no later attempt or round has begun: a cut-off node may wake up again.

    Raises OSError if that cannot be read.
    """
    if attempt == 0:
        return True
    if not is_latest_attempt(attempt_folder.parent, attempt):
        return False
    return is_latest_attempt(AttemptPaths(attempt_folder).rounds, round_)


@dataclass(slots=True, kw_only=True)
class StepCheckpoints:
    """The checkpoints of a step loop. All ranks make one at the same time and make the same calls.

    `patience` is how long a save with nothing after it is retried; `weights` is what to begin with;
    `at_save` is called for its next item at each save. `tell` and `warn` reach the agent.
    """

    checkpointer: Checkpointer
    objects: Mapping[str, Any]
    save_interval: SaveInterval
    logger: logging.Logger
    patience: timedelta = timedelta(seconds=60)
    weights: FirstWeights | None = None
    tell: Callable[[messages.Message], None] = lambda _message: None
    warn: Callable[[str], None] = lambda _text: None
    at_save: Iterator[None] = iter(())
    _saved_step: int | None = field(default=None, init=False)
    _prove_at: int | None = field(default=None, init=False)
    folder: Path | None = field(default=None, init=False)
    """Of the checkpoint that was restored."""
    _began: Position | None = field(default=None, init=False)

    def restore(self, start: Position) -> Position:
        """Load the newest good checkpoint; return where to begin, `start` if there is none.

        A second call only returns that again.
        """
        if self._began is None:
            self._began = self._load_newest(start)
        self.save_interval.restart_at_step(self._began.step)
        return self._began

    def begin_at(self, position: Position) -> None:
        """Begin there instead: the state of others was restored, with more about its position."""
        self._began = position

    def _load_newest(self, start: Position) -> Position:
        restored = self.checkpointer.restore(
            self.objects, lambda name, others: self.tell(messages.Restoring(checkpoint=name, others=others))
        )
        if restored is None and self.weights is not None:
            self._load_and_log_initial_weights(self.weights)
        return start if restored is None else self._log_restored_checkpoint(restored)

    def _load_and_log_initial_weights(self, first: FirstWeights) -> None:
        models = [model for model in self.objects.values() if isinstance(model, nn.Module)]
        loaded = first.loaded if first.is_loaded_into(models) else None
        loaded = loaded or self.checkpointer.load_initial_weights(self.objects, first.weights)
        self.logger.info("began with weights=%s tensors=%d", loaded.path, loaded.tensors)
        if left_out := loaded.describe_left_out():
            self.warn(f"began with the weights of {loaded.path}, without {left_out}")

    def _log_restored_checkpoint(self, restored: LoadedCheckpoint) -> Position:
        for rejected in restored.rejected:
            self.logger.warning("skipped a checkpoint: %s", rejected)
        self.logger.info(
            "restored step=%d from=%s attempt=%d world_size=%d",
            restored.step,
            restored.folder.name,
            restored.epoch,
            restored.layout.world_size,
        )
        self.folder = restored.folder
        self._saved_step, self._prove_at = restored.step, restored.step + _PROVING_STEPS
        return Position(step=restored.step, samples=restored.samples, batches=restored.batches)

    def is_save_due(self, step: int) -> bool:
        """Return whether this rank would save before this step; also record progress."""
        if self._prove_at is not None and step >= self._prove_at:
            self.checkpointer.record_progress()
            self._prove_at = None
        self._report_save_outcome(self.checkpointer.poll_background_save())
        return self.save_interval.is_due(step) and not self.checkpointer.is_saving

    def save(
        self, position: Position, *, wait: bool, patience: timedelta | None = None, within_step: bool = False
    ) -> None:
        """Save what the ranks agreed to save, unless this step is already saved.

        With `wait` it is the last save; `within_step`: the state is not that at the boundary before
        its step, but a later one. Raises UnsavedStateError if it fails for the whole of the
        patience, which may be shorter than usual.
        """
        if wait:
            self.wait_for_save()
        if self._saved_step == position.step and not within_step:
            return
        next(self.at_save, None)
        begun = time.monotonic()
        outcome = self.checkpointer.save(
            self.objects,
            position.step,
            position.samples,
            batches=position.batches,
            wait=wait,
            patience=min(patience or self.patience, self.patience) if wait else None,
        )
        self.logger.info("saving step=%d stall_s=%.3f", position.step, time.monotonic() - begun)
        self.save_interval.restart_at_step(position.step)
        self._report_save_outcome(outcome)

    def has_saved_step(self, step: int) -> bool:
        """Return whether the state before this step is in a committed checkpoint."""
        return self._saved_step == step

    def record_orderly_leave(self) -> None:
        """Record that the loop was left in order; this end does not count against a checkpoint."""
        self.checkpointer.record_orderly_leave()

    def wait_for_save(self) -> None:
        """Wait for the save in flight; if it failed, the next save makes up for it."""
        try:
            self._report_save_outcome(self.checkpointer.wait_for_save())
        except (FencedError, StateError):
            raise
        except CheckpointError as error:
            self.logger.warning("an earlier save failed: %s", error.message)

    def _report_save_outcome(self, outcome: SaveOutcome | None) -> None:
        if outcome is None:
            return
        self.save_interval.known = SaveCost(stall=outcome.stall, duration=outcome.duration)
        if outcome.warning:
            self.warn(f"checkpoint of step {outcome.step}: {outcome.warning}")
            self.logger.warning("step=%d: %s", outcome.step, outcome.warning)
        if outcome.committed:
            self._saved_step = outcome.step
            stall_s, duration_s = outcome.stall.total_seconds(), outcome.duration.total_seconds()
            self.tell(
                messages.Saved(step=outcome.step, size=outcome.size, stall_s=stall_s, duration_s=duration_s)
            )
            words, interval = "", self.save_interval.interval
            if not self.save_interval.is_set_by_user:
                writing = outcome.duration / interval
                words = f" next_in_s={interval.total_seconds():.0f} writing={writing:.1%}"
            told = "saved step=%d bytes=%d stall_s=%.3f duration_s=%.3f%s"
            self.logger.info(told, outcome.step, outcome.size, stall_s, duration_s, words)

    def close(self) -> None:
        """Wait for the save in flight; raises what it raised."""
        self._report_save_outcome(self.checkpointer.close())
