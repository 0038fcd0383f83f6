"""One save: write on all ranks, then commit on one.

Responsible for the order of things and for a full disk; it must not take the state or choose what
is loaded. Every step is agreed on by all ranks before the next one, so that a failure anywhere
leaves a folder without a manifest, never a manifest over missing files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from hpckit.runtime.checkpoint import journal, manifest, retention, storage
from hpckit.runtime.checkpoint.errors import CheckpointError, StateError
from hpckit.runtime.checkpoint.group import Group, Problem, ProblemKind, first_problem
from hpckit.runtime.checkpoint.manifest import FileSum, Manifest
from hpckit.runtime.checkpoint.shelf import Shelf
from hpckit.runtime.checkpoint.state import Capture
from hpckit.runtime.clock import now


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOutcome:
    """What a save came to. Not `committed` means: the disk was full, and the run may go on.

    `size` in bytes; `stall` is how long training waited, `duration` how long until the commit;
    `removed` names the checkpoints that were let go; `warning` what a person should know.
    """

    committed: bool
    step: int
    samples: int
    folder: Path | None = None
    size: int = 0
    stall: timedelta = timedelta()
    duration: timedelta = timedelta()
    removed: tuple[str, ...] = ()
    warning: str = ""


@dataclass(slots=True, kw_only=True)
class Saver:
    """Saves captures of the state into the folder of a run's checkpoints."""

    shelf: Shelf
    group: Group
    epoch: int
    keep: int
    may_commit: Callable[[], bool]
    found: frozenset[Path] = frozenset()
    _serial: int = field(default=0)

    def save(self, capture: Capture) -> SaveOutcome:
        """Write and commit; collective. Raises CheckpointError, its kinds included, on all ranks.

        On a full disk what retention allows is removed and the save tried once more; then it is
        given up without an error.
        """
        begun = time.monotonic()
        first = self._try(capture, begun)
        if isinstance(first, SaveOutcome):
            return first
        if first.kind is not ProblemKind.full:
            raise first.error(f"the checkpoint of step {capture.step}")
        removed = self._prune(retention.FEWEST)[0]
        second = self._try(capture, begun)
        if isinstance(second, SaveOutcome):
            return replace(second, removed=removed + second.removed)
        if second.kind is not ProblemKind.full:
            raise second.error(f"the checkpoint of step {capture.step}")
        return _given_up(capture, second, removed)

    def _try(self, capture: Capture, begun: float) -> SaveOutcome | Problem:
        made = self.group.first(lambda: self.shelf.new(capture.step, self.epoch))
        if made.problem is not None:
            return made.problem
        folder = made.result("making the folder")
        outcome = self._write(folder, capture, begun)
        if isinstance(outcome, Problem):
            self.group.first(lambda: _remove_torn(folder))
        return outcome

    def _write(self, folder: Path, capture: Capture, begun: float) -> SaveOutcome | Problem:
        layouts = self.group.gather(capture.layout)
        if len(set(layouts)) > 1:
            return _unlike(layouts)
        parts = self.group.each(lambda: self._write_own(folder, capture))
        problem = first_problem(parts)
        if problem is not None:
            return problem
        files = {name: one for part in parts if part.value for name, one in part.value.items()}
        committed = self.group.first(lambda: self._commit(folder, capture, files))
        if committed.problem is not None:
            return committed.problem
        duration = timedelta(seconds=time.monotonic() - begun)
        removed, warning = self._prune(self.keep)
        return SaveOutcome(
            committed=True,
            step=capture.step,
            samples=capture.samples,
            folder=folder,
            size=sum(one.size for one in files.values()),
            duration=duration,
            removed=removed,
            warning=warning,
        )

    def _write_own(self, folder: Path, capture: Capture) -> dict[str, FileSum]:
        written = storage.write(folder, capture, self.group)
        _check_own(written, self.group.rank)
        return written.sums

    def _commit(self, folder: Path, capture: Capture, files: dict[str, FileSum]) -> None:
        kept = [one.manifest.serial for one in self.shelf.entries() if one.manifest]
        self._serial = max([self._serial, *kept]) + 1
        record = Manifest(
            step=capture.step,
            samples=capture.samples,
            epoch=self.epoch,
            serial=self._serial,
            world_size=self.group.size,
            objects=capture.objects,
            files=files,
            created_at=now().isoformat(timespec="milliseconds"),
        )
        manifest.commit(folder, record, self.may_commit)

    def _prune(self, keep: int) -> tuple[tuple[str, ...], str]:
        """Let go of what retention allows; a failure is a warning."""
        part = self.group.first(lambda: self._remove_superfluous(keep))
        if part.value is not None:
            return part.value, ""
        text = part.problem.text if part.problem else ""
        return (), f"older checkpoints could not be removed: {text}"

    def _remove_superfluous(self, keep: int) -> tuple[str, ...]:
        if not self.may_commit():
            return ()
        entries = self.shelf.entries()
        for torn in retention.abandoned(entries, self.epoch, self.found):
            self.shelf.remove(torn.folder)
        history = journal.read(self.shelf.journal)
        spare = retention.superfluous(entries, history, keep)
        for entry in spare:
            self.shelf.remove(entry.folder)
        return tuple(entry.name for entry in spare)


def _check_own(written: storage.Written, rank: int) -> None:
    expected = {name for name in written.names if name.startswith(f"__{rank}_")}
    expected |= {".metadata"} if rank == 0 else set()
    if expected != set(written.sums):
        raise CheckpointError(
            f"rank {rank} wrote {sorted(written.sums)}; torch names {sorted(expected)}"
        )


def _remove_torn(folder: Path) -> None:
    """Remove what a failed save has left, unless it was committed after all."""
    if not (folder / manifest.NAME).exists():
        shutil.rmtree(folder, ignore_errors=True)


def _unlike(layouts: list[str]) -> Problem:
    rank = next(rank for rank, layout in enumerate(layouts) if layout != layouts[0])
    error = StateError(
        "the names, shapes or types of its tensors are not those of rank 0",
        hint="what is registered must be built alike on every rank; "
        "pipeline stages are not supported",
    )
    return Problem(rank=rank, kind=ProblemKind.state, text=error.message, hint=error.hint)


def _given_up(capture: Capture, problem: Problem, removed: tuple[str, ...]) -> SaveOutcome:
    return SaveOutcome(
        committed=False,
        step=capture.step,
        samples=capture.samples,
        removed=removed,
        warning=(
            f"step {capture.step} was not saved, the disk is full ({problem.text} on rank "
            f"{problem.rank}); the checkpoints there are untouched and training goes on"
        ),
    )
