"""The checkpoints of runs, and the steps at which a resume continues; reads no tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hpckit.errors import HpckitError, UsageError
from hpckit.model.states import RunState
from hpckit.operations.frozen_script import require_python
from hpckit.record.launches import Launch, checkpoint_base, checkpoint_folder, load_settings
from hpckit.record.lookup import Selection
from hpckit.report.checkpoints import CheckpointRow, CheckpointState
from hpckit.report.rows import RunRow
from hpckit.runtime.checkpoint import manifest
from hpckit.runtime.checkpoint.errors import CheckpointError
from hpckit.runtime.checkpoint.folder import CheckpointEntry, CheckpointFolder
from hpckit.runtime.checkpoint.journal import CheckpointHistory, read_journal
from hpckit.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheckpoints:
    """The checkpoints of a run, newest first, and what became of them."""

    run: str
    folder: Path
    entries: tuple[CheckpointEntry, ...]
    history: CheckpointHistory


def find_checkpoints(selection: Selection) -> Iterator[RunCheckpoints]:
    """Yield the checkpoints of the selected run, or of all runs of the launch.

    Raises UsageError if only their own processes know where they are, ForeignFolderError if the
    folder is not the user's.
    """
    indices = range(len(selection.launch.runs)) if selection.index is None else (selection.index,)
    for index in indices:
        yield _of_run(selection, index)


def one_run(selection: Selection) -> RunCheckpoints:
    """Return the checkpoints of the one run that is meant; raises UsageError if there are more."""
    runs = selection.launch.runs
    if selection.index is None and len(runs) > 1:
        raise UsageError(
            f"launch {selection.launch.id} has {len(runs)} runs",
            hint=f"name one, such as {runs[0].id}",
        )
    return _of_run(selection, selection.index or 0)


def _of_run(selection: Selection, index: int) -> RunCheckpoints:
    launch, run = selection.launch, selection.launch.runs[index].id
    settings, _ = load_settings(launch, index)
    folder = checkpoint_folder(launch, index, settings)
    if not folder.is_absolute():
        raise UsageError(
            f"checkpoint.dir={settings.checkpoint.dir} of run {run} is relative to wherever its "
            "own process was",
            hint="set checkpoint.dir to an absolute path in the next launch",
        )
    found = CheckpointFolder(folder, checkpoint_base(settings.checkpoint))
    entries = tuple(found.entries())
    return RunCheckpoints(
        run=run, folder=folder, entries=entries, history=read_journal(found.journal)
    )


def checkpoint_rows(found: RunCheckpoints) -> list[CheckpointRow]:
    """Return what there is to show of a run's checkpoints, newest first."""
    return [_row(found, entry) for entry in found.entries]


def _row(found: RunCheckpoints, entry: CheckpointEntry) -> CheckpointRow:
    record = entry.manifest
    return CheckpointRow(
        run=found.run,
        name=entry.name,
        folder=str(entry.folder),
        step=entry.step,
        attempt=entry.epoch,
        state=_state(found.history, entry),
        problem=entry.damage,
        samples=None if record is None else record.samples,
        size=None if record is None else record.size,
        layout=None if record is None else record.layout,
        objects=() if record is None else record.objects,
        saved_at=None if record is None else record.created_at,
    )


def _state(history: CheckpointHistory, entry: CheckpointEntry) -> CheckpointState:
    if entry.torn:
        return CheckpointState.unfinished
    if entry.damage:
        return CheckpointState.damaged
    if entry.name in history.proved:
        return CheckpointState.proved
    return CheckpointState.saved if history.healthy(entry.name) else CheckpointState.refused


def verified(found: RunCheckpoints) -> RunCheckpoints:
    """Return the same checkpoints; those whose content is not as it was written are damaged.

    One that goes away meanwhile, because the run saves newer ones, is left out.
    """
    checked = (_verified(entry) for entry in found.entries)
    return replace(
        found, entries=tuple(checkpoint for checkpoint in checked if checkpoint is not None)
    )


def _verified(entry: CheckpointEntry) -> CheckpointEntry | None:
    if entry.manifest is None:
        return entry
    try:
        manifest.check_content(entry.folder, entry.manifest, entry.manifest.files)
    except (CheckpointError, OSError) as error:
        if not (entry.folder / manifest.NAME).exists():
            return None
        return replace(entry, manifest=None, damage=str(error))
    return entry


_ENDED = frozenset({RunState.failed, RunState.interrupted, RunState.cancelled})


def resume_words(launch: Launch, index: int, *, stepped: bool = False) -> str:
    """Return from which step a resume continues a run; empty if that cannot be read.

    `stepped` is whether it has reported steps, as an attached script does.
    """
    with suppress(HpckitError, OSError):
        (found,) = find_checkpoints(Selection(launch=launch, index=index))
        good = (
            entry
            for entry in found.entries
            if entry.manifest is not None and found.history.healthy(entry.name)
        )
        newest = next(good, None)
        if newest is not None:
            return f"from step {newest.step}"
        if stepped or load_settings(launch, index)[0].entry_point is not None:
            return "from step 0: it has no checkpoint"
        return "from its beginning, unless the command loads what it saved"
    return ""


def with_resume_steps(launch: Launch, rows: Sequence[RunRow], *, steps: bool) -> Sequence[RunRow]:
    """Return the rows with why a resume refuses them or, with `steps`, the step it begins at.

    Of another user's launch nothing is looked up: it names folders of its owner's choice.
    """
    if launch.stranger is not None:
        return rows
    try:
        require_python(launch)
    except UsageError as error:
        return [replace(row, refusal=f"{error.message}\n  {error.hint}") for row in rows]
    return [
        replace(row, resume=resume_words(launch, row.index, stepped=row.step is not None))
        if steps and row.state in _ENDED and row.attempt
        else row
        for row in rows
    ]
