"""From composed configurations to the plan of a launch. Pure: same points, same plan.

Groups runs into jobs and defines what a job asks of Slurm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any

from hpckit.errors import ConfigError
from hpckit.model.cluster.gpus_asked import cpus_of_task, gpus_asked
from hpckit.model.cluster.site import NO_LIMITS, SubmitLimits
from hpckit.model.command import command_words, invocation
from hpckit.model.ids import slug
from hpckit.model.launch import LaunchConfig
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec, RunSpec, SweepPoint
from hpckit.planning.checks.config import check_points
from hpckit.planning.jobs.shared_jobs import (
    Asked,
    chunks,
    job_of_runs,
    merged_job,
    shared_job,
    shares_jobs,
    throttle,
)
from hpckit.planning.jobs.stage_jobs import check_stages, stage_jobs
from hpckit.planning.layout import once_for_all
from hpckit.planning.signature import frozen_signature
from hpckit.planning.stages import planned_stages, with_earlier
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchIdentity:
    """What distinguishes one launch from any other of the same configuration."""

    id: str
    created_at: datetime


def make_plan(
    points: Sequence[SweepPoint],
    *,
    identity: LaunchIdentity,
    folder: str,
    arguments: tuple[str, ...],
    python: str,
    limits: SubmitLimits = NO_LIMITS,
) -> LaunchPlan:
    """Return the plan of these points, in their order.

    Runs that ask the same of Slurm become one job (an array if there are several), or as few jobs
    as the limits allow. `folder` is absolute. `arguments` are the words that the user typed.
    `python` is what the nodes run. Raises ConfigError if the points cannot be run together as
    configured.
    """
    check_points(points)
    check_stages(points)
    stages = planned_stages(points)
    runs = tuple(
        RunSpec(
            launch=identity.id,
            index=index,
            overrides=point.overrides,
            signature=frozen_signature(point.config, point.search, index),
            config=point.config,
            settings=point.settings,
            stage=point.stage,
            secrets=point.secrets,
        )
        for index, point in enumerate(points)
    )
    return LaunchPlan(
        id=identity.id,
        name=launch_name(points[0].settings),
        created_at=identity.created_at,
        folder=folder,
        arguments=arguments,
        cluster=points[0].settings.cluster,
        python=python,
        runs=with_earlier(runs, stages) if stages else runs,
        jobs=stage_jobs(identity.id, [_asked(point.settings) for point in points], stages, limits)
        if stages
        else _jobs(identity.id, points, limits),
        stages=stages,
        search=points[0].search,
    )


def launch_name(settings: LaunchConfig) -> str:
    """Return the name of a launch: the configured one, or one made from what its runs start."""
    if settings.name:
        return settings.name
    if settings.entry_point:
        module, _, function = settings.entry_point.partition(":")
        return slug(f"{module.rpartition('.')[2]}-{function}")
    if settings.command:
        started = invocation(command_words(settings.command))
        if started.module:
            return slug(started.module.rpartition(".")[2])
        return slug(PurePath(started.script or started.program).stem)
    return slug("")


def _asked(settings: LaunchConfig) -> Asked:
    # A successor waits for the job's end, and a requeued job does not end.
    recovery = settings.recovery
    return resource_spec(settings), recovery.requeue and not recovery.queue_successor


def _jobs(launch: str, points: Sequence[SweepPoint], limits: SubmitLimits) -> tuple[JobSpec, ...]:
    groups: dict[Asked, list[int]] = {}
    asked = once_for_all(_asked)
    for index, point in enumerate(points):
        groups.setdefault(asked(point.settings), []).append(index)
    if shares_jobs(points[0].settings):
        # One job for all runs that ask for the same; its elements share the runs.
        return tuple(
            merged_job(
                index,
                launch,
                runs,
                shared_job(len(runs), points[runs[0]].settings, each, limits),
                requeue=requeue,
            )
            for index, ((each, requeue), runs) in enumerate(groups.items())
        )
    parts = [(key, part) for key, runs in groups.items() for part in chunks(runs, limits)]
    return tuple(job_of_runs(index, launch, runs, key) for index, (key, runs) in enumerate(parts))


_AS_ASKED = (
    *("nodes", "spare_nodes", "min_nodes", "tasks_per_node", "mem_gb", "constraint", "nodelist"),
    *("exclude", "reservation", "switches", "segment", "gres", "exclusive", "dependency"),
    *("comment", "mail_type", "mail_user"),
)


def resource_spec(settings: LaunchConfig) -> ResourceSpec:
    """Return what Slurm is asked for; the cluster's partition, account and QOS are the defaults."""
    asked, cluster = settings.resources, settings.cluster
    bound = throttle(settings)
    parallelism = asked.array_parallelism if bound is None else min(bound, asked.array_parallelism)
    return ResourceSpec(
        **{name: getattr(asked, name) for name in _AS_ASKED},
        cpus_per_task=cpus_of_task(asked),
        gpus_per_node=asked.gpus_per_node or 0,
        timeout=None if asked.timeout_min is None else timedelta(minutes=asked.timeout_min),
        partition=asked.partition or cluster.partition,
        account=asked.account or cluster.account,
        qos=asked.qos or cluster.qos,
        array_parallelism=parallelism,
        additional_parameters=(
            *((key, _parameter(key, value)) for key, value in asked.additional_parameters.items()),
            *_power_cap(settings),
        ),
    )


def _power_cap(settings: LaunchConfig) -> Iterator[tuple[str, str]]:
    """Yield the site's option for the power of a GPU, for runs that ask for GPUs."""
    cluster, option = settings.cluster, settings.cluster.power_cap_option
    if option is None or cluster.power_cap_w is None or not gpus_asked(settings.resources):
        return
    stated = settings.resources.additional_parameters.items()
    if option in {key.replace("_", "-") for key, value in stated if value not in (None, False)}:
        raise ConfigError(
            f"resources.additional_parameters and cluster.power_cap_w both set --{option}",
            hint="leave one of them out",
        )
    watts = cluster.power_cap_w
    yield option, str(int(watts) if watts == int(watts) else round(watts, 3))


def _parameter(key: str, value: Any) -> str | bool | None:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return str(value)
    raise ConfigError(
        f"resources.additional_parameters.{key} is {value!r}; it must be a string, "
        "a number, true or null",
        hint="write several values as sbatch would read them: 'a,b'",
    )
