"""The next job of a run, queued ahead so that the run need not wait for a requeue.

Adds that job to the launch and cancels it; the caller decides whether a run needs one. The
supervisor calls this through cli/supervise: an error here is printed and never ends a run.
"""

from __future__ import annotations

from datetime import timedelta

from hpckit.context import Context
from hpckit.errors import HpckitError, SchedulerAbsentError, SchedulerAwayError
from hpckit.model.cluster.allocation import AttemptRequest, RequeueResult
from hpckit.model.events import JobAdded, SubmitRefused
from hpckit.model.history import LaunchHistory
from hpckit.model.plan import JobSpec
from hpckit.model.states import RequeueOutcome
from hpckit.operations.add_job import add_job, alone
from hpckit.operations.frozen_script import rendered
from hpckit.operations.submit import Submission, slurm_commands
from hpckit.planning.jobs.service_jobs import successor_job
from hpckit.record.attempts import latest_attempt
from hpckit.record.launch_events import record_event
from hpckit.record.launches import Launch, load_launch, read_launch_history
from hpckit.slurm.cancel import cancel
from hpckit.slurm.query import find_by_name, observe
from hpckit.slurm.requeue import JobAttempt, leave_out
from hpckit.values import replace

PATIENCE = timedelta(minutes=10)
"""How long to wait for other processes that add jobs, and for a Slurm that does not answer."""

_DROP_PATIENCE = timedelta(seconds=20)
"""How long the end of an attempt may wait for Slurm."""

_SUBMIT_PATIENCE = timedelta(seconds=20)
"""How long another process may take to submit the same successor, before it counts as gone."""

_PAUSE_S = 3.0


def queue_successor(
    launch: Launch, index: int, job: JobSpec, slurm_job: str, context: Context
) -> str | None:
    """Queue the next attempt of a run behind its present job, whose Slurm id is `slurm_job`.

    Call it once the attempt is open. Returns the Slurm id of the successor; None if there is none,
    and then the reason is printed on standard error.
    """
    try:
        return _queued(launch, index, job, slurm_job, context)
    except (HpckitError, OSError) as error:
        said = error.message if isinstance(error, HpckitError) else str(error)
        context.note(f"warning: run {launch.runs[index].id} has no successor: {said}")
        return None


def _queued(
    launch: Launch, index: int, job: JobSpec, slurm_job: str, context: Context
) -> str | None:
    commands = slurm_commands(launch.cluster.bin_dir, context)
    deadline = context.now() + _SUBMIT_PATIENCE
    while True:
        with alone(launch, context, patience=PATIENCE) as fresh:
            history = read_launch_history(fresh)
            behind = _behind(history, index, job)
            if behind is None or behind in history.accepted or context.now() >= deadline:
                waiting = None if behind is None else history.accepted.get(behind)
                if waiting is not None:
                    seen = observe([waiting], commands, context.now()).get(waiting)
                    if seen is not None and not seen.state.ended:
                        return waiting
                if index in history.cancelled:
                    return None
                added = _add(fresh, index, job, slurm_job, context)
                break
        context.sleep(_PAUSE_S)  # another process is submitting it
    # Outside the lock: the index is taken, and other processes wait to take theirs.
    submission = Submission(
        launch=load_launch(launch.folder),
        jobs=(added,),
        new=False,
        commands=commands,
        context=context,
    )
    return submission.submit_patiently(PATIENCE)[index]


def _add(launch: Launch, index: int, job: JobSpec, slurm_job: str, context: Context) -> JobSpec:
    added = successor_job(launch.id, index, index=len(launch.jobs), like=job, after=slurm_job)
    attempts = latest_attempt(launch.paths.run(index).attempts)
    event = JobAdded(at=context.now(), job=added, after=(attempts,), successor=True)
    add_job(launch, event, rendered(launch, added, context))
    return added


def _behind(history: LaunchHistory, index: int, job: JobSpec) -> int | None:
    """Return the job that was added behind this very one, before Slurm restarted it or just now."""
    successor = history.successors.get(index)
    own = successor is None or successor.job_index == job.index
    return None if own or successor is None else successor.job_index


def continue_in_successor(
    launch: Launch,
    index: int,
    job: JobSpec,
    slurm_job: str,
    refused: RequeueResult,
    context: Context,
) -> RequeueResult:
    """Queue the next attempt behind a job that Slurm has `refused` to start again.

    Not if other jobs wait for this one to succeed: they would never start.
    """
    if any(job.index == one.job for other in launch.jobs for one in other.after):
        return replace(refused, warning="another stage waits for this job: use hpckit resume")
    successor = queue_successor(launch, index, job, slurm_job, context)
    if successor is None:
        return refused
    message = f"{refused.message}; job {successor} continues the run"
    return RequeueResult(outcome=RequeueOutcome.requeued, message=message)


def hand_to_successor(
    launch: Launch, index: int, job: JobSpec, wish: AttemptRequest, context: Context
) -> RequeueResult:
    """Exclude the nodes of the wish from the run's successor; return the outcome.

    The successor still waits for the end of the present job, so Slurm accepts the change.
    """
    try:
        successor = read_launch_history(load_launch(launch.folder)).successor_of(index)
        commands = slurm_commands(launch.cluster.bin_dir, context)
    except (HpckitError, OSError) as error:
        said = error.message if isinstance(error, HpckitError) else str(error)
        return RequeueResult(outcome=RequeueOutcome.unreachable, message=said)
    if successor is None:
        return RequeueResult(outcome=RequeueOutcome.refused, message="no successor is queued")
    waiting = JobAttempt(
        job=successor,
        restart_count=0,
        asked=job.resources,
        owns_run=lambda: True,
    )
    queued = RequeueResult(
        outcome=RequeueOutcome.requeued, message=f"job {successor} waits for this one's end"
    )
    return leave_out(commands, waiting, wish.excluded, queued)


def drop_successor(launch: Launch, index: int, slurm_job: str, context: Context) -> bool:
    """Cancel the successor of a run that has completed or must not continue; False if that fails.

    `slurm_job` is the run's present job, which is never cancelled here. True also if there is no
    successor.
    """
    try:
        return _dropped(load_launch(launch.folder), index, slurm_job, context)
    except (HpckitError, OSError) as error:
        said = error.message if isinstance(error, HpckitError) else str(error)
        context.note(f"warning: the successor of {launch.runs[index].id} is still queued: {said}")
        return False


def _dropped(launch: Launch, index: int, slurm_job: str, context: Context) -> bool:
    history = read_launch_history(launch)
    successor = history.successors.get(index)
    if successor is None:
        return True
    commands = slurm_commands(launch.cluster.bin_dir, context)
    deadline = context.now() + _DROP_PATIENCE
    while True:
        try:
            known = history.successor_of(index)
            name = history.jobs[successor.job_index].name
            jobs = find_by_name(name, commands) if known is None else (known,)
            jobs = tuple(job for job in jobs if job != slurm_job)
            if jobs:
                cancel(jobs, commands)
        except SchedulerAbsentError:
            raise
        except SchedulerAwayError:
            if context.now() >= deadline:
                raise
            context.sleep(_PAUSE_S)
            continue
        break
    if jobs or known is None:
        message = "no longer needed: it was cancelled while it waited"
        dropped = SubmitRefused(at=context.now(), job_index=successor.job_index, message=message)
        record_event(launch.paths, dropped)
    return True
