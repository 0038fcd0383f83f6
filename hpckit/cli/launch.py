"""`hpckit launch`: composes, freezes and starts runs.

Responsible for the order of these steps and for what is printed of them; the steps themselves
are elsewhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from hpckit.cli.context import Context
from hpckit.cli.known import (
    add_identity,
    divide,
    nothing_left,
    say_known,
    wait_for_adopted,
    without_known,
)
from hpckit.cli.next_step import only_a_view, reference
from hpckit.cli.prepare import (
    Prepared,
    add_composing,
    compose_request,
    launch_document,
    prepare,
    script_documents,
    show_instead,
    write,
)
from hpckit.errors import SchedulerError, UsageError
from hpckit.model.counted import counted
from hpckit.model.events import LocalStarted
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec
from hpckit.planning.jobs.service_jobs import SERVICE_HINT, janitor_job
from hpckit.record.launches import Launch
from hpckit.slurm.commands import SlurmCommands


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A launch under way: the Slurm job of each run, the main jobs, and where it goes on.

    `janitor` is the job that will resume runs by itself, `feeder` the one that will hand in the
    runs that are `left`; null without one.
    """

    launch: Launch
    jobs: Mapping[int, str]
    main_jobs: tuple[str, ...]
    where: str
    janitor: str | None = None
    feeder: str | None = None
    left: int = 0


_OTHERS = timedelta(minutes=2)
"""How long supervisors that have begun may add their successors before the janitor is queued."""


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
        help="return once it is under way: nobody need stay logged in for the rest (default)",
    )
    add_identity(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Launch, or show what would be launched."""
    if show_instead(arguments, context):
        return 0
    whole = prepare(arguments, context)
    division = divide(whole, arguments, context)
    say_known(division, context, dry=arguments.dry_run)
    prepared = without_known(whole, division, arguments, context)
    if prepared is None:
        return nothing_left(whole, division, context, arguments)
    more = {**division.documents, "left_out": prepared.snapshot.left_out}
    janitor = _janitor_script(prepared, arguments, context) if arguments.auto_resume else None
    if arguments.dry_run:
        scripts = dict(prepared.scripts)
        if janitor is not None:
            scripts[len(prepared.plan.jobs)] = janitor
        prepared = replace(prepared, scripts=scripts)
        print_scripts(prepared, context, as_json=arguments.json, more=more)
        return 0
    if not arguments.no_check and not may_start(prepared, context):
        return 2
    if janitor is not None and not arguments.no_check:
        _rehearse_janitor(prepared, arguments, context)
    started = start(prepared, context)
    if started.left:
        started = _with_feeder(started, context)
    if arguments.auto_resume:
        started = _with_janitor(started, context)
    say_started(started, context, as_json=arguments.json, more=more)
    if not arguments.wait:
        return 0
    from hpckit.cli.wait import wait  # noqa: PLC0415  # only where somebody waits

    code = wait(started.launch, context, quiet=arguments.json)
    return wait_for_adopted(division, context, quiet=arguments.json, code=code)


def _janitor_script(prepared: Prepared, arguments: argparse.Namespace, context: Context) -> str:
    """Return the script of the first janitor, with names for the ids that Slurm has yet to give.

    Raises UsageError where there can be none.
    """
    if prepared.plan.cluster.kind is not ClusterKind.slurm:
        raise UsageError(
            "--auto-resume queues a job, and this launch runs on this machine (cluster.kind is "
            f"{prepared.plan.cluster.kind})",
            hint="`hpckit watch` resumes here what can be, for as long as it runs",
        )
    if arguments.wait:
        raise UsageError(
            "--auto-resume and --wait contradict each other: who is to resume?",
            hint="take --auto-resume and look with `hpckit status`, or launch and `hpckit watch`",
        )
    return _first_janitor(prepared, arguments, context)[1]


def _first_janitor(
    prepared: Prepared, arguments: argparse.Namespace, context: Context, *, waits: bool = True
) -> tuple[JobSpec, str]:
    """Return the first janitor and its script, which may be one that waits for no other job."""
    from hpckit.config.search_path import template_folders  # noqa: PLC0415  # lazy: Hydra is slow
    from hpckit.slurm.script import render  # noqa: PLC0415

    plan, jobs = prepared.plan, prepared.plan.jobs
    job = janitor_job(
        plan.id,
        index=len(jobs),
        like=jobs[0].resources,
        cluster=plan.cluster,
        after=[f"JOB{job.index}" for job in jobs] if waits else (),
    )
    return job, render(plan, job, template_folders(compose_request(arguments, context)))


def _rehearse_janitor(prepared: Prepared, arguments: argparse.Namespace, context: Context) -> None:
    """Raise SchedulerRefusedError where Slurm would not take the janitor; nothing is done yet."""
    from hpckit.cli.janitor import rehearse_janitor  # noqa: PLC0415  # only for those who ask

    job, text = _first_janitor(prepared, arguments, context, waits=False)
    rehearse_janitor(job, text, prepared.plan.cluster, context)


def _with_janitor(started: Started, context: Context) -> Started:
    """Queue the first janitor; raises SchedulerError where it cannot be, and the runs go on."""
    from hpckit.cli.adding import alone  # noqa: PLC0415  # only for those who ask for one
    from hpckit.cli.janitor import queue_janitor  # noqa: PLC0415

    launch = started.launch
    try:
        with alone(launch, context, patience=_OTHERS) as fresh:
            janitor = queue_janitor(fresh, started.main_jobs, context)
    except SchedulerError as error:
        raise type(error)(
            f"{launch.id} is under way ({started.where}), but nothing will resume it by itself: "
            f"{error.message}",
            hint=f"`hpckit watch {reference(launch, context)}` does, for as long as it runs; "
            f"{SERVICE_HINT}",
        ) from error
    return replace(started, janitor=janitor)


def print_scripts(
    prepared: Prepared, context: Context, *, as_json: bool, more: Mapping[str, object]
) -> None:
    """Print what would be submitted; `more` are further fields of the JSON object."""
    if as_json:
        document = launch_document(prepared.plan, {}, ())
        shown = script_documents(prepared.plan, prepared.scripts)
        context.say_json({**document, **more, "scripts": shown})
        return
    for text in prepared.scripts.values():
        context.stdout.write(text)


def may_start(prepared: Prepared, context: Context) -> bool:
    """Say what speaks against the launch, and return whether it may go on."""
    from hpckit.cli.checking import check_launch  # noqa: PLC0415  # not with --no-check

    checked = check_launch(prepared, context)
    for reason in checked.unchecked:
        context.note(f"not checked: {reason}")
    for finding in (*checked.warnings, *checked.errors):
        context.note(f"{finding.severity}: {finding.message}")
        context.note_more(finding.hint)
    if checked.errors:
        context.note("nothing was written or submitted; --no-check launches all the same")
    return not checked.errors


def start(prepared: Prepared, context: Context) -> Started:
    """Freeze a launch, and hand it to Slurm or to this machine; raises HpckitError."""
    if prepared.plan.cluster.kind is ClusterKind.slurm:
        return _start_on_slurm(prepared, context)
    from hpckit.cli import local  # noqa: PLC0415  # each launch needs one of the two

    local.require_linux()
    launch = write(prepared, context)
    with only_a_view(launch, context):
        executor = local.start(launch, context)
    return Started(launch=launch, jobs={}, main_jobs=(), where=on_this_machine(executor))


def _start_on_slurm(prepared: Prepared, context: Context) -> Started:
    from hpckit.cli.submission import Submission, slurm_commands  # noqa: PLC0415  # as above

    commands = slurm_commands(prepared.plan.cluster.bin_dir, context)
    launch = write(prepared, context)
    submission = Submission(
        launch=launch,
        jobs=_first_jobs(launch, commands, context),
        new=True,
        may_wait=True,
        chained=len(launch.jobs) > 1 and _is_chained(launch),
        quiet=prepared.quiet,
        commands=commands,
        context=context,
    )
    jobs = submission.submit()
    main_jobs = tuple(submission.accepted.values())
    left = len(launch.runs) - len(jobs)
    return Started(
        launch=submission.launch,
        jobs=jobs,
        main_jobs=main_jobs,
        where=on_slurm(main_jobs),
        left=left,
    )


def _first_jobs(launch: Launch, commands: SlurmCommands, context: Context) -> Sequence[JobSpec]:
    """Return what fits into the queue; the first job is tried in any case."""
    if len(launch.jobs) == 1:
        return launch.jobs
    from hpckit.cli.feeding import what_fits  # noqa: PLC0415  # few launches need it

    return what_fits(launch.jobs, commands, context.heard) or launch.jobs[:1]


def _is_chained(launch: Launch) -> bool:
    from hpckit.cli.feeding import is_chained  # noqa: PLC0415  # as above

    return is_chained(launch)


def _with_feeder(started: Started, context: Context) -> Started:
    """Queue what hands in the rest; where that cannot be, say who can, and the runs go on."""
    from hpckit.cli.adding import alone  # noqa: PLC0415  # only where not all of it fits
    from hpckit.cli.feeding import keep_feeder  # noqa: PLC0415
    from hpckit.cli.submission import slurm_commands  # noqa: PLC0415

    launch = started.launch
    try:
        commands = slurm_commands(launch.cluster.bin_dir, context)
        with alone(launch, context, patience=_OTHERS) as fresh:
            return replace(started, feeder=keep_feeder(fresh, commands, context))
    except SchedulerError as error:
        context.note(
            f"warning: nothing will hand in the other {started.left} runs by itself: "
            f"{error.message}\n  `hpckit watch {reference(launch, context)}` does, for as long as "
            "it runs"
        )
        return started


def on_slurm(main_jobs: Sequence[str]) -> str:
    """Return the words for what Slurm has been given."""
    return f"Slurm, {'jobs' if len(main_jobs) > 1 else 'job'} {', '.join(main_jobs)}"


def on_this_machine(executor: LocalStarted) -> str:
    """Return the words for who works through the runs here."""
    return f"local executor, process {executor.pid} on {executor.host}"


def say_started(
    started: Started, context: Context, *, as_json: bool, more: Mapping[str, object]
) -> None:
    """Say what was launched; `more` are further fields of the JSON object."""
    launch = started.launch
    if as_json:
        document = launch_document(launch, started.jobs, started.main_jobs)
        later = {"janitor": started.janitor, "feeder": started.feeder}
        context.say_json({**document, **later, **more})
        return
    count = len(launch.runs)
    context.say(f"launched {launch.id}: {counted(count, 'run')}")
    context.say(f"  folder  {launch.folder}")
    context.say(f"  on      {started.where}")
    if started.feeder is not None:
        context.say(f"  later   {started.left} runs: job {started.feeder} hands them in")
    if started.janitor is not None:
        context.say(f"  then    janitor, job {started.janitor}: resumes what can be")
    context.say(f"  next    hpckit status {reference(launch, context)}   (also: logs, cancel)")
