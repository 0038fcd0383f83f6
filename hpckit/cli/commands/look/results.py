"""`hpckit results`: a table of the results of runs and the overrides in which they differ."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpckit.cli.gc_pause import gc_paused
from hpckit.cli.options import (
    add_filters,
    add_flag,
    add_fresh,
    add_launches,
    add_limit,
    add_output_dir,
    add_sort,
    filter_of,
    limited,
    note_unknown_keys,
    output_dir,
)
from hpckit.cli.terminal.pager import note_unshown, show_page
from hpckit.context import Context
from hpckit.model.counted import counted, ranges
from hpckit.model.search import Search
from hpckit.model.states import RunState
from hpckit.operations.next_step import all_results, reference
from hpckit.record.launches import read_launch_history
from hpckit.record.trials import read_search
from hpckit.report.best import best_first, best_line, best_object, best_row
from hpckit.report.escape import escaped_cell, escaped_name, guarded
from hpckit.report.machine import results_document, spread_document
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
from hpckit.report.selection import SortKey, assigned, sort_key
from hpckit.report.spread import make_spread, over_keys, sort_spread, spread_cells, spread_header
from hpckit.report.text import Page, results_page, spread_page
from hpckit.values import dataclass, replace
from hpckit.views.accounts import accounts
from hpckit.views.across_launches import (
    ChosenRuns,
    chosen_runs,
    overrides_by_run,
    unlogged_metrics,
    with_printed,
)
from hpckit.views.freshness import Freshness

EPILOG = """\
examples:
  hpckit results --sort -accuracy --limit 10
  hpckit results --over seed   mean and standard deviation over seeds
  hpckit results digits --with-reruns   after `hpckit rerun digits --failed`
  hpckit results --experiment digits --csv > digits.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `results`."""
    add_launches(parser)
    add_flag(
        parser,
        "--with-reruns",
        "of each run the newest that completed, in later launches too that started it again",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    form.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_flag(parser, "--goodput", "with --csv: also columns of where the time went")
    parser.add_argument(
        "--over",
        metavar="KEY[,KEY]",
        action="append",
        default=[],
        help="one row for runs that differ only in these overrides, such as seed: mean, sample "
        "standard deviation and number of completed runs of each metric",
    )
    parser.add_argument(
        "--printed",
        metavar="NAME[,NAME]",
        action="append",
        default=[],
        help="also the last value behind these names in what rank 0 of each run printed, as by "
        "observe.printed_metrics",
    )
    add_filters(parser)
    add_sort(parser, "Columns: index, state, cause, step, time, goodput, an override, a metric")
    parser.add_argument("--descending", action="store_true", help="largest first")
    add_limit(parser)
    add_fresh(parser)
    add_output_dir(parser)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The output in each of its forms; `shown` of `total` rows."""

    page: Page
    document: Mapping[str, object]
    table: Iterable[Sequence[Any]]
    shown: int
    total: int


@gc_paused()
def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the results of launches, or of some of their runs; always returns 0."""
    freshness = Freshness(now=arguments.fresh)
    named, base = (arguments.references, arguments.experiment), output_dir(arguments, context)
    chosen = chosen_runs(*named, base, context, freshness, reruns=arguments.with_reruns)
    if arguments.printed:
        chosen = with_printed(chosen, arguments.printed)
    results = _results(chosen, arguments, context)
    answer = (
        _over(chosen, results, arguments) if arguments.over else _each(chosen, results, arguments)
    )
    # Runs of other launches that replace some of this one's.
    elsewhere = {} if _spans(arguments) else read_launch_history(chosen[0][0].launch).known
    if arguments.json:
        known = [{"launch": launch, "runs": runs} for launch, runs in elsewhere.items()]
        context.say_json({**answer.document, "elsewhere": known})
    elif arguments.csv:
        csv.writer(context.stdout, lineterminator="\n").writerows(answer.table)
        context.stdout.flush()
    else:
        show_page(answer.page, context, paged=True)
        _note_metrics(chosen, context)
    if elsewhere and not arguments.json:
        count = counted(sum(map(len, elsewhere.values())), "more run")
        places = "; ".join(f"{launch} ({ranges(runs)})" for launch, runs in elsewhere.items())
        command = all_results([view.launch for view, _ in chosen], tuple(elsewhere), context)
        context.note(f"{count} of this sweep: {places}. All together: `{command}`")
    note_unshown(answer.total, answer.shown, context)
    return 0


def _note_metrics(chosen: Sequence[ChosenRuns], context: Context) -> None:
    """Name metrics that were to be found in what programs print; if there are none, say how to."""
    none, nothing = not any(run.record.metrics for _, runs in chosen for run in runs), ""
    for view, runs in chosen:
        done = [run for run in runs if run.state is RunState.completed]
        done = done or [run for run in runs if none and run.state.ended]
        launch, names = reference(view.launch, context), unlogged_metrics(view.launch, done)
        if names:
            context.note(
                f"{view.launch.id}: no line that rank 0 printed matched {', '.join(names)} "
                f"(observe.printed_metrics). `hpckit logs {launch}` shows the lines, and "
                f"`hpckit results {launch} --printed NAME` finds other names in them"
            )
        elif none and done:
            nothing = launch
    if nothing:
        context.note(
            f"no metrics: if the program prints `loss: 0.3`, `hpckit results {nothing} --printed "
            "loss` finds the last value, and observe.printed_metrics=[loss] keeps all of them in "
            """the next launch; or rank 0 appends lines such as {"step": 10, "loss": 0.3} to """
            "$HPCKIT_ATTEMPT_DIR/metrics.jsonl, or calls run.log(...)"
        )


def _each(chosen: Sequence[ChosenRuns], results: Results, arguments: argparse.Namespace) -> _Answer:
    """Return a row for each run."""
    search, key = _search(chosen), _key(arguments)
    leader = None if search is None else best_row(results.rows, search)
    if key is not None:
        results = sort_results(results, key)
    elif search is not None:
        results = best_first(results, search)
    shown = replace(results, rows=tuple(limited(results.rows, arguments.limit)))
    last = [] if search is None else [best_line(leader, search.metric)]
    first = None if search is None else best_object(leader, search)
    document = results_document(_launch(chosen), shown)
    return _Answer(
        page=[*results_page(shown), *last],
        document={**document, **_counts(chosen, results), "best": first},
        table=_csv(shown, ACCOUNT_COLUMNS if arguments.goodput else ()),
        shown=len(shown.rows),
        total=len(results.rows),
    )


def _over(chosen: Sequence[ChosenRuns], results: Results, arguments: argparse.Namespace) -> _Answer:
    """Return a row for each group of runs that differ only in some keys."""
    words = [one.record.overrides for _, runs in chosen for one in runs]
    known = dict.fromkeys(key for given in words for key in assigned(given))
    keys, key = over_keys(arguments.over, known, results.overrides), _key(arguments)
    found = make_spread(results, keys)
    if key is not None:
        found = sort_spread(found, key)
    shown = replace(found, rows=tuple(limited(found.rows, arguments.limit)))
    names = tuple(map(_safe_name, spread_header(shown)))
    return _Answer(
        page=spread_page(shown),
        document={**spread_document(_launch(chosen), shown), **_counts(chosen, results)},
        table=[names, *(tuple(map(_safe, line)) for line in spread_cells(shown))],
        shown=len(shown.rows),
        total=len(found.rows),
    )


def _key(arguments: argparse.Namespace) -> SortKey | None:
    if not arguments.sort and not arguments.descending:
        return None
    return sort_key(arguments.sort or "index", descending=arguments.descending)


def _search(chosen: Sequence[ChosenRuns]) -> Search | None:
    """Return the search, if all runs belong to one launch with a search."""
    launches = [view.launch for view, _ in chosen]
    if len(launches) != 1 or not launches[0].searched:
        return None
    return read_search(launches[0].paths)


def _launch(chosen: Sequence[ChosenRuns]) -> str | None:
    return chosen[0][0].launch.id if len(chosen) == 1 else None


def _counts(chosen: Sequence[ChosenRuns], results: Results) -> dict[str, object]:
    total = sum(len(runs) for _, runs in chosen)
    launches = [view.launch.id for view, _ in chosen]
    return {"total": total, "matching": len(results.rows), "launches": launches}


def _results(
    chosen: Sequence[ChosenRuns], arguments: argparse.Namespace, context: Context
) -> Results:
    """Return the results of the selected runs."""
    wanted, now = filter_of(arguments), context.now()
    every = [one.record.overrides for _, runs in chosen for one in runs]
    note_unknown_keys(wanted, every, context)
    rows: list[RunRow] = []
    for view, runs in chosen:
        some = [one for one in runs if wanted.takes(one.state, one.record.overrides)]
        kept = accounts(view.launch, some, now, view.kept)
        rows += [run_row(one, kept.get(one.record.index)) for one in some]
    sweep = overrides_by_run(chosen, context)
    swept = [key for view, _ in chosen for key in view.launch.swept]
    return make_results(rows, now, sweep=sweep, swept=swept, spans=_spans(arguments))


def _spans(arguments: argparse.Namespace) -> bool:
    """Whether runs of several launches may be shown."""
    several = arguments.experiment is not None or len(arguments.references) > 1
    return several or arguments.with_reruns


def _csv(results: Results, more: Sequence[str]) -> Iterable[Sequence[Any]]:
    """Yield a header and a line per run: full numbers, `time` in seconds, no value as empty."""
    yield (*map(_safe_name, header(results)), *more)
    for line, row in zip(cells(results), results.rows, strict=True):
        account = account_values(row.goodput)
        yield (*map(_safe, line), *(account.get(name) for name in more))


def _safe(value: Any) -> Any:
    """Return a value as a cell that no program obeys: neither a terminal nor a spreadsheet."""
    return guarded(escaped_cell(value)) if isinstance(value, str) else value


def _safe_name(name: str) -> str:
    return guarded(escaped_name(name))
