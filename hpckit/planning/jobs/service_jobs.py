"""The jobs that hpckit itself adds: auto-resume, backlog, successors, satellites. Pure.

It defines what they ask of Slurm, not when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.elastic import SatelliteSpec
from hpckit.model.ids import JobId
from hpckit.model.launch import Cluster
from hpckit.model.plan import JobSpec, ResourceSpec
from hpckit.planning.jobs.shared_jobs import build_job_of_runs
from hpckit.values import dataclass, replace

AUTO_RESUME_TIME = timedelta(minutes=10)
_AUTO_RESUME_MEM_GB = 1.0
_PAUSE = ("begin", "now+60")
"""The delay of an auto-resume job whose predecessor found nothing to do."""

SERVICE_HINT = (
    "if the partition takes no small jobs without GPUs, name one that does: "
    "cluster.service_partition=NAME (and cluster.service_qos=NAME)"
)

_KEPT = frozenset({"licenses", "mcs-label", "wckey"})
"""The user's options that say under which conditions, and on whose account, a job may start. A file
system may be a license: without the option, a job would start while it is unavailable."""


def build_auto_resume_job(
    launch: str,
    *,
    index: int,
    like: ResourceSpec,
    cluster: Cluster,
    after: Iterable[str],
    pause: bool = False,
) -> JobSpec:
    """Return a job without runs that starts when these jobs have ended, in whatever way.

    It asks for one CPU for ten minutes, in the partition and on the account of the launch's own
    jobs, or where the cluster wants such jobs (`service_partition`, `service_qos`). It uses no
    reservation: it may start long after the launch's jobs, and a reservation has an end.
    """
    # The main jobs of elements; those that have ended delay nothing.
    mains = dict.fromkeys(job.partition("_")[0] for job in after)
    resources = replace(
        like,
        **_choose_service_partition_and_qos(like, cluster),
        nodes=1,
        spare_nodes=0,
        min_nodes=None,
        tasks_per_node=1,
        cpus_per_task=1,
        gpus_per_node=0,
        nodelist=None,
        exclude=None,
        reservation=None,
        switches=None,
        segment=None,
        gres=None,
        exclusive=False,
        comment=None,
        mail_type=None,
        mail_user=None,
        array_parallelism=1,
        mem_gb=_AUTO_RESUME_MEM_GB,
        timeout=AUTO_RESUME_TIME,
        dependency=f"afterany:{':'.join(mains)}" if mains else None,
        additional_parameters=(*_select_inherited_options(like), _PAUSE)
        if pause
        else _select_inherited_options(like),
    )
    name = f"{launch}-auto-resume-{index}"
    return JobSpec(index=index, name=name, runs=(), resources=resources, requeue=True)


def _choose_service_partition_and_qos(asked: ResourceSpec, cluster: Cluster) -> dict[str, str | None]:
    """Return partition, QOS and constraint; the launch's may not exist in another partition."""
    if cluster.service_partition is None:
        return {"qos": cluster.service_qos or asked.qos, "constraint": asked.constraint}
    return {"partition": cluster.service_partition, "qos": cluster.service_qos, "constraint": None}


def _select_inherited_options(asked: ResourceSpec) -> tuple[tuple[str, str | bool | None], ...]:
    given = asked.additional_parameters
    return tuple((key, value) for key, value in given if key.replace("_", "-") in _KEPT)


def build_job_submitting_backlog(
    launch: str, *, index: int, like: ResourceSpec, cluster: Cluster, after: Sequence[str]
) -> JobSpec:
    """Return a job without runs that submits the remaining jobs when these jobs have ended."""
    job = build_auto_resume_job(launch, index=index, like=like, cluster=cluster, after=after, pause=not after)
    return replace(job, name=f"{launch}-backlog-{index}")


def build_next_attempt_job(launch: str, run: int, *, index: int, like: JobSpec, after: str) -> JobSpec:
    """Return the job of a run's next attempt, which starts when the job `after` has ended."""
    resources = replace(like.resources, dependency=f"afterany:{JobId.parse(after)}")
    return build_job_of_runs(index, launch, (run,), (resources, like.requeue))


@dataclass(frozen=True, slots=True, kw_only=True)
class SatelliteOrder:
    """What a satellite job is to bring: `nodes` that complete replicas, none of them `taken`.

    `partition`, `qos` and `timeout` are those of the run's job if they are None. The job is told
    `warn_s` seconds before its time limit.
    """

    replicas: int
    nodes: int
    taken: Sequence[str] = ()
    partition: str | None = None
    qos: str | None = None
    timeout: timedelta | None = None
    warn_s: float = 60.0


def build_satellite_job(
    launch: str, run: int, *, index: int, like: JobSpec, order: SatelliteOrder
) -> JobSpec:
    """Return a job without runs that brings nodes to a running run.

    It asks for the same resources of each node as the run's own job, and is not requeued: a new
    start would find another attempt of the run, or none.
    """
    asked = like.resources
    elsewhere = order.partition is not None and order.partition != asked.partition
    excluded = [asked.exclude] if asked.exclude else []
    excluded += [compress_to_hostlist(order.taken)] if order.taken else []
    stated = dict(asked.additional_parameters)
    resources = replace(
        asked,
        nodes=order.nodes,
        spare_nodes=0,
        min_nodes=None,
        nodelist=None,
        exclude=",".join(excluded) or None,
        reservation=None if elsewhere else asked.reservation,
        switches=None,
        segment=None,
        dependency=None,
        mail_type=None,
        mail_user=None,
        array_parallelism=1,
        partition=order.partition or asked.partition,
        qos=order.qos or asked.qos,
        timeout=order.timeout or asked.timeout,
        additional_parameters=tuple(({"signal": f"USR1@{order.warn_s:.0f}"} | stated).items()),
    )
    return JobSpec(
        index=index,
        name=f"{launch}-satellite-{index}",
        runs=(),
        resources=resources,
        requeue=False,
        satellite=SatelliteSpec(run=run, replicas=order.replicas),
    )
