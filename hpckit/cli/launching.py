"""Launches what the options of `launch` ask for, or shows it; imports Hydra."""

from __future__ import annotations

import argparse

from hpckit.cli.compose_options import compose_request, recorded_words
from hpckit.cli.gc_pause import gc_paused
from hpckit.cli.launch_output import (
    WOULD_ASK,
    left_out,
    may_repeat,
    nothing_left,
    print_scripts,
    say_checked,
    say_known,
    say_started,
    wait_for_all,
)
from hpckit.cli.terminal.foreground import foreground
from hpckit.context import Context
from hpckit.operations import check, launch
from hpckit.patterns import lazy_pattern
from hpckit.values import replace

_CLUSTER = lazy_pattern(r"\+{0,2}cluster(\.kind)?=")


def launch_or_show(arguments: argparse.Namespace, context: Context) -> int:
    """Launch, or with --dry-run print the scripts; returns the exit code of the verb."""
    options = _options(arguments)
    chosen = any(_CLUSTER.match(word) for word in arguments.overrides)
    here = ("cluster=local",) if arguments.foreground and not chosen else ()
    request = compose_request(arguments, context, more=here)
    with gc_paused():
        words = recorded_words(arguments, context)
        planned = launch.plan_launch(request, words, options, context)
    known, left = planned.known, planned.left
    say_known(known, context, planned.whole.plan.cluster.kind, dry=arguments.dry_run)
    if left is None:
        return nothing_left(planned.whole, known, context, arguments)
    more = left_out(left, known)
    if arguments.dry_run:
        shown = replace(left, scripts=planned.scripts)
        print_scripts(shown, context, as_json=arguments.json, more=more)
    elif not may_repeat(known, arguments, context):
        return 2
    checked = launch.check_planned(planned, context)
    fits = checked is None or say_checked(checked, context)
    if arguments.dry_run and planned.repeats:
        context.note(WOULD_ASK)
        return 2
    if arguments.dry_run or not fits:
        return 0 if fits else 2
    if arguments.foreground:
        with foreground(context) as terminal:
            started = launch.start_launch(left, context, terminal=terminal.device)
            return terminal.attend(started.launch)
    started = launch.start_planned(left, planned, context)
    say_started(started, context, as_json=arguments.json, more=more)
    return wait_for_all(started.launch, known, context, arguments) if arguments.wait else 0


def _options(arguments: argparse.Namespace) -> launch.LaunchOptions:
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
