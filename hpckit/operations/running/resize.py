"""Asks a running run to grow or shrink; what it grows by comes in a satellite job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from hpckit.context import Context
from hpckit.errors import RunError, UsageError
from hpckit.model.counted import counted
from hpckit.model.elastic.resize import Resize, ResizeAnswer, ResizeRequest
from hpckit.model.events import AgentJoined, JobAdded, SatelliteLeft
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.plain import to_plain
from hpckit.model.plan import JobSpec
from hpckit.model.run import RunRecord
from hpckit.operations.add_job import alone
from hpckit.operations.frozen_script import rendered
from hpckit.operations.service_jobs import hand_in
from hpckit.planning.jobs.service_jobs import SatelliteOrder, satellite_job
from hpckit.planning.recovery.run_size import size_of
from hpckit.record.elastic.answers import read_resize_answer
from hpckit.record.launches import Launch, load_settings, read_launch_history
from hpckit.record.layout import AttemptPaths
from hpckit.record.lookup import Selection
from hpckit.record.process import this_host
from hpckit.record.store import read_events
from hpckit.runtime.requests import ask
from hpckit.views.awaited_answer import await_answer
from hpckit.views.running_run import running_run

PATIENCE = timedelta(seconds=60)
"""How long to wait for other processes that add jobs."""

_DIGITS = re.compile(r"[^0-9a-zA-Z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowOrder:
    """What a user wants: more replicas, and where; None stands for what the run's job has."""

    replicas: int
    partition: str | None = None
    qos: str | None = None
    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What comes of growing a run.

    `answer` is the supervisor's. `job` brings the nodes and `script` submits it; both are None if
    all replicas asked for stand ready. `slurm_job` is None until it is submitted.
    """

    record: RunRecord
    answer: ResizeAnswer | None
    job: JobSpec | None
    script: str | None
    slurm_job: str | None = None


def grow_run(selection: Selection, order: GrowOrder, context: Context) -> Growth:
    """Give the selected run more replicas; nodes that do not stand ready come in a satellite job.

    Raises UsageError if the run cannot grow, RunError if it ends meanwhile or its supervisor does
    not answer, SchedulerError.
    """
    record, settings = _resizable(selection, order.replicas, context, "grown")
    launch = selection.launch
    _check_alone(launch, record)
    answer = _asked(launch, record, Resize.grow, order.replicas, context)
    left = order.replicas - answer.standing
    if left <= 0:
        return Growth(record=record, answer=answer, job=None, script=None)
    with alone(launch, context, patience=PATIENCE) as fresh:
        job = _satellite(fresh, record, settings, order, left)
        script = rendered(fresh, job, context)
        slurm_job = hand_in(fresh, JobAdded(at=context.now(), job=job, after=()), context)
    return Growth(record=record, answer=answer, job=job, script=script, slurm_job=slurm_job)


def plan_growth(selection: Selection, order: GrowOrder, context: Context) -> Growth:
    """Return what `grow_run` would submit if nothing stands ready; asks and changes nothing."""
    record, settings = _resizable(selection, order.replicas, context, "grown")
    launch = selection.launch
    _check_alone(launch, record)
    job = _satellite(launch, record, settings, order, order.replicas)
    script = rendered(launch, job, context)
    return Growth(record=record, answer=None, job=job, script=script)


def shrink_run(
    selection: Selection, replicas: int, context: Context
) -> tuple[RunRecord, ResizeAnswer]:
    """Have the selected run continue with so many replicas at its next boundary.

    Raises UsageError if it cannot, RunError if it ends meanwhile or its supervisor does not answer.
    """
    record, _ = _resizable(selection, replicas, context, "shrunk")
    return record, _asked(selection.launch, record, Resize.shrink, replicas, context)


def _resizable(
    selection: Selection, replicas: int, context: Context, asked: str
) -> tuple[RunRecord, LaunchConfig]:
    launch = selection.launch
    if launch.cluster.kind is not ClusterKind.slurm:
        raise UsageError(
            f"launch {launch.id} runs on cluster {launch.cluster.kind}, which is one node: only a "
            f"run on Slurm can be {asked}",
            hint="a run in another size is another launch: hpckit rerun, with other resources",
        )
    if replicas < 1:
        raise UsageError(f"--replicas is {replicas}; it is 1 or more")
    record = running_run(selection, context, asked).record
    return record, load_settings(launch, record.index)[0]


def _check_alone(launch: Launch, record: RunRecord) -> None:
    if read_launch_history(launch).job_of(record.index).shared_job is not None:
        raise UsageError(
            f"run {record.id} shares its Slurm job with other runs, and has one node or less",
            hint="only a run with a job of its own grows: launch without sweep.runs_per_job",
        )


def _asked(
    launch: Launch, record: RunRecord, resize: Resize, replicas: int, context: Context
) -> ResizeAnswer:
    """Return the supervisor's answer; raises UsageError if it refuses."""
    paths = launch.paths.run(record.index).attempt(record.attempt)
    token = _DIGITS.sub("", context.token())[:32] or "0"
    request = ResizeRequest(
        id=f"{context.now():%Y%m%dT%H%M%SZ}-{token}",
        at=context.now(),
        host=this_host(),
        resize=resize,
        replicas=replicas,
    )
    try:
        ask(paths.resize_requests, to_plain(request))
    except OSError as error:
        raise RunError(f"cannot write {paths.resize_requests}: {error.strerror}") from error
    answer = await_answer(lambda: read_resize_answer(paths, request.id), launch, record, context)
    if answer.refused is not None:
        raise UsageError(f"run {record.id} cannot {resize}: {answer.refused}")
    return answer


def _satellite(
    launch: Launch, record: RunRecord, settings: LaunchConfig, order: GrowOrder, replicas: int
) -> JobSpec:
    paths = launch.paths.run(record.index).attempt(record.attempt)
    wanted = SatelliteOrder(
        replicas=replicas,
        replica_nodes=size_of(settings).replica_nodes,
        taken=_taken(paths),
        partition=order.partition,
        qos=order.qos,
        timeout=order.timeout,
        warn_s=settings.runtime.save_before_timeout_s or 60.0,
    )
    like = read_launch_history(launch).job_of(record.index)
    return satellite_job(launch.id, record.index, index=len(launch.jobs), like=like, order=wanted)


def _taken(paths: AttemptPaths) -> Sequence[str]:
    """Return the nodes of an attempt: a satellite on one of them would bring nothing."""
    nodes: dict[str, None] = {}
    for event in read_events(paths.events):
        if isinstance(event, AgentJoined):
            nodes[event.node] = None
        elif isinstance(event, SatelliteLeft):
            nodes.pop(event.node, None)
    return tuple(nodes)


def growth_words(growth: Growth) -> str:
    """Return in words where the replicas come from, such as `job 12 on 2 nodes`."""
    if growth.job is None:
        return "nodes that stand ready"
    nodes = counted(growth.job.resources.nodes, "node")
    return f"satellite job {growth.slurm_job} of {nodes}, once it starts"
