"""`hpckit status`: how the runs of a launch stand, by our record and by Slurm.

Responsible for that page; it must not change anything. It exits 0 whenever it could read the
launch, whatever became of the runs: `launch --wait` is the verb whose exit code says that.
"""

from __future__ import annotations

import argparse

from hpckit.cli.accounting import accounts
from hpckit.cli.context import Context, add_json, add_output_dir, add_reference, output_dir
from hpckit.cli.show import launch_head, show_page
from hpckit.cli.views import launch_view, unconfirmed
from hpckit.record.find import find
from hpckit.report.account import account_page
from hpckit.report.machine import status_document
from hpckit.report.rows import run_row
from hpckit.report.text import status_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `status` understands."""
    add_reference(parser)
    parser.add_argument(
        "--goodput",
        action="store_true",
        help="also of many runs, say where their time went (of one run it is always said)",
    )
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
    single, now = len(view.runs) == 1, context.now()
    # It reads every attempt of a run: a glance at a thousand runs must not wait for that.
    kept = accounts(launch, view.runs, now) if single or arguments.goodput else {}
    rows = [run_row(one, kept.get(one.record.index)) for one in view.runs]
    janitor = None if view.janitor is None else view.janitor.job
    if arguments.json:
        document = status_document(launch.id, rows, view.scheduler)
        context.say_json({**document, "janitor": janitor})
    else:
        page = [*status_page(launch_head(launch), rows, now)]
        page += [] if janitor is None else [f"janitor: job {janitor}, resumes what can be"]
        show_page([*page, *(account_page(rows[0]) if single else ())], context)
    return 0
