"""The checkpoint interface of a run: restore, save, prove, close.

Keeps at most one save in flight and reports its outcome; when to save is decided elsewhere.
docs/reference/checkpoints.md describes the layout on disk and the guarantees.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import staging
from torch.distributed.checkpoint.api import CheckpointException

from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.sample_order import Position
from hpckit.runtime.checkpoint import model_state
from hpckit.runtime.checkpoint.folder import CheckpointFolder
from hpckit.runtime.checkpoint.group import Group
from hpckit.runtime.checkpoint.initial_weights import InitialWeights, LoadedWeights, load_weights
from hpckit.runtime.checkpoint.journal import FEWEST, CheckpointFate
from hpckit.runtime.checkpoint.loading import LoadedCheckpoint, Loader, OnAttempt
from hpckit.runtime.checkpoint.model_state import TiedNames
from hpckit.runtime.checkpoint.placement import TensorPiece
from hpckit.runtime.checkpoint.saving import SaveOutcome, Saver
from hpckit.runtime.checkpoint.state import StateCapture, StateCapturer
from hpckit.runtime.threads import WriterThread
from hpckit.values import dataclass, replace

_COMPARISONS = 2
"""Saves that look whether ranks have the same copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """How a run's checkpoints are kept.

    `epoch` is the number of the attempt; `keep` how many checkpoints stay, at least two; `seed`
    seeds the generators if the layout has changed. `layout` has the ranks of the run on its axes;
    None if all of them are replicas. `timeout` ends the wait for a silent rank. A timeout breaks
    the group for good, so it is long: a file system may hang for longer than any step may.
    """

    epoch: int = 0
    keep: int = 3
    seed: int = 0
    layout: Layout | None = None
    timeout: timedelta = timedelta(days=1)

    def __post_init__(self) -> None:
        if self.keep < FEWEST:
            raise ValueError(f"keep={self.keep}; allowed are {FEWEST} checkpoints or more")


class Checkpointer:
    """The checkpoints of one run. All ranks make one at the same time and make the same calls.

    `may_commit` is called on rank 0 right before a commit: does this attempt still own the run?
    `shared` is the folder above that others may write to, if it is not the parent.
    """

    def __init__(
        self,
        folder: Path,
        settings: CheckpointSettings,
        *,
        may_commit: Callable[[], bool] = lambda: True,
        shared: Path | None = None,
    ) -> None:
        self._group = Group(settings.timeout)
        layout = settings.layout or Layout(replicate=self._group.size)
        if layout.world_size != self._group.size:
            raise ValueError(f"the layout {layout} does not have {self._group.size} ranks")
        checkpoint_folder = CheckpointFolder(folder, shared)
        entries = checkpoint_folder.list_entries() if self._group.rank == 0 else []
        self._capturer = StateCapturer(self._group, layout)
        self._saver = Saver(
            checkpoint_folder=checkpoint_folder,
            group=self._group,
            epoch=settings.epoch,
            keep=settings.keep,
            may_commit=may_commit,
            layout=layout,
            found=frozenset(entry.folder for entry in entries),
        )
        self._loader = Loader(
            checkpoint_folder=checkpoint_folder,
            group=self._group,
            epoch=settings.epoch,
            seed=settings.seed,
            layout=layout,
        )
        self._stager = Stager()
        self._flight: Future[SaveOutcome] | None = None
        self._stall = timedelta()
        self._restored: LoadedCheckpoint | None = None
        several = layout.is_data_parallel and self._group.size > 1
        self._comparisons = _COMPARISONS if several else 0
        self._unlike = ""

    def tie(self, tied: TiedNames) -> None:
        """State which parameters of a model are one and the same, on all ranks alike.

        `tied` leads, for each model, from the name of a parameter to the name that it is stored
        under, such as `{model: {"head.weight": "embed.weight"}}`. Needed only where they are on
        different ranks; those that a rank has both of are recognised. It is read at each call.
        """
        self._capturer.tied = tied

    def let_write(self, write_more: Callable[[Path], None]) -> None:
        """Have each save call this with its folder, on all ranks, before it is committed.

        It may write files and call collectives; no save is in the background then.
        """
        self._saver.write_more = write_more

    def restore(
        self, objects: Mapping[str, Any], on_attempt: OnAttempt = lambda _name, _others: None
    ) -> LoadedCheckpoint | None:
        """Load the newest checkpoint that can be loaded into the objects, and the generators.

        Collective. On rank 0, `on_attempt` is called before each load with the checkpoint's name and the
        number of remaining checkpoints that no run has died of. Returns None if nothing was ever committed.
        Raises StateError if the objects are not those that were saved, NoCheckpointError if every committed
        checkpoint is damaged or refused by an object, and what a background save raised.
        """
        self.wait_for_save()
        self._restored = self._loader.load_newest(objects, self._capturer.tied, on_attempt)
        return self._restored

    def load_initial_weights(self, objects: Mapping[str, Any], weights: InitialWeights) -> LoadedWeights:
        """Load a file of weights into the models among the objects, as `load_weights` says."""
        return load_weights(weights, objects, self._capturer.tied, self._group)

    def save(
        self,
        objects: Mapping[str, Any],
        step: int,
        samples: int,
        *,
        wait: bool,
        batches: Fraction | None = None,
        patience: timedelta | None = None,
    ) -> SaveOutcome | None:
        """Save the objects and the generators at a step boundary; collective.

        With `wait`, the checkpoint is committed on return, and its outcome is returned. Without
        `wait`, the state is copied and written in the background, and the outcome of the previous
        save is returned, unless it was returned before; a save that is still in flight is waited
        for first. `patience`, with `wait`, is for a run's last state: failures are retried for this
        long. `batches` counts those of the size that was asked for; as many as steps, if not given.

        Raises StateError, FencedError or CheckpointError, from this save or the previous one, and
        UnsavedStateError when the patience is over.
        """
        begun = time.monotonic()
        before = self.wait_for_save()
        done = Fraction(step) if batches is None else batches
        position = Position(step=step, samples=samples, batches=done)
        taken = self._capturer.capture_own_share(objects, position)
        self._compare_model_copies(objects)
        if wait or self._saver.write_more is not None:
            outcome = self._saver.save(taken, patience)
            return self._add_stall_and_warning(outcome, timedelta(seconds=time.monotonic() - begun))
        self._flight = self._save_in_background(self._stager.copy_to_cpu(taken))
        self._stall = timedelta(seconds=time.monotonic() - begun)
        return before

    def poll_background_save(self) -> SaveOutcome | None:
        """Return the outcome of the background save once there is one; raises what it raised.

        Not collective: ranks may get an outcome at different steps.
        """
        if self._flight is None or not self._flight.done():
            return None
        return self.wait_for_save()

    def wait_for_save(self) -> SaveOutcome | None:
        """Wait for the background save; return its outcome, or raise what it raised."""
        flight, self._flight = self._flight, None
        if flight is None:
            return None
        return self._add_stall_and_warning(flight.result(), self._stall)

    def _compare_model_copies(self, objects: Mapping[str, Any]) -> None:
        if not self._comparisons:
            return
        self._comparisons -= 1
        digests = self._group.call_on_every_rank(lambda: model_state.digest_model_copies(objects))
        self._unlike = model_state.explain_differing_model_copies([digest.value or {} for digest in digests])
        if self._unlike:
            self._comparisons = 0

    def _add_stall_and_warning(self, outcome: SaveOutcome, stall: timedelta) -> SaveOutcome:
        words, self._unlike = filter(None, (outcome.warning, self._unlike)), ""
        return replace(outcome, stall=stall, warning="; ".join(words))

    @property
    def is_saving(self) -> bool:
        """Whether a background save is still in flight."""
        return self._flight is not None and not self._flight.done()

    def record_progress(self) -> None:
        """Record that training continued from the restored checkpoint; later calls do nothing."""
        self._record_fate_of_restored(CheckpointFate.proved)

    def record_orderly_leave(self) -> None:
        """Record that the run left in order, unless the restored checkpoint was proved before."""
        self._record_fate_of_restored(CheckpointFate.left)

    def _record_fate_of_restored(self, fate: CheckpointFate) -> None:
        if self._restored is not None:
            self._loader.record_fate(fate, self._restored.folder.name)
        self._restored = None

    def close(self) -> SaveOutcome | None:
        """Wait for the background save and release everything; raises what the save raised."""
        try:
            return self.wait_for_save()
        finally:
            self._stager.release_buffers()
            self._group.close()

    def _save_in_background(self, taken: StateCapture) -> Future[SaveOutcome]:
        future: Future[SaveOutcome] = Future()

        def save() -> None:
            try:
                future.set_result(self._saver.save(taken))
            except (Exception, CheckpointException) as error:  # noqa: BLE001  # raised again by wait()
                future.set_exception(error)

        # A daemon: a rank whose peers are gone must be able to end without waiting for them.
        WriterThread(target=save, name=f"checkpoint-{taken.step}", daemon=True).start()
        return future


class Stager:
    """Copies live tensors to the CPU, so that training continues while they are written.

    At most one set at a time: the next copy reuses the buffers, whose first use costs five times
    the copy itself (page faults; 256 MiB per rank: 218 ms, then 43 ms).
    """

    def __init__(self) -> None:
        self._stager: Any = None
        self._buffers: dict[tuple[str, int], torch.Tensor] = {}

    def copy_to_cpu(self, taken: StateCapture) -> StateCapture:
        """Return the same capture with copies that later changes of the originals do not affect."""
        if self._stager is None:
            self._stager = _make_torch_stager()
        pieces = tuple(replace(piece, tensor=self._copy_tensor_piece(piece)) for piece in taken.pieces)
        tensors = self._copy_whole_tensors(dict(taken.tensors))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return replace(taken, tensors=tensors, pieces=pieces)

    def _copy_whole_tensors(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Copy whole tensors by torch's stager.

        In torch 2.11 and 2.12 it closes itself after its first copy, and the next one is a KeyError
        before anything is copied: there, each copy has a new one, and new buffers.
        """
        try:
            return dict(self._stager.stage(tensors))
        except KeyError:
            self._stager = _make_torch_stager()
            return dict(self._stager.stage(tensors))

    def _copy_tensor_piece(self, piece: TensorPiece) -> torch.Tensor:
        rows, at = piece.tensor, (piece.key, piece.start)
        buffer = self._buffers.get(at)
        if buffer is None or buffer.shape != rows.shape or buffer.dtype != rows.dtype:
            buffer = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=rows.is_cuda)
            self._buffers[at] = buffer
        return buffer.copy_(rows, non_blocking=rows.is_cuda)

    def release_buffers(self) -> None:
        """Release the buffers."""
        if self._stager is not None:
            self._stager.close()
        self._stager = None
        self._buffers.clear()


def _make_torch_stager() -> Any:
    cuda = torch.cuda.is_available()
    options = staging.StagingOptions(
        use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda
    )
    return staging.DefaultStager(options)
