"""`hpckit doctor`: settles submissions of unknown outcome; with --env looks at a compute node."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from importlib import import_module

from hpckit.cli.compose_options import add_config_source_options
from hpckit.cli.options import add_common_options, add_flag, choose_output_dir
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.plain import attributes_to_json
from hpckit.operations.submit import (
    SettledAs,
    UnconfirmedJob,
    adopt_or_cancel_unconfirmed_job,
    find_unconfirmed_jobs,
)
from hpckit.record.launches import Launch, load_launch
from hpckit.record.lookup import find_launch_or_run, list_own_launches

TAKES_COMMAND = True
"""With --env, words after `--` are a command, as for `launch`."""

EPILOG = """\
examples:
  hpckit doctor   what broken submissions left behind
  hpckit doctor --adopt
  hpckit doctor --env cluster=lab resources=one_gpu   what will not work on a node, and why
  hpckit doctor --env --here   this machine alone
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="LAUNCH|OVERRIDE",
        help="one launch (default: all there are); with --env overrides, as for `launch`",
    )
    add_flag(
        parser, "--env", "compare this machine with a compute node: torch, CUDA, driver, folders, limits"
    )
    add_flag(parser, "--here", "with --env: look at this machine alone")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--adopt", action="store_true", help="make what Slurm has part of its run")
    action.add_argument("--cancel", action="store_true", help="cancel what Slurm has")
    add_config_source_options(parser)
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show unconfirmed jobs and, if asked to, settle them; returns 0 if Slurm answered.

    With --env, returns 1 if something will surely not work on a compute node.
    """
    _refuse_mixed_options(arguments)
    if not arguments.env:
        return _show_or_settle_unconfirmed_jobs(arguments, context)
    # Imports Hydra, which --help and the other question do not need.
    code: int = import_module("hpckit.cli.environment").show_environment(arguments, context)
    return code


def _refuse_mixed_options(arguments: argparse.Namespace) -> None:
    """Raise UsageError if options of the two questions are mixed."""
    settles = arguments.adopt or arguments.cancel
    if arguments.env and settles:
        raise UsageError(
            "--env looks at machines; --adopt and --cancel settle submissions",
            hint="hpckit doctor --env OVERRIDE ..., or hpckit doctor --adopt",
        )
    composes = arguments.config_dir or arguments.config_name or arguments.command is not None
    if arguments.env or not (arguments.here or composes or len(arguments.overrides) > 1):
        return
    raise UsageError(
        "overrides, a command, --here and the options of configurations are for --env",
        hint="hpckit doctor --env cluster=lab, or hpckit doctor LAUNCH",
    )


def _show_or_settle_unconfirmed_jobs(arguments: argparse.Namespace, context: Context) -> int:
    decided = arguments.adopt or arguments.cancel
    settled = [
        (
            found,
            adopt_or_cancel_unconfirmed_job(found, context, adopt=arguments.adopt)
            if decided
            else SettledAs.untouched,
        )
        for found in find_unconfirmed_jobs(_load_named_launches(arguments, context), context)
    ]
    if arguments.json:
        context.say_json({"unconfirmed": [_unconfirmed_job_to_json(*each) for each in settled]})
    elif not settled:
        context.say("every submission is accounted for")
    else:
        _print_unconfirmed_jobs(settled, context, decided=decided)
    return 0


def _unconfirmed_job_to_json(found: UnconfirmedJob, outcome: SettledAs) -> dict[str, object]:
    fields = "launch=launch.id dir=launch.folder job_index=job.index job_name=job.name jobs"
    return attributes_to_json(found, fields) | {"outcome": outcome}


def _load_named_launches(arguments: argparse.Namespace, context: Context) -> Iterator[Launch]:
    folder = choose_output_dir(arguments, context)
    if not arguments.overrides:
        yield from map(load_launch, list_own_launches(folder))
    else:
        yield find_launch_or_run(arguments.overrides[0], folder, cwd=context.cwd).launch


def _print_unconfirmed_jobs(
    settled: Sequence[tuple[UnconfirmedJob, SettledAs]], context: Context, *, decided: bool
) -> None:
    for found, outcome in settled:
        known = f"Slurm has it as {', '.join(found.jobs)}" if found.jobs else "Slurm has none"
        context.say(f"{found.launch.id}: job {found.job.name}: {known}; {outcome}")
    if not decided and any(outcome is SettledAs.untouched for _, outcome in settled):
        context.say("`hpckit doctor --adopt` keeps these jobs, `hpckit doctor --cancel` cancels them")
