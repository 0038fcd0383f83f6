"""`hpckit status`: the state of the runs of a launch, from the record and from Slurm.

Exits with 0 whenever the launch could be read, however its runs ended: for an exit code that
reports that, use `launch --wait`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from hpckit.cli.gc_pause import gc_paused
from hpckit.cli.options import (
    add_common,
    add_filters,
    add_flag,
    add_fresh,
    add_limit,
    add_reference,
    add_sort,
    filter_of,
    find_shown,
    is_time,
    limited,
    note_unknown_keys,
)
from hpckit.cli.parsing import OptionalValue
from hpckit.cli.terminal.live_status import Look, follow, interval
from hpckit.cli.terminal.pager import note_unshown, show_page
from hpckit.context import Context
from hpckit.model.counted import counted
from hpckit.model.goodput import Goodput
from hpckit.model.launch import ClusterKind
from hpckit.model.plain import to_plain
from hpckit.model.states import RunState
from hpckit.operations.checkpoints import with_resume_steps
from hpckit.operations.next_step import reference
from hpckit.operations.notices.tell import send_kept
from hpckit.record.lookup import Selection
from hpckit.report.account import launch_page, run_page
from hpckit.report.diagnosis import (
    energy_lines,
    held_back_line,
    unmeasured_lines,
    usage_lines,
    verdict_lines,
)
from hpckit.report.live import satellite_lines
from hpckit.report.machine import status_document
from hpckit.report.rows import RunRow, run_row, with_standstill
from hpckit.report.selection import sort_key, sort_rows
from hpckit.report.text import count_line, status_page
from hpckit.values import replace
from hpckit.views.accounts import accounts
from hpckit.views.diagnosis import findings
from hpckit.views.freshness import TOLD, Freshness
from hpckit.views.launch_view import (
    LaunchView,
    launch_head,
    launch_view,
    local_executors,
    note_warnings,
    unconfirmed,
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
    add_reference(parser)
    add_flag(
        parser, "--goodput", "show where the time went: of every run, and of the launch as a whole"
    )
    parser.add_argument("--all", action="store_true", help="a row for each of many runs, too")
    parser.add_argument(
        "--watch",
        action=OptionalValue,
        takes=is_time,
        const="",
        metavar="TIME",
        help="show it every TIME (60, 2m) until all has ended: the states, how far, until when",
    )
    add_filters(parser)
    add_sort(parser, "Columns: index, state, step, time, attempt, an override, a metric")
    add_limit(parser)
    add_fresh(parser)
    add_common(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the runs of a launch, or one run; always returns 0."""
    with gc_paused():
        selection = find_shown(arguments, context)
    if arguments.watch is None:
        _show_once(selection, arguments, context)
    else:
        _watch(selection, arguments, context)
    send_kept(selection.launch, context)
    return 0


@gc_paused()
def _show_once(selection: Selection, arguments: argparse.Namespace, context: Context) -> None:
    launch, freshness = selection.launch, Freshness(now=arguments.fresh)
    view = launch_view(launch, context, indices=selection.indices, freshness=freshness)
    note_warnings([view], context)
    for job in unconfirmed(launch):
        context.note(
            f"warning: it is not known whether Slurm accepted {job.name}; "
            f"`hpckit doctor {launch.id}` finds out"
        )
    waiting = _never_given(view, context.now())
    if waiting:
        context.note(
            f"warning: no local executor was ever given {counted(waiting, 'run')}: hpckit was "
            "killed while it launched, or only rendered; "
            f"`hpckit resume {reference(launch, context)}` begins them"
        )
    _show(view, arguments, context)


def _never_given(view: LaunchView, now: datetime) -> int:
    """Return how many runs wait for a local executor that will never start."""
    launch = view.launch
    local = launch.cluster.kind is ClusterKind.local and launch.stranger is None
    if not local or now - launch.created_at < _STARTING:
        return 0
    given = local_executors(launch)
    waiting = [one.record.index for one in view.runs if one.state is RunState.pending]
    return sum(index not in given for index in waiting)


def _watch(selection: Selection, arguments: argparse.Namespace, context: Context) -> None:
    limited((), arguments.limit)
    look = Look(
        indices=selection.indices,
        wanted=filter_of(arguments),
        key=sort_key(arguments.sort) if arguments.sort else None,
        limit=arguments.limit,
        interval_s=interval(arguments.watch),
        as_json=arguments.json,
    )
    follow(selection.launch, look, context)


def _show(view: LaunchView, arguments: argparse.Namespace, context: Context) -> None:
    single, now = len(view.runs) == 1, context.now()
    rows = _rows(view, arguments, context)
    shown = list(limited(rows, arguments.limit))
    # This reads every attempt of a run: with a thousand runs, status must not wait for that.
    few = len(shown) <= _FEW
    kept = _accounts(view, shown, now) if few or single or arguments.goodput else {}
    shown = [with_standstill(row, kept.get(row.index)) for row in shown]
    if arguments.goodput or arguments.json:
        shown = [replace(row, goodput=kept.get(row.index)) for row in shown]
    if few or single or arguments.json:
        known = findings(view.launch, view.runs, kept)
        shown = [replace(row, findings=known.get(row.index)) for row in shown]
    auto_resume = None if view.auto_resume is None else view.auto_resume.job
    if arguments.json:
        document = status_document(view.launch.id, shown, view.scheduler)
        counts = {"total": len(view.runs), "matching": len(rows)}
        age_s = None if view.asked_at is None else (now - view.asked_at).total_seconds()
        foreign = to_plain(launch_head(view.launch).foreign)
        more = {"auto_resume_job": auto_resume, **counts, "queue_age_s": age_s, "foreign": foreign}
        context.say_json({**document, **more})
    else:
        shown = list(with_resume_steps(view.launch, shown, steps=few))
        asked = arguments.all, arguments.sort, arguments.limit, arguments.goodput
        brief = not any(asked) and filter_of(arguments).all
        page = [*status_page(launch_head(view.launch), shown, now, brief=brief)]
        if len(shown) < len(view.runs):
            page.append(f"of all {count_line([one.state for one in view.runs])}")
        if auto_resume is not None:
            page += [f"auto-resume job {auto_resume} resumes interrupted runs"]
        page += satellite_lines(shown)
        accounted = [kept[row.index] for row in shown if row.index in kept]
        if single and accounted:
            page += run_page(shown[0], accounted[0], whole=arguments.goodput)
        else:
            page += launch_page(accounted, whole=arguments.goodput)
        page += unmeasured_lines(shown)
        if single and shown:
            page += [*usage_lines(shown[0].findings), *verdict_lines(shown[0].findings)]
        else:
            page += energy_lines(row.findings.energy for row in shown if row.findings is not None)
            page += held_back_line(shown)
        if view.asked_at is not None and now - view.asked_at > TOLD:
            page.append(f"queue as of {(now - view.asked_at).total_seconds():.0f} s ago")
        show_page(page, context, paged=True)
    note_unshown(len(rows), len(shown), context)


def _accounts(view: LaunchView, rows: Sequence[RunRow], now: datetime) -> Mapping[int, Goodput]:
    indices = {row.index for row in rows}
    some = [one for one in view.runs if one.record.index in indices]
    return accounts(view.launch, some, now, view.kept)


def _rows(view: LaunchView, arguments: argparse.Namespace, context: Context) -> list[RunRow]:
    """Return the selected rows, in order."""
    wanted = filter_of(arguments)
    note_unknown_keys(wanted, (one.record.overrides for one in view.runs), context)
    rows = [run_row(one) for one in view.runs if wanted.takes(one.state, one.record.overrides)]
    key = arguments.sort
    return sort_rows(rows, sort_key(key), context.now()) if key else rows
