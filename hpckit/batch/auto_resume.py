"""Resumes the runs of a launch that can be, once, within their budgets, as `watch` does."""

from __future__ import annotations

from datetime import timedelta

from hpckit.context import Context
from hpckit.errors import HeldError, SchedulerAbsentError, SchedulerAwayError, SchedulerRefusedError
from hpckit.model.counted import format_count
from hpckit.operations.add_job import lock_launch_for_adding_jobs
from hpckit.operations.notices.tell import announce_launch_end
from hpckit.operations.resume import Order, Resuming, format_skipped_runs, prepare_resume, start_resumed_runs
from hpckit.operations.service_jobs import (
    ensure_backlog_job,
    queue_auto_resume_job,
    submit_unsubmitted_jobs_that_fit,
)
from hpckit.operations.started import Started, describe_slurm_jobs
from hpckit.operations.submit import require_slurm_commands
from hpckit.planning.jobs.service_jobs import AUTO_RESUME_TIME
from hpckit.record.launches import Launch, load_launch, read_launch_history
from hpckit.report.rows import count_runs_by_state

PATIENCE = AUTO_RESUME_TIME - timedelta(minutes=2)
"""How long an auto-resume job waits for a Slurm that does not answer, or for another resume."""

_LOOK_S = 15.0


def run_auto_resume_job(launch: Launch, mine: int, context: Context) -> None:
    """Resume what may be resumed, and queue the next auto-resume job; this one is job `mine`.

    Retries while Slurm does not answer or another process resumes; raises SchedulerError and
    HeldError after that.
    """
    deadline = context.now() + PATIENCE
    while True:
        try:
            _resume_under_lock(launch, mine, context)
        except SchedulerAbsentError:
            raise
        except (SchedulerAwayError, HeldError) as error:
            if context.now() >= deadline:
                raise
            context.note(f"{error.message}; the auto-resume job tries again")
            context.sleep(_LOOK_S)
        else:
            return


def _resume_under_lock(launch: Launch, mine: int, context: Context) -> None:
    """Resume under the lock; queue the next auto-resume job even if Slurm refuses the runs."""
    commands = require_slurm_commands(launch.cluster.bin_dir, context)
    with lock_launch_for_adding_jobs(launch, context) as fresh:
        jobs, main_jobs, _ = submit_unsubmitted_jobs_that_fit(fresh, commands, context)
        if main_jobs:
            context.say(f"submitted {format_count(len(jobs), 'run')}: {describe_slurm_jobs(main_jobs)}")
        history = read_launch_history(fresh)
        if history.backlog is not None:
            backlog = ensure_backlog_job(fresh, commands, context)
            context.say("all runs are submitted" if backlog is None else f"next backlog job: job {backlog}")
        if not history.is_auto_resume_job(mine):
            return
        resuming = prepare_resume(load_launch(launch.folder), Order(bounded=True), context)
        started: Started | None = None
        refusal: SchedulerRefusedError | None = None
        try:
            started = start_resumed_runs(resuming, context) if resuming.jobs else None
        except SchedulerRefusedError as error:
            refusal = error
        _print_resume_summary(resuming, started, context)
        history = read_launch_history(load_launch(launch.folder))
        if resuming.auto_resume is None or history.auto_resume == mine:
            _queue_next_auto_resume(resuming, context, pause=started is None)
    if refusal is not None:
        raise refusal


def _queue_next_auto_resume(resuming: Resuming, context: Context, *, pause: bool) -> None:
    jobs = _list_jobs_of_continuing_runs(resuming)
    if not jobs:
        context.say("no run continues: this was the last auto-resume job")
        announce_launch_end(resuming.launch, resuming.views, context)
        return
    queued = queue_auto_resume_job(resuming.launch, jobs, context, pause=pause)
    context.say(f"next auto-resume job: {queued}")


def _list_jobs_of_continuing_runs(resuming: Resuming) -> list[str]:
    history = read_launch_history(load_launch(resuming.launch.folder))
    records = {view.record.index: view.record for view in resuming.views}
    jobs = [records[run].job for run in resuming.choice.open]
    jobs += [history.find_successor_job(run) for run in resuming.choice.open]
    jobs += [history.slurm_jobs.get(run) for run in resuming.choice.resumed]
    return [job for job in jobs if job is not None]


def _print_resume_summary(resuming: Resuming, started: Started | None, context: Context) -> None:
    counts = count_runs_by_state(view.state for view in resuming.views)
    context.say(", ".join(f"{count} {state}" for state, count in counts.items()))
    if started is not None:
        count = len(resuming.choice.resumed)
        context.say(f"resumed {format_count(count, 'run')}: {describe_slurm_jobs(started.main_jobs)}")
    for line in format_skipped_runs(resuming.choice.skipped):
        context.say(f"left {line}")
