"""`hpckit status`: the state of the runs of a launch, from the record and from Slurm.

Exits with 0 whenever the launch could be read, however its runs ended: for an exit code that
reports that, use `launch --wait`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from hpckit.cli.gc_pause import pause_garbage_collector
from hpckit.cli.options import (
    add_common_options,
    add_filter_options,
    add_flag,
    add_fresh_option,
    add_launch_or_run_argument,
    add_limit_option,
    add_sort_option,
    build_filter,
    is_duration_text,
    limit_items,
    resolve_reference_to_show,
    warn_of_unknown_override_keys,
)
from hpckit.cli.parsing import OptionalValue, exclude_options
from hpckit.cli.terminal.live_status import Look, parse_watch_interval, show_status_until_over
from hpckit.cli.terminal.pager import show_page, tell_how_many_rows_are_left_out
from hpckit.context import Context
from hpckit.model.counted import format_count
from hpckit.model.goodput import Goodput
from hpckit.model.launch import ClusterKind
from hpckit.model.plain import to_plain
from hpckit.model.states import RunState
from hpckit.operations.checkpoints import add_resume_step_or_refusal
from hpckit.operations.next_step import launch_reference
from hpckit.operations.notices.tell import resend_unsent_notices
from hpckit.record.lookup import Selection
from hpckit.report.account import render_launch_goodput, render_run_details
from hpckit.report.diagnosis import (
    describe_time_losses,
    format_energy_line,
    format_gpu_usage,
    format_unmeasured_gpus,
    format_verdicts,
)
from hpckit.report.live import format_satellite_lines
from hpckit.report.machine import status_to_json
from hpckit.report.rows import RunRow, add_standstill_warning, build_run_row
from hpckit.report.selection import parse_sort_key, sort_rows
from hpckit.report.text import format_run_counts, render_status_page
from hpckit.values import replace
from hpckit.views.accounts import compute_goodput_by_run
from hpckit.views.diagnosis import diagnose_runs
from hpckit.views.freshness import TOLD, Freshness
from hpckit.views.launch_view import (
    LaunchView,
    build_launch_head,
    build_launch_view,
    list_unconfirmed_jobs,
    print_view_warnings,
    read_local_executors,
)

_FEW = 50
"""For at most this many runs, every attempt is read for the line on goodput by default."""

_STARTING = timedelta(seconds=90)
"""By then the launcher has seen its local executor start, or has reported that it did not."""


EPILOG = """\
examples:
  hpckit status   the latest launch
  hpckit status digits.3 --goodput
  hpckit status --watch --failed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `status`."""
    add_launch_or_run_argument(parser)
    add_flag(parser, "--goodput", "show where the time went: of every run, and of the launch as a whole")
    parser.add_argument("--all", action="store_true", help="a row for each of many runs, too")
    parser.add_argument(
        "--watch",
        action=OptionalValue,
        takes=is_duration_text,
        const="",
        metavar="TIME",
        help="show it every TIME (60, 2m) until all has ended: the states, how far, until when",
    )
    add_filter_options(parser)
    add_sort_option(parser, "Columns: index, state, step, time, attempt, an override, a metric")
    add_limit_option(parser)
    add_fresh_option(parser)
    add_common_options(parser)
    hint = "`hpckit status` without --watch shows it once"
    exclude_options(parser, "--watch", "--goodput", "--all", "--fresh", hint=hint)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the runs of a launch, or one run; always returns 0."""
    with pause_garbage_collector():
        selection = resolve_reference_to_show(arguments, context)
    if arguments.watch is None:
        _show_status_once(selection, arguments, context)
    else:
        _watch_status(selection, arguments, context)
    resend_unsent_notices(selection.launch, context)
    return 0


@pause_garbage_collector()
def _show_status_once(selection: Selection, arguments: argparse.Namespace, context: Context) -> None:
    launch, freshness = selection.launch, Freshness(now=arguments.fresh)
    view = build_launch_view(launch, context, indices=selection.indices, freshness=freshness)
    print_view_warnings([view], context)
    for job in list_unconfirmed_jobs(launch):
        context.note(
            f"warning: it is not known whether Slurm accepted {job.name}; "
            f"`hpckit doctor {launch.id}` finds out"
        )
    waiting = _count_runs_never_started(view, context.now())
    if waiting:
        context.note(
            f"warning: no local executor ever got {format_count(waiting, 'run')}: hpckit was "
            "killed during the launch, or only rendered it; "
            f"`hpckit resume {launch_reference(launch, context)}` begins them"
        )
    _print_status(view, arguments, context)


def _count_runs_never_started(view: LaunchView, now: datetime) -> int:
    """Return how many runs wait for a local executor that will never start."""
    launch = view.launch
    local = launch.cluster.kind is ClusterKind.local and launch.stranger is None
    if not local or now - launch.created_at < _STARTING:
        return 0
    given = read_local_executors(launch)
    waiting = [one.record.index for one in view.runs if one.state is RunState.pending]
    return sum(index not in given for index in waiting)


def _watch_status(selection: Selection, arguments: argparse.Namespace, context: Context) -> None:
    limit_items((), arguments.limit)
    look = Look(
        indices=selection.indices,
        wanted=build_filter(arguments),
        key=parse_sort_key(arguments.sort) if arguments.sort else None,
        limit=arguments.limit,
        interval_s=parse_watch_interval(arguments.watch),
        as_json=arguments.json,
    )
    show_status_until_over(selection.launch, look, context)


def _print_status(view: LaunchView, arguments: argparse.Namespace, context: Context) -> None:
    single, now = len(view.runs) == 1, context.now()
    rows = _select_run_rows(view, arguments, context)
    shown = list(limit_items(rows, arguments.limit))
    # This reads every attempt of a run: with a thousand runs, status must not wait for that.
    few = len(shown) <= _FEW
    kept = _read_goodput_accounts(view, shown, now) if few or single or arguments.goodput else {}
    shown = [add_standstill_warning(row, kept.get(row.index)) for row in shown]
    if arguments.goodput or arguments.json:
        shown = [replace(row, goodput=kept.get(row.index)) for row in shown]
    if few or single or arguments.json:
        known = diagnose_runs(view.launch, view.runs, kept)
        shown = [replace(row, findings=known.get(row.index)) for row in shown]
    auto_resume = None if view.auto_resume is None else view.auto_resume.job
    if arguments.json:
        document = status_to_json(view.launch.id, shown, view.scheduler)
        counts = {"total": len(view.runs), "matching": len(rows)}
        age_s = None if view.asked_at is None else (now - view.asked_at).total_seconds()
        foreign = to_plain(build_launch_head(view.launch).foreign)
        more = {"auto_resume_job": auto_resume, **counts, "queue_age_s": age_s, "foreign": foreign}
        context.say_json({**document, **more})
    else:
        shown = list(add_resume_step_or_refusal(view.launch, shown, steps=few))
        asked = arguments.all, arguments.sort, arguments.limit, arguments.goodput
        brief = not any(asked) and build_filter(arguments).takes_all_runs
        page = [*render_status_page(build_launch_head(view.launch), shown, now, brief=brief)]
        if len(shown) < len(view.runs):
            page.append(f"of all {format_run_counts([one.state for one in view.runs])}")
        if auto_resume is not None:
            page += [f"auto-resume job {auto_resume} resumes interrupted runs"]
        page += format_satellite_lines(shown)
        accounted = [kept[row.index] for row in shown if row.index in kept]
        if single and accounted:
            page += render_run_details(shown[0], accounted[0], whole=arguments.goodput)
        else:
            page += render_launch_goodput(accounted, whole=arguments.goodput)
        page += format_unmeasured_gpus(shown)
        if single and shown:
            page += [*format_gpu_usage(shown[0].findings), *format_verdicts(shown[0].findings)]
        else:
            page += format_energy_line(row.findings.energy for row in shown if row.findings is not None)
            page += describe_time_losses(shown)
        if view.asked_at is not None and now - view.asked_at > TOLD:
            page.append(f"queue as of {(now - view.asked_at).total_seconds():.0f} s ago")
        show_page(page, context, paged=True)
    tell_how_many_rows_are_left_out(len(rows), len(shown), context)


def _read_goodput_accounts(view: LaunchView, rows: Sequence[RunRow], now: datetime) -> Mapping[int, Goodput]:
    indices = {row.index for row in rows}
    some = [one for one in view.runs if one.record.index in indices]
    return compute_goodput_by_run(view.launch, some, now, view.kept)


def _select_run_rows(view: LaunchView, arguments: argparse.Namespace, context: Context) -> list[RunRow]:
    wanted = build_filter(arguments)
    warn_of_unknown_override_keys(wanted, (one.record.overrides for one in view.runs), context)
    rows = [build_run_row(one) for one in view.runs if wanted.matches_run(one.state, one.record.overrides)]
    key = arguments.sort
    return sort_rows(rows, parse_sort_key(key), context.now()) if key else rows
