"""`hpckit launch`: composes, freezes and starts runs.

Responsible for the order of these steps and for what is printed of them; the steps themselves
are elsewhere.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.cli.context import Context
from hpckit.cli.prepare import (
    Prepared,
    add_composing,
    launch_document,
    prepare,
    script_documents,
    show_instead,
    write,
)
from hpckit.model.events import LocalStarted
from hpckit.model.launch import ClusterKind
from hpckit.record.launches import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A launch under way: the Slurm job of each run, the main jobs, and where it goes on."""

    launch: Launch
    jobs: Mapping[int, str]
    main_jobs: tuple[str, ...]
    where: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which configuration is meant, and what becomes of it."""
    add_composing(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the batch scripts, and leave nothing behind"
    )
    parser.add_argument(
        "--wait", action="store_true", help="wait for the end: exit code 1 unless all completed"
    )


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Launch, or show what would be launched."""
    if show_instead(arguments, context):
        return 0
    if arguments.dry_run:
        _print_scripts(prepare(arguments, context), context, as_json=arguments.json)
        return 0
    started = _start(arguments, context)
    _say(started, context, as_json=arguments.json)
    if not arguments.wait:
        return 0
    from hpckit.cli.wait import wait  # noqa: PLC0415  # only where somebody waits

    return wait(started.launch, context, quiet=arguments.json)


def _print_scripts(prepared: Prepared, context: Context, *, as_json: bool) -> None:
    if as_json:
        scripts = script_documents(prepared.plan, prepared.scripts)
        context.say_json({**launch_document(prepared.plan, {}, ()), "scripts": scripts})
        return
    for text in prepared.scripts.values():
        context.stdout.write(text)


def _start(arguments: argparse.Namespace, context: Context) -> Started:
    prepared = prepare(arguments, context)
    if prepared.plan.cluster.kind is ClusterKind.slurm:
        return _start_on_slurm(prepared, context)
    from hpckit.cli.local import start  # noqa: PLC0415  # each launch needs one of the two

    launch = write(prepared, context)
    executor = start(launch, context)
    return Started(launch=launch, jobs={}, main_jobs=(), where=on_this_machine(executor))


def _start_on_slurm(prepared: Prepared, context: Context) -> Started:
    from hpckit.cli.submission import Submission, slurm_commands  # noqa: PLC0415  # as above

    commands = slurm_commands(prepared.plan.cluster.bin_dir, context)
    launch = write(prepared, context)
    submission = Submission(
        launch=launch, jobs=launch.jobs, new=True, commands=commands, context=context
    )
    jobs = submission.submit()
    main_jobs = tuple(submission.accepted.values())
    return Started(
        launch=submission.launch,
        jobs=jobs,
        main_jobs=main_jobs,
        where=on_slurm(main_jobs),
    )


def on_slurm(main_jobs: Sequence[str]) -> str:
    """Return the words for what Slurm has been given."""
    return f"Slurm, {'jobs' if len(main_jobs) > 1 else 'job'} {', '.join(main_jobs)}"


def on_this_machine(executor: LocalStarted) -> str:
    """Return the words for who works through the runs here."""
    return f"local executor, process {executor.pid} on {executor.host}"


def _say(started: Started, context: Context, *, as_json: bool) -> None:
    launch = started.launch
    if as_json:
        context.say_json(launch_document(launch, started.jobs, started.main_jobs))
        return
    count = len(launch.runs)
    context.say(f"launched {launch.id}: {count} {'run' if count == 1 else 'runs'}")
    context.say(f"  folder  {launch.folder}")
    context.say(f"  on      {started.where}")
    context.say(f"  next    hpckit status {reference(launch, context)}   (also: logs, cancel)")


def reference(launch: Launch, context: Context) -> str:
    """Return what later verbs find the launch by: its folder where the default is elsewhere."""
    default = context.environ.get("HPCKIT_OUTPUTS") or "outputs"
    here = context.cwd / Path(default).expanduser()
    return launch.id if launch.folder.parent == here else shlex.quote(str(launch.folder))
