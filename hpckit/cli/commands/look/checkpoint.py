"""`hpckit checkpoint`: the checkpoints of runs: list them, verify them, export a model."""

from __future__ import annotations

import argparse
from enum import StrEnum
from pathlib import Path

from hpckit.cli.options import (
    add_common_options,
    add_flag,
    add_launch_or_run_argument,
    resolve_reference_to_change,
)
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.counted import format_byte_size, format_count
from hpckit.operations.checkpoints import (
    build_checkpoint_row,
    export_model,
    find_checkpoints,
    verify_checkpoints,
)
from hpckit.record.lookup import Selection
from hpckit.report.checkpoints import CheckpointState, checkpoints_to_json, render_checkpoints_page
from hpckit.values import replace

EPILOG = """\
examples:
  hpckit checkpoint ls digits.3       the newest first
  hpckit checkpoint verify digits     every byte of every checkpoint; 1 if one is damaged
  hpckit checkpoint export digits.3 -o model.safetensors
  hpckit checkpoint export digits.3 -o model.pt --step 400
"""


class CheckpointAction(StrEnum):
    """What can be done with checkpoints."""

    ls = "ls"
    verify = "verify"
    export = "export"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `checkpoint`."""
    parser.add_argument(
        "action",
        metavar="ACTION",
        choices=[action.value for action in CheckpointAction],
        help="ls: list them; verify: compare every byte with what was written; export: write the "
        "model into one file",
    )
    add_launch_or_run_argument(parser)
    parser.add_argument(
        *("-o", "--to"),
        metavar="FILE",
        help="export: the file to write; .safetensors, or else one for torch.load",
    )
    parser.add_argument("--step", metavar="N", type=int, help="export: of this step (default: the newest)")
    add_flag(parser, "--force", "export: replace the file if there is one")
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """List, verify or export; returns 0, 1 if a checkpoint is damaged. Raises HpckitError."""
    action = CheckpointAction(arguments.action)
    selection = resolve_reference_to_change(arguments, context)
    if action is CheckpointAction.export:
        return _export_checkpoint_model(arguments, selection, context)
    if arguments.to is not None or arguments.step is not None or arguments.force:
        raise UsageError(f"{action} takes no -o, no --step and no --force", hint="they are for export")
    found = find_checkpoints(selection)
    verifying = action is CheckpointAction.verify
    shown = map(verify_checkpoints, found) if verifying else found
    rows = [build_checkpoint_row(run, entry) for run in shown for entry in run.entries]
    if arguments.json:
        context.say_json(checkpoints_to_json(rows))
    else:
        show_page(render_checkpoints_page(rows), context)
    if not verifying:
        return 0
    damaged = sum(row.state is CheckpointState.damaged for row in rows)
    whole = sum(row.size is not None for row in rows)
    context.note(f"{format_count(whole, 'checkpoint')} as written, {damaged} damaged")
    return int(damaged > 0)


def _export_checkpoint_model(arguments: argparse.Namespace, selection: Selection, context: Context) -> int:
    if arguments.to is None:
        raise UsageError("an export needs the file to write", hint="-o model.safetensors")
    if arguments.json:
        raise UsageError("an export has no JSON to print", hint="leave --json out")
    target = context.cwd / Path(arguments.to).expanduser()
    if target.is_file() and not arguments.force:
        raise UsageError(
            f"{target} exists already, and an export would replace it",
            hint="name another file, or replace it with --force",
        )
    (found,) = find_checkpoints(replace(selection, index=selection.require_single_run()))
    step, tensors, left_out = export_model(found, arguments.step, target)
    context.note(
        f"exported {format_count(tensors, 'tensor')} of step {step}, "
        f"{format_byte_size(target.stat().st_size)}, to {target}"
    )
    if left_out:
        context.note(f"left out {', '.join(left_out[:3])}: not tensors")
    return 0
