"""`hpckit status`: how the runs of a launch stand, by our record and by Slurm.

Responsible for that page; it must not change anything. It exits 0 whenever it could read the
launch, whatever became of the runs: `launch --wait` is the verb whose exit code says that.
"""

from __future__ import annotations

import argparse

from hpckit.cli.context import Context, add_json, add_output_dir, add_reference, output_dir
from hpckit.cli.show import launch_head, show_page
from hpckit.cli.views import launch_view, unconfirmed
from hpckit.record.find import find
from hpckit.report.machine import status_document
from hpckit.report.rows import run_row
from hpckit.report.text import status_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `status` understands."""
    add_reference(parser)
    add_json(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the runs of a launch, or one run; always 0."""
    selection = find(arguments.reference, output_dir(arguments, context), cwd=context.cwd)
    launch, index = selection.launch, selection.index
    view = launch_view(launch, context, indices=None if index is None else (index,))
    if view.warning:
        context.note(f"warning: {view.warning}")
    for job in unconfirmed(launch):
        context.note(
            f"warning: it is not known whether Slurm accepted {launch.jobs[job].name}; "
            f"`hpckit doctor {launch.id}` finds out"
        )
    rows = [run_row(one) for one in view.runs]
    if arguments.json:
        context.say_json(status_document(launch.id, rows, view.scheduler))
    else:
        show_page(status_page(launch_head(launch), rows, context.now()), context)
    return 0
