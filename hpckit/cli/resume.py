"""`hpckit resume`: submits again just what failed or is missing, into the same run folders.

Responsible for the order of these steps and for what is said of them. It must not compose, freeze
or change what was frozen: the code, the configurations and the template are those of the launch.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from hpckit.cli.adding import add_job, alone
from hpckit.cli.asking import Scheduler
from hpckit.cli.context import Context, add_json, add_output_dir, add_reference, output_dir
from hpckit.cli.eligible import check_unchanged, known_of, spent_of
from hpckit.cli.launch import Started, on_slurm, on_this_machine
from hpckit.cli.next_step import reference
from hpckit.cli.prepare import launch_document, script_documents
from hpckit.cli.rerender import rendered
from hpckit.cli.views import Ask, launch_view, unconfirmed
from hpckit.errors import SchedulerAwayError, SchedulerError
from hpckit.model.counted import counted
from hpckit.model.events import JobAdded
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec
from hpckit.model.run import Observation, RunView
from hpckit.planning.recovery.resume import (
    Choice,
    Skipped,
    added_jobs,
    added_jobs_of_stages,
    choose,
)
from hpckit.record.durations import time_taken
from hpckit.record.launches import (
    Launch,
    latest_attempt,
    load_launch,
    read_launch_history,
)
from hpckit.record.lookup import find
from hpckit.record.snapshot.changes import check_snapshot, edited_since
from hpckit.report.rows import count_states


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be resumed: `indices` null means all runs.

    `bounded` is whether the runs' own budgets hold: nobody has asked for these very runs.
    """

    indices: Sequence[int] | None = None
    cancelled: bool = False
    changed_code: bool = False
    bounded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resuming:
    """What would be submitted again: `attempts` is how many each resumed run has had.

    `janitor` is the job that resumes runs by itself, while Slurm has one.
    """

    launch: Launch
    order: Order
    views: tuple[RunView, ...]
    choice: Choice
    jobs: tuple[JobSpec, ...]
    scripts: dict[int, str]
    attempts: dict[int, int]
    janitor: Observation | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `resume` understands."""
    add_reference(parser)
    add_judgement(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the batch scripts, and change nothing"
    )
    parser.add_argument(
        "--wait", action="store_true", help="wait for the resumed runs: 1 unless all completed"
    )
    add_json(parser)
    add_output_dir(parser)


def add_judgement(parser: argparse.ArgumentParser) -> None:
    """Add what says which runs count, and whether a change stands in the way."""
    parser.add_argument(
        "--cancelled", action="store_true", help="cancelled runs, too (a run that is named is)"
    )
    parser.add_argument(
        "--changed-code",
        action="store_true",
        help="go on although the launch's own code, configuration or template was edited",
    )


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Resume, or show what would be submitted; 0 also where there is nothing to do."""
    selection = find(arguments.reference, output_dir(arguments, context), cwd=context.cwd)
    named = selection.index is not None
    order = Order(
        indices=None if selection.index is None else (selection.index,),
        cancelled=arguments.cancelled or named,
        changed_code=arguments.changed_code,
    )
    if arguments.dry_run:
        _show(prepare_resume(selection.launch, order, context), context, as_json=arguments.json)
        return 0
    resuming, started = resume(selection.launch, order, context)
    _say(resuming, started, context, as_json=arguments.json)
    if started is None or not arguments.wait:
        return 0
    from hpckit.cli.wait import wait  # noqa: PLC0415  # only where somebody waits

    runs = sorted({*resuming.choice.resumed, *started.jobs})
    return wait(started.launch, context, quiet=arguments.json, indices=runs)


def resume(launch: Launch, order: Order, context: Context) -> tuple[Resuming, Started | None]:
    """Submit again what the order allows, alone: a second resume at once is refused.

    Returns None for what was started where there was nothing to resume.
    """
    # Read anew: somebody may have resumed between the first look and the lock.
    with alone(launch, context) as fresh:
        fed = _feed(fresh, context) if order.indices is None else None
        resuming = prepare_resume(load_launch(fresh.folder), order, context)
        started = start(resuming, context) if resuming.jobs else fed
        if started is not None and launch.cluster.kind is ClusterKind.slurm:
            from hpckit.cli.janitor import keep_janitor  # noqa: PLC0415  # only on Slurm

            keep_janitor(resuming, started, context)
        return resuming, started


def waits_for_room(launch: Launch) -> bool:
    """Whether jobs of the launch itself are still to be handed in, for all that is recorded."""
    if launch.cluster.kind is not ClusterKind.slurm:
        return False
    history = read_launch_history(launch)
    meant = [job for job in unconfirmed(launch) if not history.resumed.keys() & set(job.runs)]
    return bool(history.waiting() or meant)


def _feed(launch: Launch, context: Context) -> Started | None:
    """Hand in what was left of the launch itself, as far as it fits."""
    if not waits_for_room(launch):
        return None
    from hpckit.cli.feeding import feed, keep_feeder  # noqa: PLC0415  # few launches need it
    from hpckit.cli.submission import slurm_commands  # noqa: PLC0415  # as above

    commands = slurm_commands(launch.cluster.bin_dir, context)
    fed = feed(launch, commands, context)
    feeder = keep_feeder(launch, commands, context) if fed.left else None
    if not fed.main_jobs:
        return None
    return Started(
        launch=load_launch(launch.folder),
        jobs=fed.jobs,
        main_jobs=fed.main_jobs,
        where=on_slurm(fed.main_jobs),
        feeder=feeder,
        left=sum(len(job.runs) for job in fed.left),
    )


def prepare_resume(launch: Launch, order: Order, context: Context) -> Resuming:
    """Find what to submit again, and render it; raises UsageError of every kind. Writes nothing."""
    view = launch_view(launch, context, ask=Ask.open_runs, indices=order.indices)
    if view.scheduler is Scheduler.away:
        raise SchedulerAwayError(
            f"what became of the runs of {launch.id} cannot be told: {view.warning}",
            hint="try again when Slurm answers: what it still has must not be started twice",
        )
    history = read_launch_history(launch)
    known = known_of(view, history)
    stages = launch.stages
    choice = choose(view.runs, known, cancelled=order.cancelled, stages=stages)
    if order.bounded:
        known = replace(known, spent=spent_of(view, choice, history))
        choice = choose(view.runs, known, cancelled=order.cancelled, stages=stages)
    attempts = {run: latest_attempt(launch.paths.run(run).attempts) for run in choice.resumed}
    jobs = _added(launch, choice, history, attempts)
    if jobs:
        check_snapshot(launch.paths)
    if jobs and not order.changed_code:
        earlier = {history.job_of(run).index: history.job_of(run) for run in choice.resumed}
        check_unchanged(launch, choice.resumed, tuple(earlier.values()), context)
    scripts = {job.index: rendered(launch, job, context) for job in jobs}
    return Resuming(
        launch=launch,
        order=order,
        views=view.runs,
        choice=choice,
        jobs=jobs,
        scripts=scripts,
        attempts=attempts,
        janitor=view.janitor,
    )


def _added(
    launch: Launch, choice: Choice, history: LaunchHistory, attempts: Mapping[int, int]
) -> tuple[JobSpec, ...]:
    begun, first = {run for run, count in attempts.items() if count}, len(launch.jobs)
    if launch.stages:
        return added_jobs_of_stages(
            launch.id,
            choice.resumed,
            launch.stages,
            job_of=history.job_of,
            begun=begun,
            first_index=first,
        )
    return added_jobs(
        launch.id,
        choice.resumed,
        job_of=history.job_of,
        begun=begun,
        first_index=first,
        lasted=_lasted(launch, choice.resumed),
    )


def _lasted(launch: Launch, runs: Sequence[int]) -> dict[int, timedelta]:
    """Return how long runs have taken until now, where that decides who goes first."""
    if not any(job.pack for job in launch.jobs):
        return {}
    known = {run: time_taken(launch, run) for run in runs}
    return {run: took for run, took in known.items() if took is not None}


def start(resuming: Resuming, context: Context) -> Started:
    """Add the jobs to the launch and hand them out; raises SchedulerError."""
    launch = resuming.launch
    if launch.cluster.kind is ClusterKind.slurm:
        return _start_on_slurm(resuming, context)
    from hpckit.cli.local import start  # noqa: PLC0415  # each launch needs one of the two

    for job in resuming.jobs:
        _add(job, resuming, context)
    executor = start(launch, context, [job.index for job in resuming.jobs])
    where = on_this_machine(executor)
    return Started(launch=load_launch(launch.folder), jobs={}, main_jobs=(), where=where)


def _start_on_slurm(resuming: Resuming, context: Context) -> Started:
    from hpckit.cli.submission import Submission, slurm_commands  # noqa: PLC0415  # as above

    launch = resuming.launch
    commands = slurm_commands(launch.cluster.bin_dir, context)
    runs: dict[int, str] = {}
    main_jobs: list[str] = []
    for job in resuming.jobs:
        _add(job, resuming, context)
        # One by one: what Slurm accepted goes on, and another resume sees to the rest.
        submission = Submission(
            launch=launch, jobs=(job,), new=False, commands=commands, context=context
        )
        try:
            runs |= submission.submit()
        except SchedulerError:
            if main_jobs:
                context.note(f"resumed before that: {on_slurm(main_jobs)}; these go on")
            raise
        main_jobs += submission.accepted.values()
    return Started(
        launch=load_launch(launch.folder),
        jobs=runs,
        main_jobs=tuple(main_jobs),
        where=on_slurm(main_jobs),
    )


def _add(job: JobSpec, resuming: Resuming, context: Context) -> None:
    added = JobAdded(
        at=context.now(),
        job=job,
        after=tuple(resuming.attempts[run] for run in job.runs),
        fresh=not resuming.order.bounded,
    )
    add_job(resuming.launch, added, resuming.scripts[job.index])


def _document(resuming: Resuming, started: Started | None) -> dict[str, object]:
    launch = resuming.launch
    resumed = tuple(launch.runs[run] for run in resuming.choice.resumed)
    jobs, main_jobs = (started.jobs, started.main_jobs) if started else ({}, ())
    document = launch_document(replace(launch, runs=resumed), jobs, main_jobs)
    return {**document, "skipped": resuming.choice.skipped}


def _show(resuming: Resuming, context: Context, *, as_json: bool) -> None:
    if as_json:
        scripts = script_documents(resuming.launch, resuming.scripts)
        context.say_json({**_document(resuming, None), "scripts": scripts})
        return
    for text in resuming.scripts.values():
        context.stdout.write(text)
    if not resuming.jobs:
        _say_nothing_to_do(resuming, context)


def _say(resuming: Resuming, started: Started | None, context: Context, *, as_json: bool) -> None:
    if started is not None:
        _tell_frozen_code(resuming, context)
    if as_json:
        context.say_json(_document(resuming, started))
        return
    if started is None:
        _say_nothing_to_do(resuming, context)
        return
    launch, (word, count) = started.launch, what_started(resuming, started)
    context.say(f"{word} {launch.id}: {count} of {counted(len(launch.runs), 'run')}")
    context.say(f"  folder  {launch.folder}")
    context.say(f"  on      {started.where}")
    for line in left_alone(resuming.choice.skipped):
        context.say(f"  left    {line}")
    context.say(f"  next    hpckit status {reference(launch, context)}   (also: logs, cancel)")


def _tell_frozen_code(resuming: Resuming, context: Context) -> None:
    """Say that what was edited since is not what runs: who mended a bug expects it to be."""
    edited = edited_since(resuming.launch.paths)
    if not edited or not resuming.choice.resumed:
        return
    more = f" and {counted(len(edited) - 1, 'more file')}" if len(edited) > 1 else ""
    run = resuming.launch.runs[resuming.choice.resumed[0]].id
    context.note(
        f"note: {edited[0]}{more} changed in the project since the launch; what is resumed runs "
        "the code as it was then"
    )
    context.note_more(f"`hpckit rerun {run}` runs it with today's code, from the start")


def what_started(resuming: Resuming, started: Started) -> tuple[str, int]:
    """Return in a word what was done, and to how many runs."""
    if resuming.jobs:
        return "resumed", len(resuming.choice.resumed)
    return "handed in", len(started.jobs)


def _say_nothing_to_do(resuming: Resuming, context: Context) -> None:
    context.say(f"nothing to resume in {resuming.launch.id}")
    for line in left_alone(resuming.choice.skipped):
        context.say(f"  {line}")


def left_alone(skipped: Sequence[Skipped]) -> list[str]:
    """Return a line for each reason: how many runs in which state, or the run where it is one."""
    lines: list[str] = []
    for reason in dict.fromkeys(one.reason for one in skipped):
        alike = [one for one in skipped if one.reason == reason]
        if len(alike) == 1:
            lines.append(f"{alike[0].run}: {reason}")
            continue
        counts = count_states(one.state for one in alike)
        said = ", ".join(f"{count} {state}" for state, count in counts.items())
        lines.append(said if reason == "completed" else f"{said}: {reason}")
    return lines
