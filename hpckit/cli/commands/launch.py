"""`hpckit launch`: composes, freezes and starts runs."""

from __future__ import annotations

import argparse
from dataclasses import replace

from hpckit.cli.compose_options import add_composing, compose_request, show_instead
from hpckit.cli.launch_output import (
    nothing_left,
    print_scripts,
    say_checked,
    say_known,
    say_started,
    wait_for_adopted,
)
from hpckit.cli.options import add_identity
from hpckit.cli.terminal.waiting import wait
from hpckit.context import Context
from hpckit.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which configuration is meant, and what becomes of it."""
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
        "--detach",
        dest="wait",
        action="store_false",
        help="return once it has started: you can log out then (default)",
    )
    add_identity(parser)


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.auto_resume and arguments.wait:
        raise UsageError(
            "--auto-resume and --wait contradict each other: who is to resume?",
            hint="take --auto-resume and look with `hpckit status`, or launch and `hpckit watch`",
        )


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Launch, or show what would be launched."""
    if show_instead(arguments, context):
        return 0
    _check_options(arguments)
    # Imported here: they import Hydra, which --help does without.
    from hpckit.operations import check, deduplicate, launch, prepare  # noqa: PLC0415

    quiet = arguments.json
    request = compose_request(arguments, context)
    whole = prepare.prepare(request, arguments.words, context, quiet=quiet)
    division = deduplicate.KnownRuns()
    if not arguments.rerun:
        division = deduplicate.divide(whole, context, any_code=arguments.any_code)
    say_known(division, context, dry=arguments.dry_run)
    prepared = deduplicate.without_known(whole, division, context)
    if prepared is None:
        return nothing_left(whole, division, context, arguments)
    more = {**division.documents, "left_out": prepared.snapshot.left_out}
    auto_resume = launch.auto_resume_script(prepared) if arguments.auto_resume else None
    if arguments.dry_run:
        if auto_resume is not None:
            prepared = replace(
                prepared, scripts={**prepared.scripts, len(prepared.plan.jobs): auto_resume}
            )
        print_scripts(prepared, context, as_json=quiet, more=more)
        return 0
    if not arguments.no_check:
        if not say_checked(check.check_launch(prepared, context), context):
            return 2
        if auto_resume is not None:
            launch.rehearse_auto_resume(prepared, context)
    started = launch.start(prepared, context, auto_resume=arguments.auto_resume)
    deduplicate.record_known(division, started.launch, context)
    say_started(started, context, as_json=quiet, more=more)
    if not arguments.wait:
        return 0
    code = wait(started.launch, context, quiet=quiet)
    return wait_for_adopted(division, context, quiet=quiet, code=code)
