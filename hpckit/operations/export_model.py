"""Writes the models in a run's checkpoint into one file; `runtime/checkpoint/weights.py` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpckit.errors import NotFoundError, import_optional
from hpckit.operations.checkpoints import RunCheckpoints
from hpckit.operations.output_file import OutputKind, check_output_file, replaced_file
from hpckit.runtime.checkpoint import manifest
from hpckit.runtime.checkpoint.errors import CheckpointError
from hpckit.runtime.checkpoint.folder import CheckpointEntry
from hpckit.runtime.checkpoint.manifest import Manifest

_MODEL = OutputKind(noun="model")
SAFETENSORS = ".safetensors"


def export_model(
    found: RunCheckpoints, step: int | None, target: Path
) -> tuple[int, int, tuple[str, ...]]:
    """Write the models of the newest checkpoint, or of that of a step, into `target`.

    Returns the step, how many tensors there are, and the names of what is no tensor.
    All files are verified first. A damaged one is not passed over: an older model would be taken
    for the newest. Raises NotFoundError, UsageError, CheckpointError.
    """
    check_output_file(target, _MODEL)
    weights_module = _weights_module()
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


def _weights_module() -> Any:
    hint = "pip install '.[train]' in hpckit's checkout; ls and verify need nothing"
    return import_optional("hpckit.runtime.checkpoint.weights", "an export of a model", hint)
