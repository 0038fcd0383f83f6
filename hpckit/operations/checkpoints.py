"""The checkpoints of runs, the models in them, and the steps at which a resume continues.

It reads no tensor: `runtime/checkpoint/weights.py` does, for an export.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hpckit.errors import HpckitError, NotFoundError, UsageError, import_optional
from hpckit.model.states import RunState
from hpckit.operations.frozen_script import refuse_missing_python
from hpckit.operations.output_file import OutputKind, check_output_file, open_replacement_file
from hpckit.record.launches import Launch, checkpoint_folder, configured_checkpoint_dir, load_run_settings
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
        run, (settings, _) = launch.runs[index].id, load_run_settings(launch, index)
        folder = checkpoint_folder(launch, index, settings)
        if not folder.is_absolute():
            raise UsageError(
                f"checkpoint.dir={settings.checkpoint.dir} of run {run} is relative to the "
                "working folder of its process, which is not known here",
                hint="set checkpoint.dir to an absolute path in the next launch",
            )
        found = CheckpointFolder(folder, configured_checkpoint_dir(settings.checkpoint))
        entries, history = tuple(found.list_entries()), read_journal(found.journal_path)
        yield RunCheckpoints(run=run, folder=folder, entries=entries, history=history)


def build_checkpoint_row(found: RunCheckpoints, entry: CheckpointEntry) -> CheckpointRow:
    """Return what there is to show of a run's checkpoint."""
    record = entry.manifest
    return CheckpointRow(
        run=found.run,
        name=entry.name,
        folder=str(entry.folder),
        step=entry.step,
        attempt=entry.epoch,
        state=_judge_checkpoint_state(found.history, entry),
        problem=entry.damage,
        samples=None if record is None else record.samples,
        size=None if record is None else record.total_bytes,
        layout=None if record is None else record.layout,
        objects=() if record is None else record.objects,
        saved_at=None if record is None else record.created_at,
    )


def _judge_checkpoint_state(history: CheckpointHistory, entry: CheckpointEntry) -> CheckpointState:
    if entry.is_uncommitted:
        return CheckpointState.unfinished
    if entry.damage:
        return CheckpointState.damaged
    if entry.name in history.proved:
        return CheckpointState.proved
    return CheckpointState.saved if history.is_healthy(entry.name) else CheckpointState.refused


def verify_checkpoints(found: RunCheckpoints) -> RunCheckpoints:
    """Return the same checkpoints; those whose content is not as it was written are damaged.

    One that goes away meanwhile, because the run saves newer ones, is left out.
    """
    checked = (_verify_checkpoint(entry) for entry in found.entries)
    return replace(found, entries=tuple(checkpoint for checkpoint in checked if checkpoint is not None))


def _verify_checkpoint(entry: CheckpointEntry) -> CheckpointEntry | None:
    if entry.manifest is None:
        return entry
    try:
        manifest.check_file_contents(entry.folder, entry.manifest, entry.manifest.files)
    except (CheckpointError, OSError) as error:
        if not (entry.folder / manifest.NAME).exists():
            return None
        return replace(entry, manifest=None, damage=str(error))
    return entry


def export_model(found: RunCheckpoints, step: int | None, target: Path) -> tuple[int, int, tuple[str, ...]]:
    """Write the models of the newest checkpoint, or of that of a step, into `target`.

    Returns the step, how many tensors there are, and the names of entries that are not tensors.
    All files are verified first. A damaged one is not passed over: an older model would be taken
    for the newest. Raises NotFoundError, UsageError, CheckpointError.
    """
    check_output_file(target, _MODEL)
    weights_module = import_optional(
        "hpckit.runtime.checkpoint.weights",
        "an export of a model",
        "pip install '.[train]' in hpckit's checkout; ls and verify need nothing",
    )
    entry, record = _choose_checkpoint_to_export(found, step)
    try:
        manifest.check_file_contents(entry.folder, record, record.files)
        weights = weights_module.find_model_weights(entry.folder, record)
    except OSError as error:
        raise CheckpointError(f"{entry.name} cannot be read: {error}") from error
    write = (
        weights_module.write_safetensors
        if target.suffix.lower() == SAFETENSORS
        else weights_module.write_torch_file
    )
    with open_replacement_file(target, _MODEL) as file:
        write(weights, file)
    return entry.step, len(weights.keys), weights.left_out


def _choose_checkpoint_to_export(found: RunCheckpoints, step: int | None) -> tuple[CheckpointEntry, Manifest]:
    whole = [(entry, entry.manifest) for entry in found.entries if entry.manifest is not None]
    steps = ", ".join(str(one.step) for one, _ in whole)
    newest = next((checkpoint for checkpoint in found.entries if not checkpoint.is_uncommitted), None)
    if step is None and newest is not None and newest.damage:
        raise CheckpointError(
            f"{newest.name}, the newest checkpoint, is damaged: {newest.damage}",
            hint=f"--step chooses another one: {steps}" if steps else "there is no other checkpoint",
        )
    for entry, record in whole:
        if step in {None, entry.step}:
            return entry, record
    which = "" if step is None else f" of step {step}"
    raise NotFoundError(
        f"run {found.run} has no complete checkpoint{which}",
        hint=f"it has those of step {steps}" if steps else "`hpckit checkpoint ls` shows what there is",
    )


_ENDED = frozenset({RunState.failed, RunState.interrupted, RunState.cancelled})


def describe_resume_step(launch: Launch, index: int, *, stepped: bool = False) -> str:
    """Return from which step a resume continues a run; empty if that cannot be read.

    `stepped` is whether it has reported steps, as an attached script does.
    """
    with suppress(HpckitError, OSError):
        (found,) = find_checkpoints(Selection(launch=launch, index=index))
        good = (
            entry
            for entry in found.entries
            if entry.manifest is not None and found.history.is_healthy(entry.name)
        )
        newest = next(good, None)
        if newest is not None:
            return f"from step {newest.step}"
        if stepped or load_run_settings(launch, index)[0].entry_point is not None:
            return "from step 0: it has no checkpoint"
        return "from its beginning, unless the command loads what it saved"
    return ""


def add_resume_step_or_refusal(launch: Launch, rows: Sequence[RunRow], *, steps: bool) -> Sequence[RunRow]:
    """Return the rows with why a resume refuses them or, with `steps`, the step it begins at.

    Of another user's launch nothing is looked up: it names folders of its owner's choice.
    """
    if launch.stranger is not None:
        return rows
    try:
        refuse_missing_python(launch)
    except UsageError as error:
        return [replace(row, refusal=f"{error.message}\n  {error.hint}") for row in rows]
    return [
        replace(row, resume=describe_resume_step(launch, row.index, stepped=row.step is not None))
        if steps and row.state in _ENDED and row.attempt
        else row
        for row in rows
    ]
