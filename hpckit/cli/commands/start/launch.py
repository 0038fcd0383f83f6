"""`hpckit launch`: composes, freezes and starts runs."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hpckit.cli.compose_options import (
    add_composing,
    compose_request,
    recorded_words,
    show_instead,
)
from hpckit.cli.launch_output import (
    left_out,
    nothing_left,
    print_scripts,
    say_checked,
    say_known,
    say_started,
    wait_for_adopted,
)
from hpckit.cli.options import add_identity
from hpckit.cli.terminal.foreground import foreground, require_terminal
from hpckit.cli.terminal.waiting import Waiting, wait
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.planning.checks.foreground import check_foreground

if TYPE_CHECKING:  # they import Hydra, which --help does not need
    from hpckit.operations.deduplicate import KnownRuns
    from hpckit.operations.prepare import Prepared


TAKES_COMMAND = True
"""Words after `--` are a command to run, not overrides."""


_CLUSTER = re.compile(r"\+{0,2}cluster(\.kind)?=")


EPILOG = """\
examples:
  hpckit launch --wait -- python train.py --lr 0.1       a script, as you would start it
  hpckit launch experiment=mine -m lr=0.1,0.2 seed=1,2   a sweep of four runs
  hpckit launch resources.gpus_per_node=1 --foreground -- python train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select a configuration, and the options of `launch`."""
    add_composing(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the batch scripts, and leave nothing behind"
    )
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="do not look beforehand whether it can run (`hpckit check` does nothing else)",
    )
    parser.add_argument(
        "--auto-resume",
        action="store_true",
        help="queue a small job that resumes runs once all have ended, within their budgets",
    )
    afterwards = parser.add_mutually_exclusive_group()
    afterwards.add_argument(
        "--wait", action="store_true", help="wait for the end: exit code 1 unless all completed"
    )
    afterwards.add_argument(
        "--foreground",
        action="store_true",
        help="run it here, in this terminal: one rank, for breakpoint() and the like",
    )
    parser.add_argument(
        "--follow",
        "-f",
        action="store_true",
        help="with --wait: show what the runs print, as `hpckit logs --follow` does",
    )
    afterwards.add_argument(
        "--detach",
        dest="wait",
        action="store_false",
        help="return once it has started: you can log out then (default)",
    )
    add_identity(parser)


def _check_options(arguments: argparse.Namespace, context: Context) -> None:
    """Raise UsageError if options contradict each other, or need a terminal."""
    if arguments.auto_resume and arguments.wait:
        raise UsageError(
            "--auto-resume and --wait contradict each other: who is to resume?",
            hint="take --auto-resume and look with `hpckit status`, or launch and `hpckit watch`",
        )
    if arguments.follow and not arguments.wait:
        raise UsageError(
            "--follow shows what runs print while --wait waits for them",
            hint="hpckit launch --wait --follow ..., or later: hpckit logs --follow",
        )
    if arguments.follow and arguments.json:
        raise UsageError(
            "--follow and --json contradict each other",
            hint="`hpckit logs --follow --json` prints the lines of a run as JSON",
        )
    if not arguments.foreground:
        return
    for option in ("json", "auto_resume"):
        if getattr(arguments, option):
            raise UsageError(
                f"--foreground and --{option.replace('_', '-')} contradict each other",
                hint="in the foreground, what the run prints is all there is to be seen; "
                "`hpckit status --json` says afterwards how it ended",
            )
    if not arguments.dry_run:
        require_terminal(context)


def _implied(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the overrides that options imply: --foreground implies this machine."""
    chosen = any(_CLUSTER.match(word) for word in arguments.overrides)
    return ("cluster=local",) if arguments.foreground and not chosen else ()


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Launch, or show what would be launched."""
    if show_instead(arguments, context):
        return 0
    _check_options(arguments, context)
    # Imported here: they import Hydra, which --help does not need.
    from hpckit.operations import deduplicate, launch, prepare  # noqa: PLC0415

    request = compose_request(arguments, context, more=_implied(arguments))
    words = recorded_words(arguments, context)
    whole = prepare.prepare(request, words, context, quiet=arguments.json)
    division = deduplicate.KnownRuns()
    if arguments.foreground:  # the user wants to see the run even if its result is known
        check_foreground(whole.plan, request.overrides)
    elif not arguments.rerun:
        division = deduplicate.divide(whole, context, any_code=arguments.any_code)
    say_known(division, context, dry=arguments.dry_run)
    prepared = deduplicate.without_known(whole, division, context)
    if prepared is None:
        return nothing_left(whole, division, context, arguments)
    auto_resume = launch.auto_resume_script(prepared) if arguments.auto_resume else None
    if arguments.dry_run:
        if auto_resume is not None:
            scripts = {**prepared.scripts, len(prepared.plan.jobs): auto_resume}
            prepared = replace(prepared, scripts=scripts)
        more = left_out(prepared, division)
        print_scripts(prepared, context, as_json=arguments.json, more=more)
        return 0
    return _launch(prepared, division, arguments, context)


def _launch(
    prepared: Prepared, division: KnownRuns, arguments: argparse.Namespace, context: Context
) -> int:
    """Check, start, and wait if asked to."""
    from hpckit.operations import check, deduplicate, launch  # noqa: PLC0415  # they import Hydra

    if not arguments.no_check:
        if not say_checked(check.check_launch(prepared, context), context):
            return 2
        if arguments.auto_resume:
            launch.rehearse_auto_resume(prepared, context)
    if arguments.foreground:
        with foreground(context) as terminal:
            started = launch.start_launch(prepared, context, terminal=terminal.device)
            return terminal.attend(started.launch)
    started = launch.start_launch(prepared, context, auto_resume=arguments.auto_resume)
    deduplicate.record_known(division, started.launch, context)
    more = left_out(prepared, division)
    say_started(started, context, as_json=arguments.json, more=more)
    if not arguments.wait:
        return 0
    how = Waiting(quiet=arguments.json, follow=arguments.follow)
    code = wait(started.launch, context, how)
    return wait_for_adopted(division, context, how, code=code)
