"""`hpckit janitor`: what a janitor's batch script runs, the job that waits for a launch's others.

Hidden from `--help`: `launch --auto-resume` queues the first one. Responsible for one round of
resuming within the runs' budgets, and for queueing the next janitor where a run goes on; it must
not resume by other rules than `hpckit watch`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from hpckit.cli.adding import alone
from hpckit.cli.context import Context
from hpckit.cli.feeding import feed, hand_in, keep_feeder
from hpckit.cli.launch import Started, on_slurm
from hpckit.cli.resume import Order, Resuming, left_alone, prepare_resume, start
from hpckit.cli.submission import slurm_commands
from hpckit.errors import (
    HeldError,
    SchedulerAbsentError,
    SchedulerAwayError,
    SchedulerError,
    SchedulerRefusedError,
)
from hpckit.model.counted import counted
from hpckit.model.events import JobAdded
from hpckit.model.finding import Finding, Severity
from hpckit.model.launch import Cluster
from hpckit.model.plan import JobSpec
from hpckit.planning.jobs.service_jobs import JANITOR_TIME, SERVICE_HINT, janitor_job
from hpckit.record.launches import Launch, load_launch, read_launch_history
from hpckit.report.rows import count_states
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.site_query import PATIENCE as LIMITS

PATIENCE = JANITOR_TIME - timedelta(minutes=2)
"""How long a janitor waits for a Slurm that does not answer, or for somebody who resumes."""

_LOOK_S = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a batch script passes."""
    parser.add_argument("folder", type=Path, help="the launch folder")
    parser.add_argument("--job", type=int, required=True, help="index of this job in the launch")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Resume what may be resumed, once; 0 also where there was nothing to do."""
    launch = load_launch(arguments.folder)
    deadline = context.now() + PATIENCE
    while True:
        try:
            _round(launch, arguments.job, context)
        except SchedulerAbsentError:
            raise
        except (SchedulerAwayError, HeldError) as error:
            if context.now() >= deadline:
                raise
            context.note(f"{error.message}; the janitor tries again")
            context.sleep(_LOOK_S)
        else:
            return 0


def _round(launch: Launch, mine: int, context: Context) -> None:
    """Resume alone, and see to the next janitor whatever became of that."""
    commands = slurm_commands(launch.cluster.bin_dir, context)
    with alone(launch, context) as fresh:
        fed = feed(fresh, commands, context)
        if fed.main_jobs:
            context.say(f"handed in {counted(len(fed.jobs), 'run')}: {on_slurm(fed.main_jobs)}")
        history = read_launch_history(fresh)
        if history.feeder is not None:
            feeder = keep_feeder(fresh, commands, context)
            context.say(
                "all runs are handed in" if feeder is None else f"next feeder: job {feeder}"
            )
        if not history.resumes(mine):
            return
        resuming = prepare_resume(load_launch(launch.folder), Order(bounded=True), context)
        started: Started | None = None
        refusal: SchedulerRefusedError | None = None
        try:
            started = start(resuming, context) if resuming.jobs else None
        except SchedulerRefusedError as error:
            refusal = error
        _say(resuming, started, context)
        history = read_launch_history(load_launch(launch.folder))
        if resuming.janitor is None or history.janitor == mine:
            _queue_next(resuming, context, pause=started is None)
    if refusal is not None:
        raise refusal


def _queue_next(resuming: Resuming, context: Context, *, pause: bool) -> None:
    jobs = _living_jobs(resuming)
    if not jobs:
        context.say("no run goes on: this was the last janitor")
        return
    context.say(f"next janitor: job {queue_janitor(resuming.launch, jobs, context, pause=pause)}")


def _living_jobs(resuming: Resuming) -> list[str]:
    """Return the jobs of all runs that go on, and of those just resumed."""
    history = read_launch_history(load_launch(resuming.launch.folder))
    records = {view.record.index: view.record for view in resuming.views}
    jobs = [records[run].job for run in resuming.choice.open]
    jobs += [history.successor_of(run) for run in resuming.choice.open]
    jobs += [history.slurm_jobs.get(run) for run in resuming.choice.resumed]
    return [job for job in jobs if job is not None]


def keep_janitor(resuming: Resuming, started: Started, context: Context) -> None:
    """Queue a janitor again where a launch that had one was resumed; the caller holds the lock."""
    launch = load_launch(resuming.launch.folder)
    if read_launch_history(launch).janitor is None or resuming.janitor is not None:
        return
    try:
        queue_janitor(launch, started.main_jobs, context)
    except SchedulerError as error:
        context.note(f"warning: the launch has no janitor any more: {error.message}")


def queue_janitor(
    launch: Launch, jobs: Iterable[str], context: Context, *, pause: bool = False
) -> str:
    """Queue a janitor behind these jobs and return what Slurm calls it; the caller is `alone`.

    With `pause` it does not start within the next minute. Raises SchedulerError, UsageError.
    """
    launch = load_launch(launch.folder)
    index, like = len(launch.jobs), launch.jobs[0].resources
    job = janitor_job(
        launch.id, index=index, like=like, cluster=launch.cluster, after=jobs, pause=pause
    )
    return hand_in(launch, JobAdded(at=context.now(), job=job, after=()), context)


def rehearse_janitor(job: JobSpec, text: str, cluster: Cluster, context: Context) -> None:
    """Raise SchedulerRefusedError where Slurm would refuse such a janitor; without an answer, not.

    Where its nodes are only away, it would wait for them.
    """
    from hpckit.slurm.test_only import rehearse  # noqa: PLC0415  # only at a launch

    commands = SlurmCommands(bin_dir=cluster.bin_dir, environ=context.environ, timeout=LIMITS)
    try:
        answer = rehearse(job, text, commands, lambda: None)
    except SchedulerError:
        return
    if isinstance(answer, Finding) and answer.severity is Severity.error:
        raise SchedulerRefusedError(
            f"Slurm would refuse the job that resumes runs (--auto-resume): {answer.message}; "
            "nothing was written or submitted",
            hint=f"{SERVICE_HINT}; --no-check launches all the same",
        )


def _say(resuming: Resuming, started: Started | None, context: Context) -> None:
    counts = count_states(view.state for view in resuming.views)
    context.say(", ".join(f"{count} {state}" for state, count in counts.items()))
    if started is not None:
        count = len(resuming.choice.resumed)
        context.say(f"resumed {counted(count, 'run')}: {on_slurm(started.main_jobs)}")
    for line in left_alone(resuming.choice.skipped):
        context.say(f"left {line}")
