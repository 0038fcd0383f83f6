"""Loading a checkpoint: one rank chooses, all verify, all load that one, or the next.

Chooses, records the choice in the journal and falls back. The loaded data only reaches the user's
objects after every rank has read all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hpckit.runtime.checkpoint import journal, manifest, rng, sharding, state, storage
from hpckit.runtime.checkpoint.errors import NoCheckpointError, StateError
from hpckit.runtime.checkpoint.folder import CheckpointEntry, CheckpointFolder
from hpckit.runtime.checkpoint.group import Group, Problem, first_problem
from hpckit.runtime.checkpoint.journal import CheckpointFate, CheckpointHistory
from hpckit.runtime.checkpoint.manifest import Manifest

OnAttempt = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedCheckpoint:
    """A checkpoint that was passed over, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """What was loaded.

    `world_size` is that of the save; if it differs from the current one, the generators were
    `reseeded`. `rejected` are the newer checkpoints that were passed over, newest first.
    `last_resort`: loading this one was never followed by progress, but there is no other.
    """

    step: int
    samples: int
    folder: Path
    epoch: int
    world_size: int
    reseeded: bool
    last_resort: bool
    rejected: tuple[RejectedCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """Folders newest first; those to try, in this order; reasons against the rest, by name."""

    entries: tuple[CheckpointEntry, ...]
    candidates: tuple[tuple[CheckpointEntry, Manifest], ...]
    fatal: frozenset[str]
    reasons: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """Loads from the folder of a run's checkpoints."""

    checkpoint_folder: CheckpointFolder
    group: Group
    epoch: int
    seed: int

    def load(self, objects: Mapping[str, Any], on_attempt: OnAttempt) -> LoadedCheckpoint | None:
        """Load the newest checkpoint that can be loaded; collective; None if there is none.

        On rank 0, `on_attempt` is called before each load with the checkpoint's name and the number
        of remaining checkpoints that no run has died of.

        Raises StateError if the objects are not those that were saved, NoCheckpointError if there
        are committed checkpoints and none can be loaded.
        """
        choice = self.group.first(self._choose).result(f"listing {self.checkpoint_folder.folder}")
        for place, (entry, record) in enumerate(choice.candidates):
            others = [one for one, _ in choice.candidates[place + 1 :]]
            left = sum(one.name not in choice.fatal for one in others)
            attempting = partial(on_attempt, entry.name, left)
            problem = self._load(entry, record, objects, attempting)
            if problem is None:
                return self._restored(entry, record, choice)
            choice.reasons[entry.name] = problem
        if all(one.torn for one in choice.entries):
            return None
        raise _none_left(self.checkpoint_folder.folder, choice)

    def prove(self, folder: Path) -> None:
        """Record that training continued from this checkpoint."""
        if self.group.rank == 0:
            journal.record(
                self.checkpoint_folder.journal, CheckpointFate.proved, folder.name, epoch=self.epoch
            )

    def excuse(self, folder: Path) -> None:
        """Record that the ranks left in order before it was known whether training continues."""
        if self.group.rank == 0:
            journal.record(
                self.checkpoint_folder.journal, CheckpointFate.left, folder.name, epoch=self.epoch
            )

    def _choose(self) -> _Choice:
        history = journal.read_journal(self.checkpoint_folder.journal)
        entries = self.checkpoint_folder.entries()
        fatal = frozenset(one.name for one in entries if history.fatal(one.name))
        whole = [(one, one.manifest) for one in entries if one.manifest is not None]
        candidates = sorted(whole, key=lambda pair: pair[0].name in fatal)  # stable: newest first
        reasons = {
            one.name: _why_not(one, history)
            for one in entries
            if one.manifest is None or one.name in fatal
        }
        return _Choice(tuple(entries), tuple(candidates), fatal, reasons)

    def _load(
        self,
        entry: CheckpointEntry,
        record: Manifest,
        objects: Mapping[str, Any],
        attempting: Callable[[], None],
    ) -> str | None:
        """Load one checkpoint; return the reason if that fails, None otherwise."""
        _check_names(objects, record)
        loading = _Loading(entry.folder, record, objects, self.group)
        verified = first_problem(self.group.each(loading.verify))
        if verified is not None:
            return self._reject(entry, verified, damaged=True)
        self.group.first(attempting)
        self.group.first(lambda: self._record(CheckpointFate.attempted, entry))
        for stage in (loading.prepare, loading.read, loading.give):
            problem = first_problem(self.group.each(stage))
            if problem is not None:
                return self._reject(entry, problem, damaged=False)
        if record.world_size == self.group.size:
            rng.give(loading.states[state.rng_path(self.group.rank)])
        else:
            rng.reseed(self.seed, record.step)
        return None

    def _reject(self, entry: CheckpointEntry, problem: Problem, *, damaged: bool) -> str:
        reason = f"{problem.text} (rank {problem.rank})"
        if damaged:
            self.group.first(lambda: self._record(CheckpointFate.rejected, entry, reason))
        return reason

    def _record(self, fate: CheckpointFate, entry: CheckpointEntry, reason: str = "") -> None:
        journal.record(
            self.checkpoint_folder.journal, fate, entry.name, epoch=self.epoch, reason=reason
        )

    def _restored(
        self, entry: CheckpointEntry, record: Manifest, choice: _Choice
    ) -> LoadedCheckpoint:
        return LoadedCheckpoint(
            step=record.step,
            samples=record.samples,
            folder=entry.folder,
            epoch=record.epoch,
            world_size=record.world_size,
            reseeded=record.world_size != self.group.size,
            last_resort=entry.name in choice.fatal,
            rejected=_rejected(choice, entry),
        )


@dataclass(slots=True)
class _Loading:
    """The stages of loading one checkpoint; every rank ends one before any begins the next."""

    folder: Path
    record: Manifest
    objects: Mapping[str, Any]
    group: Group
    tensors: dict[str, Any] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)

    def verify(self) -> None:
        """Check this rank's share of the files."""
        sizes = {name: one.size for name, one in self.record.files.items()}
        owners = sharding.assign_shares(sizes, self.group.size)
        mine = [name for name in sizes if owners[name] == self.group.rank]
        manifest.check_content(self.folder, self.record, mine)

    def prepare(self) -> None:
        """Allocate the tensors that this rank needs."""
        paths = self._paths()
        self.tensors = storage.prepare_tensors(
            self.folder, partial(state.below, paths), partial(state.like, self.objects)
        )

    def read(self) -> None:
        """Read the data into these tensors, apart from the user's objects."""
        storage.read_tensors(self.folder, self.tensors, self.group)
        self.states = state.rebuild(self._paths(), self.tensors)

    def give(self) -> None:
        """Load the data into the user's objects."""
        for name, value in self.objects.items():
            state.load_into(value, self.states[name])

    def _paths(self) -> list[str]:
        same = self.record.world_size == self.group.size
        return [*self.objects, *([state.rng_path(self.group.rank)] if same else [])]


def _why_not(entry: CheckpointEntry, history: CheckpointHistory) -> str:
    if entry.torn:
        return "it was never committed"
    attempts = history.attempts[entry.name]
    return entry.damage or f"it was loaded {attempts} times and training never continued"


def _rejected(choice: _Choice, loaded: CheckpointEntry) -> tuple[RejectedCheckpoint, ...]:
    return tuple(
        RejectedCheckpoint(name=one.name, reason=choice.reasons[one.name])
        for one in choice.entries
        if one.order > loaded.order and one.name in choice.reasons
    )


def _check_names(objects: Mapping[str, Any], record: Manifest) -> None:
    if set(objects) != set(record.objects):
        raise StateError(
            f"the checkpoint of step {record.step} holds {_names(record.objects)}; registered "
            f"are {_names(objects)}",
            hint="register what the run was begun with, or begin a new run",
        )


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _none_left(folder: Path, choice: _Choice) -> NoCheckpointError:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in choice.reasons.items())
    return NoCheckpointError(
        f"none of the checkpoints in {folder} can be loaded: {reasons}",
        hint="move them away to start the run from the beginning",
    )
