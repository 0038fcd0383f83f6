"""`hpckit rerun`: starts runs again in a new launch, with their frozen configurations.

Overrides among the words change these.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hpckit.cli.launch_output import print_check_findings, print_scripts, print_started_launch
from hpckit.cli.options import add_common_options, add_flag
from hpckit.cli.run_choice import add_run_choice_arguments, choose_runs, extract_overrides
from hpckit.cli.terminal.waiting import Waiting, wait_for_launch
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.counted import format_count, format_ranges
from hpckit.model.events import RunsRerun
from hpckit.operations.next_step import launch_reference
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import Launch
from hpckit.report.run_filter import RunFilter
from hpckit.views.launch_view import Ask, build_launch_view
from hpckit.views.scheduler import Scheduler

TAKES_COMMAND = True

EPILOG = """\
examples:
  hpckit rerun .3           with today's code
  hpckit rerun .3 --exact   exactly as it was frozen
  hpckit rerun .3 lr=0.01   with another value
  hpckit rerun .3 -- python train.py --lr 0.01
  hpckit rerun digits --failed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `rerun`."""
    add_run_choice_arguments(parser, also="; lr=0.2 and any other override changes their configuration")
    add_flag(parser, "--exact", "with the code and the Python they were frozen with, not today's")
    add_flag(parser, "--dry-run", "print the batch scripts, and leave nothing behind")
    add_flag(parser, "--no-check", "do not look beforehand whether they can run")
    add_flag(parser, "--wait", "wait for the end: exit code 1 unless all completed")
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Launch runs again, and print what has changed in code and environment."""
    # Imported here: they import Hydra, which --help does not need.
    from hpckit.operations import check, launch, rerun  # noqa: PLC0415

    overrides = extract_overrides(arguments)
    chosen, named, wanted = choose_runs(arguments, context)
    indices = _choose_run_indices(chosen, named, wanted, context)
    source = rerun.prepare_rerun(
        chosen, indices, arguments.words, context, exact=arguments.exact, overrides=overrides
    )
    with source as (prepared, code, differences):
        _print_code_and_env_changes(code, differences, context)
        more = {
            "rerun_of": [chosen.runs[index].id for index in indices],
            "exact": arguments.exact,
            "code": code,
            "differences": differences,
        }
        if arguments.dry_run:
            print_scripts(prepared, context, as_json=arguments.json, more=more)
            return 0
        if not arguments.no_check:
            checked = check.check_launch(prepared, context)
            if not print_check_findings(checked, context):
                return 2
        started = launch.start_launch(prepared, context)
    told = RunsRerun(at=context.now(), launch=chosen.id, runs=tuple(indices))
    record_launch_event(started.launch.paths, told)
    print_started_launch(started, context, as_json=arguments.json, more=more)
    if not arguments.json:
        name = launch_reference(chosen, context)
        context.note(f"with the runs before: `hpckit results {name} --with-reruns`")
    return wait_for_launch(started.launch, context, Waiting(quiet=arguments.json)) if arguments.wait else 0


def _choose_run_indices(
    launch: Launch, indices: tuple[int, ...] | None, wanted: RunFilter, context: Context
) -> tuple[int, ...]:
    """Return the selected runs; with several runs in the launch, a choice is required.

    Says which runs match the filters, if there are any.
    """
    if not wanted.takes_all_runs:
        view = build_launch_view(launch, context, ask=Ask.open_runs, indices=indices)
        if view.scheduler is Scheduler.unreachable:
            context.note(f"warning: {view.warning}; runs are chosen by our own record")
        found = tuple(run.record.index for run in wanted.select_runs(view.runs, launch.id))
        of = format_count(len(launch.runs), "run")
        context.note(f"{len(found)} of {of} of {launch.id}: {format_ranges(found)}")
        return found
    if indices is None and len(launch.runs) > 1:
        raise UsageError(
            f"{launch.id} has {len(launch.runs)} runs; say which of them to start again",
            hint=f"name runs, such as {launch.runs[0].id}, or choose: --failed, --cause nan, "
            f"--runs 0-{len(launch.runs) - 1}; `hpckit results {launch.id}` lists them",
        )
    return (0,) if indices is None else indices


def _print_code_and_env_changes(code: str, differences: Sequence[str] | None, context: Context) -> None:
    context.note(f"code: {code}")
    for line in differences or ():
        context.note(f"environment: {line}")
    if not differences:
        unknown = differences is None
        context.note(f"environment: {'could not compare the environments' if unknown else 'nothing differs'}")
