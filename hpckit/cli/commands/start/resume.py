"""`hpckit resume`: submits only what failed or is missing, again, into the same run folders.

Does not change what was frozen: code, configurations and template are those of the launch. Only the
layout over ranks, and what Slurm is asked for, may be others from the next attempt on:
`parallel=hsdp`, `resources.timeout_min=120`.
"""

from __future__ import annotations

import argparse
from functools import partial

from hpckit.cli.launch_output import launch_to_json, scripts_to_json
from hpckit.cli.options import add_common_options, add_flag, add_resume_options
from hpckit.cli.run_choice import add_run_choice_arguments, choose_runs, extract_overrides
from hpckit.cli.terminal.waiting import Waiting, wait_for_launch
from hpckit.context import Context
from hpckit.model.counted import format_count
from hpckit.model.launch import ClusterKind
from hpckit.operations.new_settings import (
    build_settings_order,
    format_new_settings,
    new_settings_to_json,
    parse_resume_overrides,
)
from hpckit.operations.next_step import launch_reference
from hpckit.operations.notices.tell import resend_unsent_notices
from hpckit.operations.resume import (
    Order,
    Resuming,
    check_resume_accepted,
    describe_started_runs,
    format_resume_forecast,
    format_resume_steps,
    format_skipped_runs,
    prepare_resume,
    resume_runs,
    skipped_runs_to_json,
)
from hpckit.operations.started import Started
from hpckit.record.snapshot.changes import list_project_edits_since_launch
from hpckit.record.snapshot.outside import (
    find_changed_outside_code,
    format_changed_code_warning,
    read_outside_code_checksums,
)
from hpckit.values import replace

EPILOG = """\
examples:
  hpckit resume   what is left of the latest launch
  hpckit resume digits --cause oom,hang --dry-run
  hpckit resume digits resources.timeout_min=120   go on from its checkpoint with more time
  hpckit resume digits parallel=hsdp               ... in another layout
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `resume`."""
    add_run_choice_arguments(
        parser, also="; resources.timeout_min=120 or parallel=hsdp continues them with other settings"
    )
    add_resume_options(parser)
    add_flag(
        parser,
        "--dry-run",
        "say which runs would be resumed and why the others not, print the batch scripts, and change nothing",
    )
    add_flag(parser, "--no-check", "submit without a test submission before")
    add_flag(parser, "--wait", "wait for the resumed runs: 1 unless all completed")
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Resume, or show what would be submitted; returns 0 also if there is nothing to do."""
    words = parse_resume_overrides(extract_overrides(arguments))
    launch, indices, wanted = choose_runs(arguments, context)
    sole = bool(arguments.references) and len(launch.runs) == 1
    named = sole or indices is not None or wanted.includes_cancelled
    order = Order(
        indices=indices,
        wanted=wanted,
        cancelled=arguments.cancelled or named,
        changed_code=arguments.changed_code,
        settings=build_settings_order(launch, words, context),
        unchecked=arguments.no_check,
    )
    if arguments.dry_run:
        resuming = prepare_resume(launch, order, context)
        show = partial(_print_resume_plan, resuming, context, as_json=arguments.json)
        if not arguments.json:  # an error and a document exclude each other
            show()
        check_resume_accepted(resuming, context)
        if arguments.json:
            show()
        return 0
    resuming, started = resume_runs(launch, order, context)
    _print_resume_result(resuming, started, context, as_json=arguments.json)
    resend_unsent_notices(resuming.launch, context)
    if started is None or not arguments.wait:
        return 0
    runs = sorted({*resuming.choice.resumed, *started.jobs})
    return wait_for_launch(started.launch, context, Waiting(quiet=arguments.json, indices=runs))


def _resume_to_json(resuming: Resuming, started: Started | None) -> dict[str, object]:
    launch = resuming.launch
    resumed = tuple(launch.runs[run] for run in resuming.choice.resumed)
    document = launch_to_json(replace(launch, runs=resumed), started)
    if resuming.auto_resume is not None:
        document["auto_resume_job"] = resuming.auto_resume.job
    document["new_layouts"] = new_settings_to_json(resuming.settings)
    return {**document, "skipped": skipped_runs_to_json(resuming.choice.skipped)}


def _print_resume_plan(resuming: Resuming, context: Context, *, as_json: bool) -> None:
    launch = resuming.launch
    scripts = resuming.scripts if launch.cluster.kind is ClusterKind.slurm else {}
    if as_json:
        shown = scripts_to_json(launch, scripts)
        context.say_json({**_resume_to_json(resuming, None), "scripts": shown})
        return
    if not resuming.jobs:
        context.say(f"nothing to resume in {launch.id}")
    else:
        count, of = len(resuming.choice.resumed), format_count(len(launch.runs), "run")
        context.say(f"would resume {count} of {of} of {launch.id}")
    for line in format_resume_forecast(resuming):
        context.say(f"  {line}")
    _print_new_settings(resuming, context)
    for index, text in scripts.items():
        context.say(f"--- {launch.paths.script(index).name}")
        context.stdout.write(text)


def _print_resume_result(
    resuming: Resuming, started: Started | None, context: Context, *, as_json: bool
) -> None:
    if started is not None:
        _tell_that_edits_do_not_apply(resuming, context)
    if as_json:
        context.say_json(_resume_to_json(resuming, started))
        return
    if started is None:
        context.say(f"nothing to resume in {resuming.launch.id}")
        for line in format_skipped_runs(resuming.choice.skipped):
            context.say(f"  {line}")
        return
    launch, (word, count) = started.launch, describe_started_runs(resuming, started)
    context.say(f"{word} {launch.id}: {count} of {format_count(len(launch.runs), 'run')}")
    context.say(f"  folder  {launch.folder}")
    context.say(f"  on      {started.where}")
    _print_new_settings(resuming, context)
    for line in format_resume_steps(resuming):
        context.say(f"  begins  {line}")
    for line in format_skipped_runs(resuming.choice.skipped):
        context.say(f"  left    {line}")
    context.say(f"  next    hpckit status {launch_reference(launch, context)}   (also: logs, cancel)")


def _print_new_settings(resuming: Resuming, context: Context) -> None:
    for line in format_new_settings(resuming.settings):
        context.say(f"  {line}")


def _tell_that_edits_do_not_apply(resuming: Resuming, context: Context) -> None:
    """Note that edits since the launch do not apply: a user who fixed a bug expects them to."""
    if not resuming.choice.resumed:
        return
    paths, code = resuming.launch.paths, resuming.launch.code
    other = find_changed_outside_code(paths, code.project, read_outside_code_checksums(paths))
    if other:
        context.note(f"warning: {format_changed_code_warning(other)}; what is resumed runs it as it is now")
    edited = [
        path for path in list_project_edits_since_launch(paths) if f"{code.project}/{path}" not in other
    ]
    if not edited:
        return
    more = f" and {format_count(len(edited) - 1, 'more file')}" if len(edited) > 1 else ""
    run = resuming.launch.runs[resuming.choice.resumed[0]].id
    context.note(
        f"note: {edited[0]}{more} changed in the project since the launch; what is resumed runs "
        "the code as it was then"
    )
    context.note_more(f"`hpckit rerun {run}` runs it with today's code, from the start")
