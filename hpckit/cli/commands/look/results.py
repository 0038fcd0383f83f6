"""`hpckit results`: a table of the results of runs and the overrides in which they differ."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpckit.cli.gc_pause import pause_garbage_collector
from hpckit.cli.options import (
    add_filter_options,
    add_flag,
    add_fresh_option,
    add_launch_arguments,
    add_limit_option,
    add_output_dir_option,
    add_sort_option,
    build_filter,
    choose_output_dir,
    limit_items,
    warn_of_unknown_override_keys,
)
from hpckit.cli.parsing import exclude_options
from hpckit.cli.terminal.pager import show_page, tell_how_many_rows_are_left_out
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.counted import format_count, format_ranges
from hpckit.model.search import Search
from hpckit.model.states import RunState
from hpckit.operations.next_step import format_results_command, launch_reference
from hpckit.record.launches import read_launch_history
from hpckit.record.trials import read_search_space
from hpckit.report.best import best_row_to_json, find_best_row, format_best_run_line, sort_best_first
from hpckit.report.escape import escape_name, escape_table_cell, guard_csv_cell_against_formulas
from hpckit.report.machine import results_to_json, spread_to_json
from hpckit.report.results import (
    ACCOUNT_COLUMNS,
    ResultRow,
    Results,
    list_column_names,
    list_goodput_values,
    list_row_values,
    sort_results,
)
from hpckit.report.selection import SortKey, parse_overrides, parse_sort_key
from hpckit.report.spread import (
    average_results_over_keys,
    list_spread_csv_columns,
    list_spread_csv_rows,
    parse_keys_to_average_over,
    sort_spread_rows,
)
from hpckit.report.text import SHOWN_WARNINGS, Page, render_results_page, render_spread_page
from hpckit.values import dataclass, replace
from hpckit.views.across_launches import (
    ChosenRuns,
    add_printed_metrics,
    build_results_of_runs,
    find_unlogged_metrics,
    select_runs_across_launches,
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
    add_launch_arguments(parser)
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
    add_filter_options(parser)
    add_sort_option(parser, "Columns: index, state, cause, step, time, goodput, an override, a metric")
    parser.add_argument("--descending", action="store_true", help="largest first")
    add_limit_option(parser)
    add_fresh_option(parser)
    add_output_dir_option(parser)
    hint = "columns of where the time went belong to single runs: --csv --goodput; --json has them always"
    exclude_options(parser, "--goodput", "--json", "--over", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The output in each of its forms; `shown` of `total` rows."""

    page: Page
    document: Mapping[str, object]
    table: Iterable[Sequence[Any]]
    shown: int
    total: int


@pause_garbage_collector()
def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the results of launches, or of some of their runs; always returns 0."""
    if arguments.goodput and not arguments.csv:
        hint = "hpckit results --csv --goodput; `hpckit status --goodput` has it as text"
        raise UsageError("--goodput needs --csv", hint=hint)
    freshness = Freshness(now=arguments.fresh)
    named, base = ((arguments.references, arguments.experiment), choose_output_dir(arguments, context))
    chosen = select_runs_across_launches(*named, base, context, freshness, reruns=arguments.with_reruns)
    if arguments.printed:
        chosen = add_printed_metrics(chosen, arguments.printed)
    results = _select_results(chosen, arguments, context)
    answer = (
        _tabulate_groups(chosen, results, arguments)
        if arguments.over
        else _tabulate_runs(chosen, results, arguments)
    )
    # Runs of other launches that replace some of this one's.
    elsewhere = (
        {} if _may_span_several_launches(arguments) else read_launch_history(chosen[0][0].launch).known
    )
    if arguments.json:
        known = [{"launch": launch, "runs": runs} for launch, runs in elsewhere.items()]
        context.say_json({**answer.document, "elsewhere": known})
    elif arguments.csv:
        csv.writer(context.stdout, lineterminator="\n").writerows(answer.table)
        context.stdout.flush()
    else:
        show_page(answer.page, context, paged=True)
        _tell_how_to_log_missing_metrics(chosen, context)
    if elsewhere and not arguments.json:
        count = format_count(sum(map(len, elsewhere.values())), "more run")
        places = "; ".join(f"{launch} ({format_ranges(runs)})" for launch, runs in elsewhere.items())
        command = format_results_command([view.launch for view, _ in chosen], tuple(elsewhere), context)
        context.note(f"{count} of this sweep: {places}. All together: `{command}`")
    if not arguments.json:
        _warn_of_stale_metrics(results.rows, context)
    tell_how_many_rows_are_left_out(answer.total, answer.shown, context)
    return 0


def _warn_of_stale_metrics(rows: Sequence[ResultRow], context: Context) -> None:
    stale = [(row.run, words) for row in rows if (words := row.describe_stale_metrics())]
    for name, words in stale[:SHOWN_WARNINGS]:
        context.note(f"warning: {name}: {words}, so a last value may be older than the last step")


def _tell_how_to_log_missing_metrics(chosen: Sequence[ChosenRuns], context: Context) -> None:
    """Name wanted metrics that no program printed; without any metrics, say how to log some."""
    none, nothing = not any(run.record.metrics for _, runs in chosen for run in runs), ""
    for view, runs in chosen:
        done = [run for run in runs if run.state is RunState.completed]
        done = done or [run for run in runs if none and run.state.ended]
        launch, names = (launch_reference(view.launch, context), find_unlogged_metrics(view.launch, done))
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


def _tabulate_runs(chosen: Sequence[ChosenRuns], results: Results, arguments: argparse.Namespace) -> _Answer:
    search, key = _read_search_of_single_launch(chosen), _build_sort_key(arguments)
    leader = None if search is None else find_best_row(results.rows, search)
    if key is not None:
        results = sort_results(results, key)
    elif search is not None:
        results = sort_best_first(results, search)
    shown = replace(results, rows=tuple(limit_items(results.rows, arguments.limit)))
    last = [] if search is None else [format_best_run_line(leader, search.metric)]
    first = None if search is None else best_row_to_json(leader, search)
    document = results_to_json(_single_launch_id(chosen), shown)
    return _Answer(
        page=[*render_results_page(shown), *last],
        document={**document, **_counts_to_json(chosen, results), "best": first},
        table=_build_csv_rows(shown, ACCOUNT_COLUMNS if arguments.goodput else ()),
        shown=len(shown.rows),
        total=len(results.rows),
    )


def _tabulate_groups(
    chosen: Sequence[ChosenRuns], results: Results, arguments: argparse.Namespace
) -> _Answer:
    """Return a row for each group of runs that differ only in some keys."""
    words = [one.record.overrides for _, runs in chosen for one in runs]
    known = dict.fromkeys(key for given in words for key in parse_overrides(given))
    keys, key = (
        parse_keys_to_average_over(arguments.over, known, results.overrides),
        _build_sort_key(arguments),
    )
    found = average_results_over_keys(results, keys)
    if key is not None:
        found = sort_spread_rows(found, key)
    shown = replace(found, rows=tuple(limit_items(found.rows, arguments.limit)))
    names = tuple(map(_escape_csv_name, list_spread_csv_columns(shown)))
    return _Answer(
        page=render_spread_page(shown),
        document={**spread_to_json(_single_launch_id(chosen), shown), **_counts_to_json(chosen, results)},
        table=[names, *(tuple(map(_escape_csv_cell, line)) for line in list_spread_csv_rows(shown))],
        shown=len(shown.rows),
        total=len(found.rows),
    )


def _build_sort_key(arguments: argparse.Namespace) -> SortKey | None:
    if not arguments.sort and not arguments.descending:
        return None
    return parse_sort_key(arguments.sort or "index", descending=arguments.descending)


def _read_search_of_single_launch(chosen: Sequence[ChosenRuns]) -> Search | None:
    launches = [view.launch for view, _ in chosen]
    if len(launches) != 1 or not launches[0].searched:
        return None
    return read_search_space(launches[0].paths)


def _single_launch_id(chosen: Sequence[ChosenRuns]) -> str | None:
    return chosen[0][0].launch.id if len(chosen) == 1 else None


def _counts_to_json(chosen: Sequence[ChosenRuns], results: Results) -> dict[str, object]:
    total = sum(len(runs) for _, runs in chosen)
    launches = [view.launch.id for view, _ in chosen]
    return {"total": total, "matching": len(results.rows), "launches": launches}


def _select_results(chosen: Sequence[ChosenRuns], arguments: argparse.Namespace, context: Context) -> Results:
    wanted = build_filter(arguments)
    every = [one.record.overrides for _, runs in chosen for one in runs]
    warn_of_unknown_override_keys(wanted, every, context)
    return build_results_of_runs(chosen, context, spans=_may_span_several_launches(arguments), wanted=wanted)


def _may_span_several_launches(arguments: argparse.Namespace) -> bool:
    several = arguments.experiment is not None or len(arguments.references) > 1
    return several or arguments.with_reruns


def _build_csv_rows(results: Results, more: Sequence[str]) -> Iterable[Sequence[Any]]:
    """Yield a header and a line per run: full numbers, `time` in seconds, no value as empty."""
    yield (*map(_escape_csv_name, list_column_names(results)), *more)
    for line, row in zip(list_row_values(results), results.rows, strict=True):
        account = list_goodput_values(row.goodput)
        yield (*map(_escape_csv_cell, line), *(account.get(name) for name in more))


def _escape_csv_cell(value: Any) -> Any:
    """Return a value as a cell that no program obeys: neither a terminal nor a spreadsheet."""
    return guard_csv_cell_against_formulas(escape_table_cell(value)) if isinstance(value, str) else value


def _escape_csv_name(name: str) -> str:
    return guard_csv_cell_against_formulas(escape_name(name))
