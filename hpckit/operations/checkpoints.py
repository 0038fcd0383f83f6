"""The checkpoints of runs, the models in them, and the steps at which a resume continues.

It reads no tensor: `runtime/checkpoint/weights.py` does, for an export.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hpckit.errors import HpckitError, NotFoundError, UsageError, import_optional
from hpckit.model.states import RunState
from hpckit.operations.frozen_script import require_python
from hpckit.operations.output_file import OutputKind, check_output_file, replaced_file
from hpckit.record.launches import Launch, checkpoint_base, checkpoint_folder, load_settings
from hpckit.record.lookup import Selection
from hpckit.report.checkpoints import CheckpointRow, CheckpointState
from hpckit.report.rows import RunRow
from hpckit.runtime.checkpoint import manifest
from hpckit.runtime.checkpoint.errors import CheckpointError
from hpckit.runtime.checkpoint.folder import CheckpointEntry, CheckpointFolder
from hpckit.runtime.checkpoint.journal import CheckpointHistory, read_journal
from hpckit.runtime.checkpoint.manifest import Manifest
from hpckit.values import dataclass, replace

_MODEL = OutputKind(noun="model")
SAFETENSORS = ".safetensors"


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
    launch = selection.launch
    for index in selection.indices or range(len(launch.runs)):
        run, (settings, _) = launch.runs[index].id, load_settings(launch, index)
        folder = checkpoint_folder(launch, index, settings)
        if not folder.is_absolute():
            raise UsageError(
                f"checkpoint.dir={settings.checkpoint.dir} of run {run} is relative to wherever "
                "its own process was",
                hint="set checkpoint.dir to an absolute path in the next launch",
            )
        found = CheckpointFolder(folder, checkpoint_base(settings.checkpoint))
        entries, history = tuple(found.entries()), read_journal(found.journal)
        yield RunCheckpoints(run=run, folder=folder, entries=entries, history=history)


def checkpoint_row(found: RunCheckpoints, entry: CheckpointEntry) -> CheckpointRow:
    """Return what there is to show of a run's checkpoint."""
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


def export_model(
    found: RunCheckpoints, step: int | None, target: Path
) -> tuple[int, int, tuple[str, ...]]:
    """Write the models of the newest checkpoint, or of that of a step, into `target`.

    Returns the step, how many tensors there are, and the names of what is no tensor.
    All files are verified first. A damaged one is not passed over: an older model would be taken
    for the newest. Raises NotFoundError, UsageError, CheckpointError.
    """
    check_output_file(target, _MODEL)
    weights_module = import_optional(
        "hpckit.runtime.checkpoint.weights",
        "an export of a model",
        "pip install '.[train]' in hpckit's checkout; ls and verify need nothing",
    )
    entry, record = _chosen(found, step)
    try:
        manifest.check_content(entry.folder, record, record.files)
        weights = weights_module.find_weights(entry.folder, record)
    except OSError as error:
        raise CheckpointError(f"{entry.name} cannot be read: {error}") from error
    write = (
        weights_module.write_safetensors
        if target.suffix.lower() == SAFETENSORS
        else weights_module.write_torch
    )
    with replaced_file(target, _MODEL) as file:
        write(weights, file)
    return entry.step, len(weights.keys), weights.left_out


def _chosen(found: RunCheckpoints, step: int | None) -> tuple[CheckpointEntry, Manifest]:
    whole = [(entry, entry.manifest) for entry in found.entries if entry.manifest is not None]
    steps = ", ".join(str(one.step) for one, _ in whole)
    newest = next((checkpoint for checkpoint in found.entries if not checkpoint.torn), None)
    if step is None and newest is not None and newest.damage:
        raise CheckpointError(
            f"{newest.name}, the newest checkpoint, is damaged: {newest.damage}",
            hint=f"--step takes another one: {steps}" if steps else "there is no other one",
        )
    for entry, record in whole:
        if step in {None, entry.step}:
            return entry, record
    which = "" if step is None else f" of step {step}"
    raise NotFoundError(
        f"run {found.run} has no whole checkpoint{which}",
        hint=f"there are those of step {steps}" if steps else "`hpckit checkpoint ls` lists them",
    )


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
