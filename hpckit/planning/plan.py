"""From composed configurations to the plan of a launch. Pure: same points, same plan.

Groups runs into jobs and defines what a job asks of Slurm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any

from hpckit.errors import ConfigError
from hpckit.model.cluster.gpus_asked import count_cpus_per_rank, requested_gpus_per_node
from hpckit.model.cluster.site import NO_LIMITS, SubmitLimits
from hpckit.model.command import parse_invocation, split_command
from hpckit.model.ids import slugify_name
from hpckit.model.launch import LaunchConfig
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec, RunSpec, SweepPoint
from hpckit.model.settings import GpuOption
from hpckit.planning.checks.config import check_sweep_points
from hpckit.planning.checks.gpu_types import find_gpu_type_for_slurm
from hpckit.planning.jobs.shared_jobs import (
    Asked,
    build_job_of_runs,
    build_shared_job,
    do_runs_share_jobs,
    find_max_concurrent_runs,
    plan_shared_job,
    split_runs_into_arrays,
)
from hpckit.planning.jobs.stage_jobs import build_stage_jobs, check_stages
from hpckit.planning.layout import cache_by_settings
from hpckit.planning.signature import compute_frozen_signature
from hpckit.planning.stages import chain_run_signatures, list_stages_of_points
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchIdentity:
    """What distinguishes one launch from any other of the same configuration."""

    id: str
    created_at: datetime


def build_launch_plan(
    points: Sequence[SweepPoint],
    *,
    identity: LaunchIdentity,
    folder: str,
    arguments: tuple[str, ...],
    python: str,
    limits: SubmitLimits = NO_LIMITS,
) -> LaunchPlan:
    """Return the plan of these points, in their order.

    Runs that ask the same of Slurm become one job (an array if there are several), or as few jobs as the
    limits allow. `folder` is absolute. `arguments` are the words that the user typed. `python` is what the
    nodes run. Raises ConfigError if the points cannot be run together as configured.
    """
    check_sweep_points(points)
    check_stages(points)
    stages = list_stages_of_points(points)
    runs = tuple(
        RunSpec(
            launch=identity.id,
            index=index,
            overrides=point.overrides,
            signature=compute_frozen_signature(point.config, point.search, index),
            config=point.config,
            settings=point.settings,
            stage=point.stage,
            secrets=point.secrets,
        )
        for index, point in enumerate(points)
    )
    return LaunchPlan(
        id=identity.id,
        name=choose_launch_name(points[0].settings),
        created_at=identity.created_at,
        folder=folder,
        arguments=arguments,
        cluster=points[0].settings.cluster,
        python=python,
        runs=chain_run_signatures(runs, stages) if stages else runs,
        jobs=build_stage_jobs(
            identity.id, [_build_resources_and_requeue(point.settings) for point in points], stages, limits
        )
        if stages
        else _group_runs_into_jobs(identity.id, points, limits),
        stages=stages,
        search=points[0].search,
    )


def choose_launch_name(settings: LaunchConfig) -> str:
    """Return the name of a launch: the configured one, or one made from what its runs start."""
    if settings.name:
        return settings.name
    if settings.entry_point:
        module, _, function = settings.entry_point.partition(":")
        return slugify_name(f"{module.rpartition('.')[2]}-{function}")
    if settings.command:
        started = parse_invocation(split_command(settings.command))
        if started.module:
            return slugify_name(started.module.rpartition(".")[2])
        return slugify_name(PurePath(started.script or started.program).stem)
    return slugify_name("")


def _build_resources_and_requeue(settings: LaunchConfig) -> Asked:
    # A successor waits for the job's end, and a requeued job does not end.
    recovery = settings.recovery
    return build_resource_spec(settings), recovery.requeue and not recovery.queue_successor


def _group_runs_into_jobs(
    launch: str, points: Sequence[SweepPoint], limits: SubmitLimits
) -> tuple[JobSpec, ...]:
    groups: dict[Asked, list[int]] = {}
    asked = cache_by_settings(_build_resources_and_requeue)
    for index, point in enumerate(points):
        groups.setdefault(asked(point.settings), []).append(index)
    if do_runs_share_jobs(points[0].settings):
        # One job for all runs that ask for the same; its elements share the runs.
        return tuple(
            build_shared_job(
                index,
                launch,
                runs,
                plan_shared_job(len(runs), points[runs[0]].settings, each, limits),
                requeue=requeue,
            )
            for index, ((each, requeue), runs) in enumerate(groups.items())
        )
    parts = [(key, part) for key, runs in groups.items() for part in split_runs_into_arrays(runs, limits)]
    return tuple(build_job_of_runs(index, launch, runs, key) for index, (key, runs) in enumerate(parts))


_AS_ASKED = (
    *("nodes", "spare_nodes", "min_nodes", "tasks_per_node", "mem_gb", "constraint", "nodelist"),
    *("exclude", "reservation", "switches", "segment", "exclusive", "dependency"),
    *("comment", "mail_type", "mail_user"),
)


def build_resource_spec(settings: LaunchConfig) -> ResourceSpec:
    """Return what Slurm is asked for; the cluster's partition, account and QOS are the defaults."""
    asked, cluster = settings.resources, settings.cluster
    bound = find_max_concurrent_runs(settings)
    parallelism = asked.array_parallelism if bound is None else min(bound, asked.array_parallelism)
    gpus, kind = asked.gpus_per_node or 0, find_gpu_type_for_slurm(asked, cluster)
    by_gres = gpus > 0 and cluster.gpu_option is GpuOption.gres
    gres = [":".join(("gpu", *filter(None, (kind, str(gpus)))))] if by_gres else []
    return ResourceSpec(
        **{name: getattr(asked, name) for name in _AS_ASKED},
        cpus_per_task=count_cpus_per_rank(asked),
        gres=",".join([*filter(None, (asked.gres,)), *gres]) or None,
        gpus_per_node=0 if by_gres else gpus,
        gpu_type=None if by_gres else kind,
        timeout=None if asked.timeout_min is None else timedelta(minutes=asked.timeout_min),
        partition=asked.partition or cluster.partition,
        account=asked.account or cluster.account,
        qos=asked.qos or cluster.qos,
        array_parallelism=parallelism,
        additional_parameters=(
            *(
                (key, _convert_sbatch_parameter(key, value))
                for key, value in asked.additional_parameters.items()
            ),
            *_build_power_cap_option(settings),
        ),
    )


def _build_power_cap_option(settings: LaunchConfig) -> Iterator[tuple[str, str]]:
    cluster, option = settings.cluster, settings.cluster.power_cap_option
    if option is None or cluster.power_cap_w is None or not requested_gpus_per_node(settings.resources):
        return
    stated = settings.resources.additional_parameters.items()
    if option in {key.replace("_", "-") for key, value in stated if value not in (None, False)}:
        raise ConfigError(
            f"resources.additional_parameters and cluster.power_cap_w both set --{option}",
            hint="leave one of them out",
        )
    watts = cluster.power_cap_w
    yield option, str(int(watts) if watts == int(watts) else round(watts, 3))


def _convert_sbatch_parameter(key: str, value: Any) -> str | bool | None:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return str(value)
    raise ConfigError(
        f"resources.additional_parameters.{key} is {value!r}; it must be a string, a number, true or null",
        hint="write several values as sbatch would read them: 'a,b'",
    )
