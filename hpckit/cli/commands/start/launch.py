"""`hpckit launch`: composes, freezes and starts runs."""

from __future__ import annotations

import argparse

from hpckit.cli.compose_options import add_compose_arguments, show_config_if_asked
from hpckit.cli.gc_pause import pause_garbage_collector
from hpckit.cli.options import add_flag, add_rerun_options
from hpckit.cli.parsing import exclude_options
from hpckit.cli.terminal.foreground import require_terminal
from hpckit.context import Context
from hpckit.errors import UsageError

TAKES_COMMAND = True
"""Words after `--` are a command to run, not overrides."""

EPILOG = """\
examples:
  hpckit launch --wait -- python train.py --lr 0.1       a script, as you would start it
  hpckit launch experiment=mine -m lr=0.1,0.2 seed=1,2   a sweep of four runs
  hpckit launch resources.gpus_per_node=1 --foreground -- python train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select a configuration, and the options of `launch`."""
    add_compose_arguments(parser)
    add_flag(parser, "--dry-run", "print the batch scripts, and leave nothing behind")
    add_flag(
        parser, "--no-check", "do not look beforehand whether it can run (`hpckit check` does nothing else)"
    )
    add_flag(
        parser,
        "--no-model",
        "do not run a function up to its first step to see whether its model fits its GPUs",
    )
    add_flag(
        parser,
        "--auto-resume",
        "queue a small job that resumes runs once all have ended, within their budgets",
    )
    afterwards = parser.add_mutually_exclusive_group()
    add_flag(afterwards, "--wait", "wait for the end: exit code 1 unless all completed")
    add_flag(
        afterwards, "--foreground", "run it here, in this terminal: one rank, for breakpoint() and the like"
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
    add_rerun_options(parser)
    hint = "take --auto-resume and look with `hpckit status`, or launch and `hpckit watch`"
    exclude_options(parser, "--auto-resume", "--wait", hint=hint)
    hint = "`hpckit logs --follow --json` prints the lines of a run as JSON"
    exclude_options(parser, "--follow", "--json", hint=hint)
    hint = "the terminal shows the run alone; `hpckit status --json` says afterwards how it ended"
    exclude_options(parser, "--foreground", "--json", "--auto-resume", "--any-code", hint=hint)
    hint = "--rerun launches all; --any-code leaves out what has completed, with whatever code"
    exclude_options(parser, "--rerun", "--any-code", hint=hint)


def _refuse_lonely_options(arguments: argparse.Namespace, context: Context) -> None:
    """Raise UsageError if an option needs another one, or a terminal."""
    if arguments.follow and not arguments.wait:
        raise UsageError(
            "--follow needs --wait: it shows what runs print during the wait",
            hint="hpckit launch --wait --follow ..., or later: hpckit logs --follow",
        )
    if arguments.foreground and not arguments.dry_run:
        require_terminal(context)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Launch, or show what would be launched."""
    if show_config_if_asked(arguments, context):
        return 0
    _refuse_lonely_options(arguments, context)
    with pause_garbage_collector():
        # Imported here: it imports Hydra, which --help does not need.
        from hpckit.cli.launching import launch_or_show  # noqa: PLC0415

    return launch_or_show(arguments, context)
