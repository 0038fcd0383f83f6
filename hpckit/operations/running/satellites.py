"""Submits satellites, jobs that bring nodes to a running run, and cancels those not needed.

It asks no supervisor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

from hpckit.context import Context
from hpckit.errors import HpckitError, SchedulerRefusedError
from hpckit.model.events import AgentJoined, Event, JobAdded, NodeLost, SatelliteLeft, SubmitRefused
from hpckit.model.history import LaunchHistory
from hpckit.model.plan import JobSpec
from hpckit.model.states import BaseState
from hpckit.operations.add_job import PATIENCE, lock_launch_for_adding_jobs
from hpckit.operations.frozen_script import render_frozen_script
from hpckit.operations.service_jobs import add_and_submit_job
from hpckit.operations.submit import SBATCH_LIMIT, require_slurm_commands
from hpckit.planning.jobs.service_jobs import SatelliteOrder, build_satellite_job
from hpckit.planning.recovery.ledger import build_ledger_from_events
from hpckit.planning.recovery.run_size import build_run_size
from hpckit.record.attempts import latest_attempt_number
from hpckit.record.counted_events import read_events_for_restart_budget
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import Launch, load_launch, load_run_settings, read_launch_history
from hpckit.record.store import read_events
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.query import observe_jobs
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowOrder:
    """How many replicas more, and where; None stands for what the run's own job has.

    `idle_nodes` stand ready, too few for a replica: the job brings what completes them.
    """

    replicas: int
    idle_nodes: int = 0
    partition: str | None = None
    qos: str | None = None
    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SatellitePlan:
    """A satellite job, and the script that submits it."""

    job: JobSpec
    script: str


def plan_satellite_job(
    launch: Launch, run: int, order: GrowOrder, context: Context, *, lost_too: bool = False
) -> SatellitePlan:
    """Return the job that brings a run `replicas` more replicas; raises TemplateError.

    It may get nodes that the run has lost only with `lost_too`.
    """
    settings, _ = load_run_settings(launch, run)
    paths, history = launch.paths.run(run), read_launch_history(launch)
    told = tuple(read_events(paths.attempt(latest_attempt_number(paths.attempts)).events))
    whole, idle = build_run_size(settings).replica_nodes, order.idle_nodes
    if idle:
        arrived = Counter(event.satellite for event in told if isinstance(event, AgentJoined))
        # Of these, nodes have yet to come, or never do.
        expected = {
            job: one
            for job, one in _list_accepted_satellites(history, run).items()
            if arrived[job] < one.resources.nodes
        }
        idle = max(0, idle - _count_reserved_idle_nodes(expected, whole, launch, context))
    past = build_ledger_from_events(read_events_for_restart_budget(launch, run, history=history))
    excluded = (past.without_node_loss_failures() if lost_too else past).list_nodes_failing_too_often(
        settings.recovery, context.now()
    )
    taken = _list_nodes_of_attempt(told, lost_too=lost_too)
    wanted = SatelliteOrder(
        replicas=order.replicas,
        nodes=order.replicas * whole - idle,
        taken=(*taken, *sorted(excluded.difference(taken))),
        partition=order.partition,
        qos=order.qos,
        timeout=order.timeout,
        warn_s=settings.runtime.save_before_timeout_s or 60.0,
    )
    like = history.find_job_of_run(run)
    job = build_satellite_job(launch.id, run, index=len(launch.jobs), like=like, order=wanted)
    return SatellitePlan(job=job, script=render_frozen_script(launch, job, context))


def submit_satellite_job(
    launch: Launch, run: int, order: GrowOrder, context: Context, *, patience: timedelta = SBATCH_LIMIT
) -> tuple[SatellitePlan, str]:
    """Submit the job that brings a run `replicas` more replicas; return it, and Slurm's id.

    It leaves out the nodes that the run has lost, unless Slurm has too few others: then it gets
    those that are up again. Waits up to `patience` for other processes that add jobs. Raises
    HeldError, SchedulerError, TemplateError.
    """
    with lock_launch_for_adding_jobs(launch, context, patience=patience) as fresh:
        planned = plan_satellite_job(fresh, run, order, context)
        try:
            return planned, _submit_planned_job(fresh, planned, context)
        except SchedulerRefusedError:
            now = load_launch(launch.folder)
            again = plan_satellite_job(now, run, order, context, lost_too=True)
            if again.job.resources.exclude == planned.job.resources.exclude:
                raise
            return again, _submit_planned_job(now, again, context)


def _submit_planned_job(launch: Launch, planned: SatellitePlan, context: Context) -> str:
    return add_and_submit_job(launch, JobAdded(at=context.now(), job=planned.job, after=()), context)


def replace_lost_replicas(
    launch: Launch, run: int, order: GrowOrder, context: Context
) -> tuple[str, int] | None:
    """Submit the satellite of a run that lost replicas; return Slurm's id, and how many nodes.

    For a supervisor, which continues whatever comes of it: None if it fails, and then the reason is
    printed on standard error.
    """
    try:
        planned, job = submit_satellite_job(launch, run, order, context, patience=PATIENCE)
    except (HpckitError, OSError) as error:
        context.note(f"warning: run {launch.runs[run].id} gets no satellite: {error}")
        return None
    return job, planned.job.resources.nodes


def cancel_waiting_satellites(launch: Launch, run: int, context: Context) -> tuple[str, ...]:
    """Cancel the satellites of a run that has ended while they waited; return their jobs.

    For a supervisor, whose run has ended whatever comes of it: if Slurm does not answer, the reason
    is printed on standard error, and the satellites find out themselves once they start. Those that
    run end with the run.
    """
    try:
        return _cancel_waiting_jobs(load_launch(launch.folder), run, context)
    except (HpckitError, OSError) as error:
        context.note(f"warning: satellites of {launch.runs[run].id} may still be queued: {error}")
        return ()


def _cancel_waiting_jobs(launch: Launch, run: int, context: Context) -> tuple[str, ...]:
    history = read_launch_history(launch)
    jobs = _list_accepted_satellites(history, run)
    if not jobs:
        return ()
    commands = require_slurm_commands(launch.cluster.bin_dir, context)
    seen = observe_jobs(list(jobs), commands, context.now())
    waiting = tuple(job for job, one in seen.items() if one.state.base is BaseState.pending)
    if waiting:
        cancel_jobs(waiting, commands)
    for job in waiting:
        message = "no longer needed: the run has ended, and it was cancelled while it waited"
        dropped = SubmitRefused(at=context.now(), job_index=jobs[job].index, message=message)
        record_launch_event(launch.paths, dropped)
    return waiting


def _list_accepted_satellites(history: LaunchHistory, run: int) -> dict[str, JobSpec]:
    """Return the satellites of a run by Slurm's id."""
    jobs = (history.jobs[index] for index in history.satellites.get(run, ()))
    return {history.accepted[job.index]: job for job in jobs if job.index in history.accepted}


def _count_reserved_idle_nodes(
    expected: Mapping[str, JobSpec], replica_nodes: int, launch: Launch, context: Context
) -> int:
    """Return how many idle nodes will complete a replica with satellites that have yet to come."""
    if not expected:
        return 0
    seen = observe_jobs(
        list(expected), require_slurm_commands(launch.cluster.bin_dir, context), context.now()
    )
    coming = [expected[job] for job, one in seen.items() if not one.state.ended]
    return sum(
        satellite.satellite.replicas * replica_nodes - satellite.resources.nodes
        for satellite in coming
        if satellite.satellite is not None
    )


def _list_nodes_of_attempt(told: Sequence[Event], *, lost_too: bool) -> Sequence[str]:
    """Return the nodes of an attempt, with `lost_too` without those that it lost."""
    nodes: dict[str, None] = {}
    for event in told:
        if isinstance(event, AgentJoined):
            nodes[event.node] = None
        elif isinstance(event, SatelliteLeft) or (lost_too and isinstance(event, NodeLost)):
            nodes.pop(event.node, None)
    return tuple(nodes)
