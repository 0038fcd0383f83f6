"""Resumes what it can of a launch, once, within the budgets of its runs, as `watch` does."""

from __future__ import annotations

from datetime import timedelta

from hpckit.context import Context
from hpckit.errors import HeldError, SchedulerAbsentError, SchedulerAwayError, SchedulerRefusedError
from hpckit.model.counted import counted
from hpckit.operations.add_job import alone
from hpckit.operations.notices.tell import tell_rest
from hpckit.operations.resume import Order, Resuming, left_alone, prepare_resume, start_resumed
from hpckit.operations.service_jobs import feed, keep_backlog_job, queue_auto_resume_job
from hpckit.operations.started import Started, on_slurm
from hpckit.operations.submit import slurm_commands
from hpckit.planning.jobs.service_jobs import AUTO_RESUME_TIME
from hpckit.record.launches import Launch, load_launch, read_launch_history
from hpckit.report.rows import count_states

PATIENCE = AUTO_RESUME_TIME - timedelta(minutes=2)
"""How long an auto-resume job waits for a Slurm that does not answer, or for another resume."""

_LOOK_S = 15.0


def resume_once(launch: Launch, mine: int, context: Context) -> None:
    """Resume what may be resumed, and queue the next auto-resume job; this one is job `mine`.

    Retries while Slurm does not answer or another process resumes; raises SchedulerError and
    HeldError after that.
    """
    deadline = context.now() + PATIENCE
    while True:
        try:
            _resume_alone(launch, mine, context)
        except SchedulerAbsentError:
            raise
        except (SchedulerAwayError, HeldError) as error:
            if context.now() >= deadline:
                raise
            context.note(f"{error.message}; the auto-resume job tries again")
            context.sleep(_LOOK_S)
        else:
            return


def _resume_alone(launch: Launch, mine: int, context: Context) -> None:
    """Resume under the lock; queue the next auto-resume job even if Slurm refuses the runs."""
    commands = slurm_commands(launch.cluster.bin_dir, context)
    with alone(launch, context) as fresh:
        jobs, main_jobs, _ = feed(fresh, commands, context)
        if main_jobs:
            context.say(f"submitted {counted(len(jobs), 'run')}: {on_slurm(main_jobs)}")
        history = read_launch_history(fresh)
        if history.backlog is not None:
            backlog = keep_backlog_job(fresh, commands, context)
            context.say(
                "all runs are submitted" if backlog is None else f"next backlog job: job {backlog}"
            )
        if not history.resumes(mine):
            return
        resuming = prepare_resume(load_launch(launch.folder), Order(bounded=True), context)
        started: Started | None = None
        refusal: SchedulerRefusedError | None = None
        try:
            started = start_resumed(resuming, context) if resuming.jobs else None
        except SchedulerRefusedError as error:
            refusal = error
        _say(resuming, started, context)
        history = read_launch_history(load_launch(launch.folder))
        if resuming.auto_resume is None or history.auto_resume == mine:
            _queue_next(resuming, context, pause=started is None)
    if refusal is not None:
        raise refusal


def _queue_next(resuming: Resuming, context: Context, *, pause: bool) -> None:
    jobs = _living_jobs(resuming)
    if not jobs:
        context.say("no run continues: this was the last auto-resume job")
        tell_rest(resuming.launch, resuming.views, context)
        return
    queued = queue_auto_resume_job(resuming.launch, jobs, context, pause=pause)
    context.say(f"next auto-resume job: {queued}")


def _living_jobs(resuming: Resuming) -> list[str]:
    """Return the jobs of all runs that continue, and of those just resumed."""
    history = read_launch_history(load_launch(resuming.launch.folder))
    records = {view.record.index: view.record for view in resuming.views}
    jobs = [records[run].job for run in resuming.choice.open]
    jobs += [history.successor_of(run) for run in resuming.choice.open]
    jobs += [history.slurm_jobs.get(run) for run in resuming.choice.resumed]
    return [job for job in jobs if job is not None]


def _say(resuming: Resuming, started: Started | None, context: Context) -> None:
    counts = count_states(view.state for view in resuming.views)
    context.say(", ".join(f"{count} {state}" for state, count in counts.items()))
    if started is not None:
        count = len(resuming.choice.resumed)
        context.say(f"resumed {counted(count, 'run')}: {on_slurm(started.main_jobs)}")
    for line in left_alone(resuming.choice.skipped):
        context.say(f"left {line}")
