"""Launches what the options of `launch` ask for, or shows it; imports Hydra."""

from __future__ import annotations

import argparse
from functools import partial

from hpckit.cli.compose_options import build_compose_request, list_words_to_record
from hpckit.cli.gc_pause import pause_garbage_collector
from hpckit.cli.launch_output import (
    WOULD_ASK,
    confirm_repeated_runs,
    left_out_to_json,
    print_check_findings,
    print_scripts,
    print_started_launch,
    report_nothing_to_launch,
    tell_which_runs_are_not_launched,
    wait_for_new_and_adopted_runs,
)
from hpckit.cli.terminal.foreground import open_foreground_terminal
from hpckit.context import Context
from hpckit.operations import check, launch
from hpckit.patterns import lazy_pattern
from hpckit.values import replace

_CLUSTER = lazy_pattern(r"\+{0,2}cluster(\.kind)?=")


def launch_or_show(arguments: argparse.Namespace, context: Context) -> int:
    """Launch, or with --dry-run print the scripts; returns the exit code of the verb."""
    options = _build_launch_options(arguments)
    chosen = any(_CLUSTER.match(word) for word in arguments.overrides)
    here = ("cluster=local",) if arguments.foreground and not chosen else ()
    request = build_compose_request(arguments, context, more=here)
    with pause_garbage_collector():
        words = list_words_to_record(arguments, context)
        planned = launch.plan_launch(request, words, options, context)
    known, left = planned.known, planned.left
    tell_which_runs_are_not_launched(known, context, planned.whole.plan.cluster.kind, dry=arguments.dry_run)
    if left is None:
        return report_nothing_to_launch(planned.whole, known, context, arguments)
    more = left_out_to_json(left, known)
    show = partial(
        print_scripts, replace(left, scripts=planned.scripts), context, as_json=arguments.json, more=more
    )
    if arguments.dry_run and not arguments.json:  # an error and a document exclude each other
        show()
    if not arguments.dry_run and not confirm_repeated_runs(known, arguments, context):
        return 2
    checked = launch.check_planned_launch(planned, context)
    fits = checked is None or print_check_findings(checked, context)
    if arguments.dry_run and planned.would_repeat_runs:
        context.note(f"error: {WOULD_ASK}")
        fits = False
    if arguments.dry_run and arguments.json and fits:
        show()
    if arguments.dry_run or not fits:
        return 0 if fits else 2
    if arguments.foreground:
        with open_foreground_terminal(context) as terminal:
            started = launch.start_launch(left, context, terminal=terminal.device)
            return terminal.relay_terminal_until_run_ends(started.launch)
    try:
        started = launch.start_planned_launch(left, planned, context)
    except launch.RunsStartedMeanwhileError:
        return launch_or_show(arguments, context)
    print_started_launch(started, context, as_json=arguments.json, more=more)
    return wait_for_new_and_adopted_runs(started.launch, known, context, arguments) if arguments.wait else 0


def _build_launch_options(arguments: argparse.Namespace) -> launch.LaunchOptions:
    shallow = arguments.no_model or arguments.dry_run
    depth = check.ModelDepth.nothing if shallow else check.ModelDepth.sure
    return launch.LaunchOptions(
        checks=None if arguments.no_check else depth,
        rerun=arguments.rerun,
        any_code=arguments.any_code,
        changed_code=arguments.changed_code,
        auto_resume=arguments.auto_resume,
        foreground=arguments.foreground,
        quiet=arguments.json,
    )
