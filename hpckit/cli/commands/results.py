"""`hpckit results`: a table of what came out of runs, beside what differed.

Responsible for choosing the form (table, CSV, JSON); it must not change anything.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from hpckit.cli.gc_pause import gc_paused
from hpckit.cli.options import (
    add_filters,
    add_fresh,
    add_launches,
    add_limit,
    add_output_dir,
    add_sort,
    filter_of,
    limited,
    output_dir,
)
from hpckit.cli.terminal.pager import note_unshown, show_page
from hpckit.context import Context
from hpckit.model.search import Search
from hpckit.record.trials import read_search
from hpckit.report.best import best, best_first, best_line, best_object
from hpckit.report.escape import escaped
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
from hpckit.report.rows import RunRow, run_row
from hpckit.report.selection import sort_key
from hpckit.report.text import results_page
from hpckit.views.accounts import accounts
from hpckit.views.across_launches import ChosenRuns, RunsQuery, chosen_runs
from hpckit.views.freshness import Freshness


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `results` understands."""
    add_launches(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    form.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_filters(parser)
    add_sort(parser, "Columns: index, state, step, time, goodput, an override, a metric")
    parser.add_argument("--descending", action="store_true", help="largest first")
    add_limit(parser)
    add_fresh(parser)
    add_output_dir(parser)


@gc_paused()
def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the results of launches, or of some of their runs; always 0."""
    freshness = Freshness(now=arguments.fresh)
    query = RunsQuery(references=arguments.references, experiment=arguments.experiment)
    chosen = chosen_runs(query, output_dir(arguments, context), context, freshness)
    results = _results(chosen, arguments, context.now())
    search = _search(chosen)
    leader = None if search is None else best(results.rows, search)
    if search is not None and not (arguments.sort or arguments.descending):
        results = best_first(results, search)
    shown = replace(results, rows=tuple(limited(results.rows, arguments.limit)))
    if arguments.json:
        first = None if search is None else best_object(leader, search)
        context.say_json({**_document(chosen, results, shown), "best": first})
    elif arguments.csv:
        _write_csv(shown, context)
    else:
        page = results_page(shown)
        last = [] if search is None else [best_line(leader, search.metric)]
        show_page([*page, *last], context, paged=True)
    note_unshown(len(results.rows), len(shown.rows), context)
    return 0


def _search(chosen: Sequence[ChosenRuns]) -> Search | None:
    """Return what was searched, where all runs are of one such launch."""
    launches = [view.launch for view, _ in chosen]
    if len(launches) != 1 or not launches[0].searched:
        return None
    return read_search(launches[0].paths)


def _document(chosen: Sequence[ChosenRuns], results: Results, shown: Results) -> dict[str, object]:
    launches = [view.launch.id for view, _ in chosen]
    total = sum(len(runs) for _, runs in chosen)
    document = results_document(launches[0] if len(launches) == 1 else None, shown)
    counts = {"total": total, "matching": len(results.rows)}
    return {**document, **counts, "launches": launches}


def _results(chosen: Sequence[ChosenRuns], arguments: argparse.Namespace, now: datetime) -> Results:
    """Return the results of the runs that were asked for, in order."""
    wanted = filter_of(arguments)
    rows: list[RunRow] = []
    for view, runs in chosen:
        some = [one for one in runs if wanted.takes(one.state, one.record.overrides)]
        kept = accounts(view.launch, some, now, view.kept)
        rows += [run_row(one, kept.get(one.record.index)) for one in some]
    results = make_results(
        rows,
        now,
        sweep=[one.record.overrides for _, runs in chosen for one in runs],
        spans=arguments.experiment is not None or len(arguments.references) > 1,
    )
    if not arguments.sort and not arguments.descending:
        return results
    key = sort_key(arguments.sort or "index", descending=arguments.descending)
    return sort_results(results, key)


def _write_csv(results: Results, context: Context) -> None:
    """Write a header and one line per run; numbers in full, `time` in seconds, nothing as empty."""
    writer = csv.writer(context.stdout, lineterminator="\n")
    writer.writerow((*map(escaped, header(results)), *ACCOUNT_COLUMNS))
    for line, row in zip(cells(results), results.rows, strict=True):
        account = account_values(row.goodput)
        words = (escaped(one) if isinstance(one, str) else one for one in line)
        writer.writerow((*words, *(account.get(name) for name in ACCOUNT_COLUMNS)))
    context.stdout.flush()
