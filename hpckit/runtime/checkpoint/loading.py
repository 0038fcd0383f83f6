"""Loading a checkpoint: one rank chooses, all verify, all load that one, or the next.

Chooses, records the choice in the journal and falls back. The loaded data only reaches the user's
objects after every rank has read all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from hpckit.model.parallel.layout import Layout
from hpckit.runtime import generators
from hpckit.runtime.checkpoint import journal, manifest, placement, state, storage
from hpckit.runtime.checkpoint.errors import CheckpointError, NoCheckpointError, RefusedStateError, StateError
from hpckit.runtime.checkpoint.folder import CheckpointEntry, CheckpointFolder
from hpckit.runtime.checkpoint.group import Group, Problem, ProblemKind, find_main_problem
from hpckit.runtime.checkpoint.journal import CheckpointFate, CheckpointHistory
from hpckit.runtime.checkpoint.manifest import Manifest
from hpckit.runtime.checkpoint.model_state import TiedNames, name_parameters
from hpckit.runtime.checkpoint.placement import ModelTensors, Placements
from hpckit.runtime.checkpoint.readers import ReadingContext, SavedTensors, StateReader, make_state_reader
from hpckit.values import dataclass, field

_log = logging.getLogger("hpckit.rank")

OnAttempt = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedCheckpoint:
    """A checkpoint that was passed over, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """What was loaded.

    `layout` is that of the save; if it differs from the current one, the generators were
    `reseeded`. `rejected` are the newer checkpoints that were passed over, newest first.
    `last_resort`: loading this one was never followed by progress, but there is no other.
    """

    step: int
    samples: int
    batches: Fraction
    folder: Path
    epoch: int
    layout: Layout
    reseeded: bool
    last_resort: bool
    rejected: tuple[RejectedCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """Folders newest first; those to try, in this order; reasons against the rest, by name.

    `refusals` are the problems of those that an object of the user's has refused.
    """

    entries: tuple[CheckpointEntry, ...]
    candidates: tuple[tuple[CheckpointEntry, Manifest], ...]
    fatal: frozenset[str]
    reasons: dict[str, str]
    refusals: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """Loads from the folder of a run's checkpoints."""

    checkpoint_folder: CheckpointFolder
    group: Group
    epoch: int
    seed: int
    layout: Layout

    def load_newest(
        self, objects: Mapping[str, Any], tied: TiedNames, on_attempt: OnAttempt
    ) -> LoadedCheckpoint | None:
        """Load the newest checkpoint that can be loaded; collective; None if there is none.

        On rank 0, `on_attempt` is called before each load with the checkpoint's name and the number
        of remaining checkpoints that no run has died of.

        Raises StateError if the objects are not those that were saved, NoCheckpointError if there
        are committed checkpoints and none can be loaded.
        """
        choice = self.group.call_on_first_rank(self._order_checkpoints_to_try).value_or_raise(
            f"listing {self.checkpoint_folder.folder}"
        )
        for place, (entry, record) in enumerate(choice.candidates):
            others = [one for one, _ in choice.candidates[place + 1 :]]
            left = sum(other.name not in choice.fatal for other in others)
            loading = _Loading(entry.folder, record, ModelTensors(objects, tied), self)
            problem = self._load_checkpoint(loading, partial(on_attempt, entry.name, left))
            if problem is None:
                return self._build_loaded_checkpoint(entry, record, choice)
            choice.reasons[entry.name] = _format_problem(problem)
            if problem.kind is ProblemKind.refused:
                choice.refusals.append(problem)
        if all(checkpoint.is_uncommitted for checkpoint in choice.entries):
            return None
        raise _no_checkpoint_error(self.checkpoint_folder.folder, choice)

    def record_fate(self, fate: CheckpointFate, name: str, reason: str = "") -> None:
        """Record on rank 0 what became of a checkpoint."""
        if self.group.rank == 0:
            journal.append_checkpoint_fate(
                self.checkpoint_folder.journal_path, fate, name, epoch=self.epoch, reason=reason
            )

    def _order_checkpoints_to_try(self) -> _Choice:
        history = journal.read_journal(self.checkpoint_folder.journal_path)
        entries = self.checkpoint_folder.list_entries()
        fatal = frozenset(entry.name for entry in entries if history.made_no_progress_after_load(entry.name))
        whole = [(entry, entry.manifest) for entry in entries if entry.manifest is not None]
        candidates = sorted(whole, key=lambda pair: pair[0].name in fatal)  # stable: newest first
        reasons = {
            entry.name: _explain_rejection(entry, history)
            for entry in entries
            if entry.manifest is None or entry.name in fatal
        }
        return _Choice(tuple(entries), tuple(candidates), fatal, reasons)

    def _load_checkpoint(self, loading: _Loading, attempting: Callable[[], None]) -> Problem | None:
        """Load one checkpoint; return the problem if that fails, None otherwise.

        Raises StateError if it does not have what the objects need: no older one has, either.
        """
        name, record = loading.folder.name, loading.record
        _check_same_objects_registered(loading.models.objects, record)
        verified = find_main_problem(self.group.call_on_every_rank(loading.verify_own_files))
        if verified is not None:
            self.group.call_on_first_rank(
                lambda: self.record_fate(CheckpointFate.rejected, name, _format_problem(verified))
            )
            return verified
        found = self._try_stage_on_every_rank(name, loading.prepare_readers)
        if found is None:
            orphans = loading.find_orphaned_names()
            found = self._try_stage_on_every_rank(
                name, lambda: loading.give_orphaned_names_to_readers(orphans)
            )
        if found is not None:
            return found
        self.group.call_on_first_rank(attempting)
        self.group.call_on_first_rank(lambda: self.record_fate(CheckpointFate.attempted, name))
        found = self._try_stage_on_every_rank(name, loading.read_tensors) or self._try_stage_on_every_rank(
            name, loading.load_into_objects
        )
        if found is None and record.layout != self.layout:
            # The same on every rank, as at the start of a run.
            generators.seed_all_generators(generators.derive_seed(self.seed, str(record.step)))
        return found

    def _try_stage_on_every_rank(self, name: str, stage: Callable[[], None]) -> Problem | None:
        problem = find_main_problem(self.group.call_on_every_rank(stage))
        if problem is not None and problem.kind is ProblemKind.state:
            raise problem.to_error(f"loading {name}")
        return problem

    def _build_loaded_checkpoint(
        self, entry: CheckpointEntry, record: Manifest, choice: _Choice
    ) -> LoadedCheckpoint:
        return LoadedCheckpoint(
            step=record.step,
            samples=record.samples,
            batches=record.batches,
            folder=entry.folder,
            epoch=record.epoch,
            layout=record.layout,
            reseeded=record.layout != self.layout,
            last_resort=entry.name in choice.fatal,
            rejected=tuple(
                RejectedCheckpoint(name=other.name, reason=choice.reasons[other.name])
                for other in choice.entries
                if other.age_sort_key > entry.age_sort_key and other.name in choice.reasons
            ),
        )


@dataclass(slots=True)
class _Loading:
    """The stages of loading one checkpoint; every rank ends one before any begins the next."""

    folder: Path
    record: Manifest
    models: ModelTensors
    loader: Loader
    readers: dict[str, StateReader] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def verify_own_files(self) -> None:
        """Check this rank's share of the files."""
        sizes = {name: one.size for name, one in self.record.files.items()}
        owners = placement.assign_keys_to_shares(sizes, self.loader.group.size)
        mine = [name for name in sizes if owners[name] == self.loader.group.rank]
        manifest.check_file_contents(self.folder, self.record, mine)

    def prepare_readers(self) -> None:
        """Compare what was saved with what this rank has; raises StateError if that lacks."""
        saved = storage.read_tensor_shapes(self.folder)
        paths = [*self.models.objects]
        if self.record.layout == self.loader.layout:  # after the objects: the generators still fit
            paths.append(state.generators_path_of_rank(self.loader.group.rank))
        keys = {path: state.find_skeleton_keys(path, saved) for path in paths}
        skeletons = storage.read_skeletons(self.folder, chain.from_iterable(keys.values()))
        context = self._build_reading_context(saved)
        for path, own in keys.items():
            parts = [skeletons[key] for key in own]
            value = self.models.objects.get(path, generators)
            self.readers[path] = make_state_reader(path, value, parts, context)

    def _build_reading_context(self, saved: SavedTensors) -> ReadingContext:
        rank, record, layout = self.loader.group.rank, self.record, self.loader.layout
        source = f"the checkpoint of step {record.step} ({record.layout})"
        return ReadingContext(
            saved=saved,
            names=name_parameters(self.models.objects, self.models.tied),
            placements=Placements(
                models=self.models,
                same_layout=record.layout == layout,
                cut=not layout.is_data_parallel,
                source=source,
            ),
            where=layout.describe_shared_coordinates(rank) or f"rank {rank}",
            source=source,
        )

    def find_orphaned_names(self) -> dict[str, list[str]]:
        """Return the saved names that no rank has, by object; collective."""
        shared = {path: one.saved_names() for path, one in self.readers.items()}
        own = {path: one.own_names() for path, one in self.readers.items()}
        flat = [(path, name) for path, names in shared.items() for name in names]
        claimed = self.loader.group.any_over_ranks([name in own[path] for path, name in flat])
        found: dict[str, list[str]] = {path: [] for path in self.readers}
        for (path, name), one in zip(flat, claimed, strict=True):
            if not one:
                found[path].append(name)
        return found

    def give_orphaned_names_to_readers(self, orphans: Mapping[str, Sequence[str]]) -> None:
        """Tell the readers which names no rank has; raises StateError if one must not lose them."""
        for path, reader in self.readers.items():
            reader.prepare_for_orphaned_names(orphans[path])

    def read_tensors(self) -> None:
        """Read the data into tensors, apart from the user's objects."""
        for reader in self.readers.values():
            self.tensors |= reader.make_empty_tensors()
        storage.read_into_tensors(self.folder, self.tensors)

    def load_into_objects(self) -> None:
        """Load the data into the user's objects, then set the generators.

        Raises RefusedStateError if one raises an error.
        """
        for path, reader in self.readers.items():
            try:
                reader.load_into_object(self.tensors)
            except CheckpointError:
                raise
            except Exception as error:
                _log.warning("%s raised an error when it was given its state", path, exc_info=True)
                raise _refused_state_error(path, error) from error


def _format_problem(problem: Problem) -> str:
    return f"{problem.text} (rank {problem.rank})"


def _explain_rejection(entry: CheckpointEntry, history: CheckpointHistory) -> str:
    if entry.is_uncommitted:
        return "it was never committed"
    attempts = history.attempts[entry.name]
    return entry.damage or f"it was loaded {attempts} times and training never continued"


def _check_same_objects_registered(objects: Mapping[str, Any], record: Manifest) -> None:
    if set(objects) != set(record.objects):
        raise StateError(
            f"the checkpoint of step {record.step} holds {_format_names(record.objects)}; "
            f"registered are {_format_names(objects)}",
            hint="register the same objects as when the run began, or begin a new run",
        )


def _refused_state_error(path: str, error: Exception) -> RefusedStateError:
    return RefusedStateError(
        f"{path} refused its state in load_state_dict: {type(error).__name__}: {error}",
        hint="the checkpoint is intact: leave it where it is. The cause is the load_state_dict of "
        f"{path}, which must accept what its state_dict returned for the save",
    )


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _no_checkpoint_error(folder: Path, choice: _Choice) -> NoCheckpointError:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in choice.reasons.items())
    return NoCheckpointError(
        f"none of the checkpoints in {folder} can be loaded: {reasons}",
        hint=choice.refusals[0].hint
        if choice.refusals
        else "move them away to start the run from the beginning",
    )
