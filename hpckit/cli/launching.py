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
from hpckit.operations import check, launch, prepare
from hpckit.operations.deduplicate import KnownRuns
from hpckit.operations.prepare import Prepared
from hpckit.patterns import lazy_pattern
from hpckit.planning.checks.slips import check_foreground
from hpckit.values import replace

_CLUSTER = lazy_pattern(r"\+{0,2}cluster(\.kind)?=")


def launch_or_show(arguments: argparse.Namespace, context: Context) -> int:
    """Launch, or with --dry-run print the scripts; returns the exit code of the verb."""
    chosen = any(_CLUSTER.match(word) for word in arguments.overrides)
    here = ("cluster=local",) if arguments.foreground and not chosen else ()
    request = compose_request(arguments, context, more=here)
    with gc_paused():
        words, checked = recorded_words(arguments, context), not arguments.no_check
        whole = prepare.prepare(request, words, context, checked=checked, quiet=arguments.json)
        known = not (arguments.foreground or arguments.rerun)  # the user wants to see the run
        division, prepared = launch.leave_known_out(
            whole, context, known=known, any_code=arguments.any_code
        )
    if arguments.foreground:
        check_foreground(whole.plan, request.overrides)
    say_known(division, context, whole.plan.cluster.kind, dry=arguments.dry_run)
    if prepared is None:
        return nothing_left(whole, division, context, arguments)
    auto_resume = launch.auto_resume_script(prepared) if arguments.auto_resume else None
    if arguments.dry_run:
        if auto_resume is not None:
            scripts = {**prepared.scripts, len(prepared.plan.jobs): auto_resume}
            prepared = replace(prepared, scripts=scripts)
        more = left_out(prepared, division)
        print_scripts(prepared, context, as_json=arguments.json, more=more)
        prepare.with_destinations(prepared, context)
        fits = arguments.no_check or say_checked(check.check_launch(prepared, context), context)
        if division.repeats and not arguments.changed_code:
            context.note(WOULD_ASK)
            return 2
        return 0 if fits else 2
    prepared = prepare.with_destinations(prepared, context)
    if not may_repeat(division, arguments, context):
        return 2
    return _launch(prepared, division, arguments, context)


def _launch(
    prepared: Prepared, division: KnownRuns, arguments: argparse.Namespace, context: Context
) -> int:
    """Check, start, and wait if asked to."""
    if not arguments.no_check:
        depth = check.ModelDepth.nothing if arguments.no_model else check.ModelDepth.sure
        if not say_checked(check.check_launch(prepared, context, models=depth), context):
            return 2
        if arguments.auto_resume:
            launch.rehearse_auto_resume(prepared, context)
    if arguments.foreground:
        with foreground(context) as terminal:
            started = launch.start_launch(prepared, context, terminal=terminal.device)
            return terminal.attend(started.launch)
    started = launch.start_launch(
        prepared, context, division=division, auto_resume=arguments.auto_resume
    )
    more = left_out(prepared, division)
    say_started(started, context, as_json=arguments.json, more=more)
    if not arguments.wait:
        return 0
    return wait_for_all(started.launch, division, context, arguments)
