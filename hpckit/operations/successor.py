"""The next job of a run, queued ahead so that the run need not wait for a requeue.

Adds that job to the launch and cancels it; the caller decides whether a run needs one. The
supervisor calls this through cli/supervise: an error here is printed and never ends a run.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

from hpckit.context import Context
from hpckit.errors import HpckitError, SchedulerAbsentError, SchedulerAwayError, SchedulerError
from hpckit.model.cluster.allocation import AttemptRequest, RequeueResult
from hpckit.model.events import JobAdded, SubmitRefused, Submitted
from hpckit.model.history import LaunchHistory
from hpckit.model.plan import JobSpec
from hpckit.model.states import RequeueOutcome
from hpckit.operations.add_job import (
    PATIENCE,
    hold_lock_with_patience,
    lock_launch_for_adding_jobs,
    record_added_job,
)
from hpckit.operations.frozen_script import render_frozen_script
from hpckit.operations.submit import (
    SBATCH_LIMIT,
    build_job_submission,
    require_slurm_commands,
    time_sbatch_may_still_take,
)
from hpckit.planning.jobs.service_jobs import build_next_attempt_job
from hpckit.record.attempts import latest_attempt_number
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import Launch, load_launch, read_launch_history
from hpckit.record.lock import is_lock_held
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import ask_living_jobs_by_name
from hpckit.slurm.requeue import JobAttempt, exclude_nodes_from_job
from hpckit.values import replace

_TURN = 2 * PATIENCE
"""How long another process may queue the same successor: it waits to add it, then for Slurm."""

_DROP_PATIENCE = timedelta(seconds=20)
"""How long the end of an attempt may wait for Slurm."""

_PAUSE_S = 3.0
_LOOK_S = 0.2


def queue_successor(launch: Launch, index: int, job: JobSpec, slurm_job: str, context: Context) -> str | None:
    """Queue the next attempt of a run behind its present job, whose Slurm id is `slurm_job`.

    Call it once the attempt is open. Returns the Slurm id of the successor; None if there is none,
    and then the reason is printed on standard error.
    """
    try:
        commands = require_slurm_commands(launch.cluster.bin_dir, context)
        what = f"is queueing the next job of {launch.runs[index].id}"
        with hold_lock_with_patience(launch.paths.run(index).successor_lock, what, context, _TURN):
            waiting = _find_waiting_successor(load_launch(launch.folder), index, job, commands, context)
            if waiting is not None:
                return waiting
            with lock_launch_for_adding_jobs(launch, context, patience=PATIENCE) as fresh:
                added = _add_successor_job(fresh, index, job, slurm_job, context)
            # Outside that lock: the index is taken, and other processes wait to take theirs.
            return None if added is None else _submit_successor(launch, index, added, commands, context)
    except (HpckitError, OSError) as error:
        context.note(f"warning: run {launch.runs[index].id} has no successor: {error}")
        return None


def _find_waiting_successor(
    launch: Launch, index: int, job: JobSpec, commands: SlurmCommands, context: Context
) -> str | None:
    """Return the job that waits behind this very one, and make it the successor by the record.

    The sbatch of a process that was killed may go on: what it submits is waited for.
    """
    history = read_launch_history(launch)
    behind = _find_added_successor(history, index, job)
    if behind is None:
        return None
    while not (found := sorted(ask_living_jobs_by_name(commands)[behind.name], key=int)):
        if not time_sbatch_may_still_take(launch, behind, context.now()):
            return None
        context.sleep(_PAUSE_S)
    known = history.accepted.get(behind.index)
    waiting = known if known in found else found[-1]
    cancel_jobs([other for other in found if other != waiting], commands)
    if waiting != known:
        at = context.now()
        adopted = Submitted(at=at, job_index=behind.index, job=waiting, adopted=True)
        record_launch_event(launch.paths, adopted)
    return waiting


def _add_successor_job(
    launch: Launch, index: int, job: JobSpec, slurm_job: str, context: Context
) -> JobSpec | None:
    """Return the job to submit behind this one, of which none waits; None if the run must end.

    One that was added and never accepted is taken again: all that Slurm may have of it then has
    the same name.
    """
    history = read_launch_history(launch)
    if index in history.cancelled:
        return None
    behind, new = _find_added_successor(history, index, job), len(launch.jobs)
    if behind is not None:
        if behind.index not in history.accepted and behind == build_next_attempt_job(
            launch.id, index, index=behind.index, like=job, after=slurm_job
        ):
            return behind
        message = "another job takes its place: it was no longer queued"
        gone = SubmitRefused(at=context.now(), job_index=behind.index, message=message)
        record_launch_event(launch.paths, gone)
    added = build_next_attempt_job(launch.id, index, index=new, like=job, after=slurm_job)
    attempts = latest_attempt_number(launch.paths.run(index).attempts)
    event = JobAdded(at=context.now(), job=added, after=(attempts,), successor=True)
    record_added_job(launch, event, render_frozen_script(launch, added, context))
    return added


def _submit_successor(
    launch: Launch, index: int, added: JobSpec, commands: SlurmCommands, context: Context
) -> str | None:
    queued = build_job_submission(added, launch, commands, context).submit_with_retries(PATIENCE)[index]
    history = read_launch_history(load_launch(launch.folder))
    if index in history.cancelled or added.index in history.dropped:
        cancel_jobs([queued], commands)  # the run was cancelled, or has ended, meanwhile
        return None
    return queued


def _find_added_successor(history: LaunchHistory, index: int, job: JobSpec) -> JobSpec | None:
    """Return the job that was added behind this very one, before Slurm restarted it or just now."""
    successor = history.successors.get(index)
    own = successor is None or successor.job_index == job.index
    return None if own or successor is None else history.jobs[successor.job_index]


def is_obsolete_successor(
    launch: Launch, index: int, job: JobSpec, slurm_job: str | None, context: Context
) -> bool:
    """Whether a job that starts is a successor that was given up, or another one waits for its run.

    Slurm may take what an sbatch without an answer has submitted long after that.
    """
    history = read_launch_history(launch)
    if job.index in history.dropped:
        return True
    successor, known = history.successors.get(index), history.accepted.get(job.index)
    if successor is None or successor.job_index != job.index or known in {None, slurm_job}:
        return False
    commands = SlurmCommands(bin_dir=launch.cluster.bin_dir, environ=context.environ)
    with contextlib.suppress(SchedulerError):
        return known in ask_living_jobs_by_name(commands)[job.name]
    return False


def _await_queueing_of_successor(launch: Launch, index: int, context: Context) -> None:
    """Wait while a process queues the run's successor, for as long as one sbatch may take."""
    deadline = context.now() + SBATCH_LIMIT
    while is_lock_held(launch.paths.run(index).successor_lock) and context.now() < deadline:
        context.sleep(_LOOK_S)


def is_job_awaited(launch: Launch, job: JobSpec) -> bool:
    """Whether jobs of another stage wait for this one to succeed."""
    return any(job.index == one.job for other in launch.jobs for one in other.after)


def queue_successor_after_refusal(
    launch: Launch, index: int, job: JobSpec, slurm_job: str, refused: RequeueResult, context: Context
) -> RequeueResult:
    """Queue the next attempt behind a job that Slurm has `refused` to start again.

    Not if other jobs wait for this one to succeed: they would never start.
    """
    if is_job_awaited(launch, job):
        return replace(refused, warning="another stage waits for this job: use hpckit resume")
    successor = queue_successor(launch, index, job, slurm_job, context)
    if successor is None:
        return refused
    message = f"{refused.message}; job {successor} continues the run"
    return RequeueResult(outcome=RequeueOutcome.requeued, message=message)


def exclude_successor_nodes(
    launch: Launch, index: int, job: JobSpec, wish: AttemptRequest, context: Context
) -> RequeueResult:
    """Exclude the nodes of the wish from the run's successor; return the outcome.

    The successor still waits for the end of the present job, so Slurm accepts the change.
    """
    try:
        _await_queueing_of_successor(launch, index, context)
        successor = read_launch_history(load_launch(launch.folder)).find_successor_job(index)
        commands = require_slurm_commands(launch.cluster.bin_dir, context)
    except (HpckitError, OSError) as error:
        return RequeueResult(outcome=RequeueOutcome.unreachable, message=str(error))
    if successor is None:
        return RequeueResult(outcome=RequeueOutcome.refused, message="no successor is queued")
    waiting = JobAttempt(job=successor, restart_count=0, asked=job.resources, owns_run=lambda: True)
    queued = RequeueResult(
        outcome=RequeueOutcome.requeued, message=f"job {successor} waits for this one's end"
    )
    return exclude_nodes_from_job(commands, waiting, wish.excluded, queued)


def cancel_successor(launch: Launch, index: int, slurm_job: str, context: Context) -> bool:
    """Cancel the successor of a run that has completed or must not continue; False if that fails.

    `slurm_job` is the run's present job, which is never cancelled here. True also if there is no successor.
    """
    try:
        _await_queueing_of_successor(launch, index, context)
        return _cancel_queued_successor(load_launch(launch.folder), index, slurm_job, context)
    except (HpckitError, OSError) as error:
        context.note(f"warning: the successor of {launch.runs[index].id} is still queued: {error}")
        return False


def _cancel_queued_successor(launch: Launch, index: int, slurm_job: str, context: Context) -> bool:
    history = read_launch_history(launch)
    successor = history.successors.get(index)
    if successor is None:
        return True
    commands = require_slurm_commands(launch.cluster.bin_dir, context)
    deadline = context.now() + _DROP_PATIENCE
    own = history.find_successor_job(index) == slurm_job
    while True:
        try:
            found = ask_living_jobs_by_name(commands)[history.jobs[successor.job_index].name]
            cancel_jobs(sorted(found - {slurm_job}), commands)
            break
        except SchedulerAbsentError:
            raise
        except SchedulerAwayError:
            if context.now() >= deadline:
                raise
        context.sleep(_PAUSE_S)
    if not own and slurm_job not in found:
        message = "no longer needed: it was cancelled while it waited"
        dropped = SubmitRefused(at=context.now(), job_index=successor.job_index, message=message)
        record_launch_event(launch.paths, dropped)
    return True
