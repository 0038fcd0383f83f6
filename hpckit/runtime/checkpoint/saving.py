"""One save: write on all ranks, then commit on one.

Handles the order of steps and disk errors. All ranks agree on every step before the next one, so
that a failure anywhere leaves a folder without a manifest, never a manifest over missing files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from hpckit.errors import FullDiskError, UnsavedStateError
from hpckit.model.parallel.layout import Layout
from hpckit.runtime.checkpoint import journal, manifest, storage
from hpckit.runtime.checkpoint.errors import CheckpointError
from hpckit.runtime.checkpoint.folder import CheckpointFolder
from hpckit.runtime.checkpoint.group import Group, Problem, ProblemKind, find_main_problem
from hpckit.runtime.checkpoint.manifest import FileSum, Manifest
from hpckit.runtime.checkpoint.state import StateCapture
from hpckit.runtime.clock import now
from hpckit.values import dataclass, field

_HOPELESS = frozenset({ProblemKind.fenced, ProblemKind.state})
"""Problems that another try does not fix."""
_PASSING = frozenset({ProblemKind.full, ProblemKind.away})
"""Problems that do not end a run with steps left: the next save may succeed."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOutcome:
    """The outcome of a save. If not `committed`, the disk refused, and the run may continue.

    `size` is in bytes; `stall` is how long training waited, `duration` how long the save took;
    `warning` is a message for the user.
    """

    committed: bool
    step: int
    folder: Path | None = None
    size: int = 0
    stall: timedelta = timedelta()
    duration: timedelta = timedelta()
    warning: str = ""


@dataclass(slots=True, kw_only=True)
class Saver:
    """Saves captures of the state into the folder of a run's checkpoints."""

    checkpoint_folder: CheckpointFolder
    group: Group
    epoch: int
    keep: int
    may_commit: Callable[[], bool]
    layout: Layout
    found: frozenset[Path] = frozenset()
    write_more: Callable[[Path], None] | None = None
    """Called on all ranks: writes files of its own into the folder, such as a trainer's."""
    _serial: int = field(default=0)

    def save(self, capture: StateCapture, patience: timedelta | None = None) -> SaveOutcome:
        """Write and commit; collective. Raises CheckpointError or a subclass on all ranks.

        On a full disk, remove what retention allows and try once more. If that fails, or the file
        system is away, give up without an error. With `patience` it is a run's last save: retry for
        this long, then raise UnsavedStateError.
        """
        begun = time.monotonic()
        tries = _pause_before_retries(patience)
        while True:
            outcome = self._try_save(capture, begun)
            if isinstance(outcome, SaveOutcome):
                return outcome
            if outcome.kind in _HOPELESS:
                raise outcome.to_error(f"the checkpoint of step {capture.step}")
            if outcome.kind is ProblemKind.full:
                self._prune_old_checkpoints(journal.FEWEST)
            if not self.group.call_on_first_rank(lambda: next(tries, False)).value:
                break
        if patience is not None:
            raise _unsaved_state_error(capture, outcome, patience)
        if outcome.kind not in _PASSING:
            raise outcome.to_error(f"the checkpoint of step {capture.step}")
        return _failed_save_outcome(capture, outcome, timedelta(seconds=time.monotonic() - begun))

    def _try_save(self, capture: StateCapture, begun: float) -> SaveOutcome | Problem:
        made = self.group.call_on_first_rank(
            lambda: self.checkpoint_folder.make_save_folder(capture.step, self.epoch)
        )
        if made.problem is not None:
            return made.problem
        folder = made.value_or_raise("making the folder")
        outcome = self._write_and_commit(folder, capture, begun)
        if isinstance(outcome, Problem):
            self.group.call_on_first_rank(lambda: _remove_failed_save(folder))
            self.found |= {folder}  # for whatever is left of it, once the disk answers again
        return outcome

    def _write_and_commit(self, folder: Path, capture: StateCapture, begun: float) -> SaveOutcome | Problem:
        parts = self.group.call_on_every_rank(lambda: self._write_own_tensors(folder, capture))
        problem = find_main_problem(parts)
        if problem is not None:
            return problem
        files = {name: one for part in parts if part.value for name, one in part.value.items()}
        if self.write_more is not None:
            more = self._write_more_files(folder, self.write_more, frozenset(files))
            if isinstance(more, Problem):
                return more
            files |= more
        committed = self.group.call_on_first_rank(lambda: self._commit_checkpoint(folder, capture, files))
        if committed.problem is not None:
            return committed.problem
        return SaveOutcome(
            committed=True,
            step=capture.step,
            folder=folder,
            size=sum(file.size for file in files.values()),
            duration=timedelta(seconds=time.monotonic() - begun),
            warning=self._prune_old_checkpoints(self.keep),
        )

    def _write_own_tensors(self, folder: Path, capture: StateCapture) -> dict[str, FileSum]:
        names, sums = storage.write_tensors(folder, capture, self.group)
        rank = self.group.rank
        expected = {name for name in names if name.startswith(f"__{rank}_")}
        expected |= {".metadata"} if rank == 0 else set()
        if expected != set(sums):
            wrote = f"rank {rank} wrote {sorted(sums)}"
            raise CheckpointError(f"{wrote}; torch names {sorted(expected)}")
        return sums

    def _write_more_files(
        self, folder: Path, write: Callable[[Path], None], known: frozenset[str]
    ) -> dict[str, FileSum] | Problem:
        """Let others write into the folder; each rank then syncs and reads its share of their files."""
        problem = find_main_problem(self.group.call_on_every_rank(lambda: write(folder)))
        if problem is not None:
            return problem
        found = self.group.call_on_first_rank(lambda: _list_files_below(folder))
        if found.problem is not None:
            return found.problem
        names = [name for name in found.value or () if name not in known]
        mine = names[self.group.rank :: self.group.size]
        parts = self.group.call_on_every_rank(
            lambda: {name: manifest.sync_and_checksum_file(folder / name) for name in mine}
        )
        problem = find_main_problem(parts)
        return problem or {name: one for part in parts if part.value for name, one in part.value.items()}

    def _commit_checkpoint(self, folder: Path, capture: StateCapture, files: dict[str, FileSum]) -> None:
        kept = [entry.manifest.serial for entry in self.checkpoint_folder.list_entries() if entry.manifest]
        self._serial = max([self._serial, *kept]) + 1
        record = Manifest(
            step=capture.step,
            samples=capture.position.samples,
            batches=capture.position.batches,
            epoch=self.epoch,
            serial=self._serial,
            layout=self.layout,
            objects=capture.objects,
            models=capture.models,
            files=files,
            created_at=now().isoformat(timespec="milliseconds"),
        )
        manifest.commit_checkpoint(folder, record, self.may_commit)
        self.checkpoint_folder.remember_commit(folder, record)

    def _prune_old_checkpoints(self, keep: int) -> str:
        problem = self.group.call_on_first_rank(lambda: self._remove_superfluous(keep)).problem
        return f"older checkpoints could not be removed: {problem.text}" if problem else ""

    def _remove_superfluous(self, keep: int) -> None:
        if not self.may_commit():
            return
        entries = self.checkpoint_folder.list_entries()
        for torn in journal.find_abandoned_checkpoints(entries, self.epoch, self.found):
            self.checkpoint_folder.remove_checkpoint(torn.folder)
        history = journal.read_journal(self.checkpoint_folder.journal_path)
        for entry in journal.find_superfluous_checkpoints(entries, history, keep):
            self.checkpoint_folder.remove_checkpoint(entry.folder)


def _list_files_below(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def _remove_failed_save(folder: Path) -> None:
    if not (folder / manifest.NAME).exists():
        shutil.rmtree(folder, ignore_errors=True)


def _pause_before_retries(patience: timedelta | None) -> Iterator[bool]:
    """Yield True, after a pause, while another try is due; used on rank 0 only."""
    if patience is None:
        yield True
        return
    end, pause_s = time.monotonic() + patience.total_seconds(), _FIRST_PAUSE_S
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(pause_s, left))
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        yield True


def _unsaved_state_error(capture: StateCapture, problem: Problem, patience: timedelta) -> UnsavedStateError:
    kind = FullDiskError if problem.kind is ProblemKind.full else UnsavedStateError
    return kind(
        f"the last state, of step {capture.step}, could not be saved within "
        f"{patience.total_seconds():g} s: {problem.text} (rank {problem.rank})",
        hint="free some space, then `hpckit resume`: training continues from the newest checkpoint"
        if problem.kind is ProblemKind.full
        else problem.hint or "`hpckit resume` continues from the newest checkpoint",
    )


def _failed_save_outcome(capture: StateCapture, problem: Problem, duration: timedelta) -> SaveOutcome:
    full = problem.kind is ProblemKind.full
    why = "the disk is full" if full else "its file system does not respond correctly"
    return SaveOutcome(
        committed=False,
        step=capture.step,
        duration=duration,
        warning=(
            f"step {capture.step} was not saved, {why} ({problem.text} on rank {problem.rank}); "
            "earlier checkpoints are untouched and training continues"
        ),
    )
