"""`hpckit results`: a table of what came out of a sweep, beside what differed.

Responsible for choosing the form (table, CSV, JSON); it must not change anything.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from datetime import datetime

from hpckit.cli.accounting import accounts
from hpckit.cli.context import Context, add_output_dir, add_reference, output_dir
from hpckit.cli.selecting import add_filters, add_limit, add_sort, filter_of, limited
from hpckit.cli.show import note_unshown, show_page
from hpckit.cli.views import Ask, LaunchView, launch_view
from hpckit.record.find import find
from hpckit.report.machine import results_document
from hpckit.report.results import (
    ACCOUNT_COLUMNS,
    Results,
    account_values,
    cells,
    header,
    make_results,
    sort_results,
)
from hpckit.report.rows import run_row
from hpckit.report.selection import sort_key
from hpckit.report.text import results_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `results` understands."""
    add_reference(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    form.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_filters(parser)
    add_sort(parser, "Columns: index, state, step, time, goodput, an override, a metric")
    parser.add_argument("--descending", action="store_true", help="largest first")
    add_limit(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the results of a launch, or of one run; always 0."""
    selection = find(arguments.reference, output_dir(arguments, context), cwd=context.cwd)
    indices = None if selection.index is None else (selection.index,)
    view = launch_view(selection.launch, context, ask=Ask.open_runs, indices=indices)
    if view.warning:
        context.note(f"warning: {view.warning}")
    results = _results(view, arguments, context.now())
    shown = replace(results, rows=tuple(limited(results.rows, arguments.limit)))
    if arguments.json:
        total = len(view.runs)
        document = results_document(selection.launch.id, shown)
        context.say_json({**document, "total": total, "matching": len(results.rows)})
    elif arguments.csv:
        _write_csv(shown, context)
    else:
        show_page(results_page(shown), context, paged=True)
    note_unshown(len(results.rows), len(shown.rows), context)
    return 0


def _results(view: LaunchView, arguments: argparse.Namespace, now: datetime) -> Results:
    """Return the results of the runs that were asked for, in order."""
    wanted = filter_of(arguments)
    some = [one for one in view.runs if wanted.takes(one.state, one.record.overrides)]
    kept = accounts(view.launch, some, now)
    results = make_results(
        [run_row(one, kept.get(one.record.index)) for one in some],
        now,
        sweep=[one.record.overrides for one in view.runs],
    )
    if not arguments.sort and not arguments.descending:
        return results
    key = sort_key(arguments.sort or "index", descending=arguments.descending)
    return sort_results(results, key)


def _write_csv(results: Results, context: Context) -> None:
    """Write a header and one line per run; numbers in full, `time` in seconds, nothing as empty."""
    writer = csv.writer(context.stdout, lineterminator="\n")
    writer.writerow((*header(results), *ACCOUNT_COLUMNS))
    for line, row in zip(cells(results), results.rows, strict=True):
        account = account_values(row.goodput)
        writer.writerow((*line, *(account.get(name) for name in ACCOUNT_COLUMNS)))
    context.stdout.flush()
