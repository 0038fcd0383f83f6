"""`hpckit resume`: submits only what failed or is missing, again, into the same run folders.

Does not change what was frozen: code, configurations and template are those of the launch. Only the
layout over ranks, and what Slurm is asked for, may be others from the next attempt on:
`parallel=hsdp`, `resources.timeout_min=120`.
"""

from __future__ import annotations

import argparse

from hpckit.cli.launch_output import launch_document, script_documents
from hpckit.cli.options import add_common, add_flag, add_judgement
from hpckit.cli.run_choice import add_run_choice, run_choice, take_overrides
from hpckit.cli.terminal.waiting import Waiting, wait
from hpckit.context import Context
from hpckit.model.counted import counted
from hpckit.model.launch import ClusterKind
from hpckit.operations.new_settings import (
    read_settings_words,
    settings_documents,
    settings_lines,
    settings_order,
)
from hpckit.operations.next_step import reference
from hpckit.operations.notices.tell import send_kept
from hpckit.operations.resume import (
    Order,
    Resuming,
    check_resume,
    first_steps,
    forecast,
    left_alone,
    prepare_resume,
    resume,
    skipped_document,
    what_started,
)
from hpckit.operations.started import Started
from hpckit.record.snapshot.changes import edited_since
from hpckit.record.snapshot.outside import changed_outside, recorded_outside, unfrozen_words
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
    add_run_choice(
        parser,
        also="; resources.timeout_min=120 or parallel=hsdp continues them with other settings",
    )
    add_judgement(parser)
    add_flag(
        parser,
        "--dry-run",
        "say which runs would be resumed and why the others not, print the batch scripts, "
        "and change nothing",
    )
    add_flag(parser, "--no-check", "do not ask beforehand whether Slurm would take it")
    add_flag(parser, "--wait", "wait for the resumed runs: 1 unless all completed")
    add_common(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Resume, or show what would be submitted; returns 0 also if there is nothing to do."""
    words = read_settings_words(take_overrides(arguments))
    launch, indices, wanted = run_choice(arguments, context)
    sole = bool(arguments.references) and len(launch.runs) == 1
    named = sole or indices is not None or wanted.names_cancelled
    order = Order(
        indices=indices,
        wanted=wanted,
        cancelled=arguments.cancelled or named,
        changed_code=arguments.changed_code,
        settings=settings_order(launch, words, context),
        unchecked=arguments.no_check,
    )
    if arguments.dry_run:
        resuming = prepare_resume(launch, order, context)
        _show(resuming, context, as_json=arguments.json)
        check_resume(resuming, context)
        return 0
    resuming, started = resume(launch, order, context)
    _say(resuming, started, context, as_json=arguments.json)
    send_kept(resuming.launch, context)
    if started is None or not arguments.wait:
        return 0
    runs = sorted({*resuming.choice.resumed, *started.jobs})
    return wait(started.launch, context, Waiting(quiet=arguments.json, indices=runs))


def _document(resuming: Resuming, started: Started | None) -> dict[str, object]:
    launch = resuming.launch
    resumed = tuple(launch.runs[run] for run in resuming.choice.resumed)
    document = launch_document(replace(launch, runs=resumed), started)
    if resuming.auto_resume is not None:
        document["auto_resume_job"] = resuming.auto_resume.job
    document["new_layouts"] = settings_documents(resuming.settings)
    return {**document, "skipped": skipped_document(resuming.choice.skipped)}


def _show(resuming: Resuming, context: Context, *, as_json: bool) -> None:
    """Print what would be resumed, then the scripts that would be submitted to Slurm."""
    launch = resuming.launch
    scripts = resuming.scripts if launch.cluster.kind is ClusterKind.slurm else {}
    if as_json:
        shown = script_documents(launch, scripts)
        context.say_json({**_document(resuming, None), "scripts": shown})
        return
    if not resuming.jobs:
        context.say(f"nothing to resume in {launch.id}")
    else:
        count, of = len(resuming.choice.resumed), counted(len(launch.runs), "run")
        context.say(f"would resume {count} of {of} of {launch.id}")
    for line in forecast(resuming):
        context.say(f"  {line}")
    _say_settings(resuming, context)
    for index, text in scripts.items():
        context.say(f"--- {launch.paths.script(index).name}")
        context.stdout.write(text)


def _say(resuming: Resuming, started: Started | None, context: Context, *, as_json: bool) -> None:
    if started is not None:
        _tell_frozen_code(resuming, context)
    if as_json:
        context.say_json(_document(resuming, started))
        return
    if started is None:
        context.say(f"nothing to resume in {resuming.launch.id}")
        for line in left_alone(resuming.choice.skipped):
            context.say(f"  {line}")
        return
    launch, (word, count) = started.launch, what_started(resuming, started)
    context.say(f"{word} {launch.id}: {count} of {counted(len(launch.runs), 'run')}")
    context.say(f"  folder  {launch.folder}")
    context.say(f"  on      {started.where}")
    _say_settings(resuming, context)
    for line in first_steps(resuming):
        context.say(f"  begins  {line}")
    for line in left_alone(resuming.choice.skipped):
        context.say(f"  left    {line}")
    context.say(f"  next    hpckit status {reference(launch, context)}   (also: logs, cancel)")


def _say_settings(resuming: Resuming, context: Context) -> None:
    for line in settings_lines(resuming.settings):
        context.say(f"  {line}")


def _tell_frozen_code(resuming: Resuming, context: Context) -> None:
    """Note that edits since the launch do not apply: a user who fixed a bug expects them to."""
    if not resuming.choice.resumed:
        return
    paths, code = resuming.launch.paths, resuming.launch.code
    other = changed_outside(paths, code.project, recorded_outside(paths))
    if other:
        context.note(f"warning: {unfrozen_words(other)}; what is resumed runs it as it is now")
    edited = [path for path in edited_since(paths) if f"{code.project}/{path}" not in other]
    if not edited:
        return
    more = f" and {counted(len(edited) - 1, 'more file')}" if len(edited) > 1 else ""
    run = resuming.launch.runs[resuming.choice.resumed[0]].id
    context.note(
        f"note: {edited[0]}{more} changed in the project since the launch; what is resumed runs "
        "the code as it was then"
    )
    context.note_more(f"`hpckit rerun {run}` runs it with today's code, from the start")
