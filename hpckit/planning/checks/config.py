"""Whether a composed configuration is consistent, before anything is frozen.

Checks the rules that types alone cannot express, without looking at the machine or the cluster.
Every refusal names the key, its value and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from hpckit.errors import ConfigError
from hpckit.model.cluster.gpus_asked import count_cpus_per_rank
from hpckit.model.command import split_command
from hpckit.model.counted import format_ranges
from hpckit.model.failure import RESTARTABLE
from hpckit.model.launch import Checkpoint, Cluster, ClusterKind, LaunchConfig, Recovery, Resources
from hpckit.model.node_setup import Container, ContainerRuntime
from hpckit.model.parallel.layout import MOST_RANKS
from hpckit.model.plan import SweepPoint
from hpckit.model.profile import MOST_RANKS as MOST_PROFILED
from hpckit.model.settings import VARIABLE, Observe, Profile
from hpckit.patterns import lazy_pattern
from hpckit.planning.checks.values import check_setting_values
from hpckit.planning.fallback import check_shrinking_to_min_nodes
from hpckit.planning.faults import parse_planned_faults
from hpckit.planning.jobs.shared_jobs import check_runs_can_share_job
from hpckit.planning.layout import cache_by_settings
from hpckit.planning.printed_metrics import compile_metric_patterns
from hpckit.planning.tracker import check_tracker_settings

SHARED_KEYS = ("name", "output_dir", "cluster", "code", "budget", "sweep", "notify")
"""What all runs of one launch share: one folder, one snapshot, one scheduler, one budget and one throttle."""

_ENTRY_POINT = lazy_pattern(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*\Z")
_SHORTEST_INTERVAL_S = 0.5
"""Each sample takes a lock of the driver that training needs, too."""
_MOST_LOCAL_RANKS = 1024
"""More processes than that are a slip; each rank takes several threads, and memory for torch."""
_SWITCHES = lazy_pattern(r"[1-9]\d*(@(\d+-)?\d+(:\d+){0,2})?")
_VARIABLE = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def check_sweep_points(points: Sequence[SweepPoint]) -> None:
    """Raise ConfigError for the first point that cannot be run as it is."""
    if not points:
        raise ConfigError(
            "the sweep has no points", hint="an axis such as range(0,0) or glob() matched nothing"
        )
    for key in SHARED_KEYS:
        first = getattr(points[0].settings, key)
        if any(getattr(point.settings, key) != first for point in points):
            raise ConfigError(
                f"{key} differs between the runs of one launch; they share one folder, one code "
                "snapshot and one scheduler",
                hint=f"start one launch for each value of {key}, or sweep another key",
            )
    check = cache_by_settings(check_settings_are_consistent)
    for index, point in enumerate(points):
        try:
            check(point.settings)
        except ConfigError as error:
            if len(points) == 1:
                raise
            where = f"run {index} ({' '.join(point.overrides)}): "
            raise ConfigError(where + error.message, hint=error.hint) from error


def check_settings_are_consistent(settings: LaunchConfig) -> None:
    """Raise ConfigError if the settings of one run are not consistent."""
    _check_entry_point_or_command(settings)
    if settings.resources.tasks_per_node == 0 and settings.cluster.gpus_per_node == 0:
        raise ConfigError(
            "resources.tasks_per_node is 0; in groups such as one_node it follows "
            "cluster.gpus_per_node, which is not stated",
            hint="state what the nodes have: cluster.gpus_per_node=N (sinfo -o '%P %G' lists it on "
            "Slurm); or choose resources=cpu",
        )
    check_setting_values(settings)
    _check_observe_settings(settings.observe)
    size = settings.resources.nodes * settings.resources.tasks_per_node
    _check_profile_ranks(settings.observe.profile, size)
    check_tracker_settings(settings.tracker)
    _check_notify_settings(settings)
    _check_env_variables(settings)
    _refuse_unused_image(settings.container)
    _refuse_too_many_ranks(settings.resources, settings.cluster)
    _check_node_counts(settings.resources, settings.cluster)
    _check_switches_and_segment(settings.resources)
    _check_gpus_and_cpus(settings.resources, settings.cluster)
    _check_partition_is_known(settings.resources, settings.cluster)
    _refuse_relative_weights_path(settings.checkpoint)
    check_shrinking_to_min_nodes(settings)
    parse_planned_faults(settings.chaos)
    _check_restart_limits(settings.recovery)
    _check_what_grows_is_asked_for(settings)
    _check_save_before_timeout(settings)
    check_runs_can_share_job(settings)


def _refuse_unused_image(container: Container) -> None:
    if container.image and container.runtime is ContainerRuntime.none:
        raise ConfigError(
            f"container.image is {container.image}, and no container is started: container.runtime is none",
            hint="choose what starts it: container=apptainer, or container=auto",
        )


def _check_observe_settings(observe: Observe) -> None:
    compile_metric_patterns(observe.printed_metrics)
    if observe.interval_s and observe.interval_s < _SHORTEST_INTERVAL_S:
        raise ConfigError(
            f"observe.interval_s is {observe.interval_s:g}; it must be at least "
            f"{_SHORTEST_INTERVAL_S:g}, or 0",
            hint="observe=deep measures every second, observe=off not at all",
        )
    if observe.row_s < observe.interval_s:
        raise ConfigError(
            f"observe.row_s is {observe.row_s:g}; it must be at least observe.interval_s, which "
            f"is {observe.interval_s:g}",
            hint="a row holds the samples of that time: observe.row_s=30",
        )


def _check_profile_ranks(profile: Profile, world_size: int) -> None:
    """Refuse a profile of no rank, of too many, and a planned one of ranks that there are not."""
    ranks = set(profile.ranks)
    if not 0 < len(ranks) <= MOST_PROFILED or min(ranks) < 0:
        raise ConfigError(
            f"observe.profile.ranks is {profile.ranks}; it takes 1 to {MOST_PROFILED} ranks, from 0",
            hint="observe.profile.ranks=[0,3]",
        )
    unknown = sorted(rank for rank in ranks if rank >= world_size)
    if profile.is_profiling_planned and unknown:
        raise ConfigError(
            f"observe.profile.ranks names rank {format_ranges(unknown)}; the run has {world_size}, "
            "numbered from 0",
            hint=f"observe.profile.ranks=[0], or any below {world_size}",
        )


def _check_restart_limits(recovery: Recovery) -> None:
    for name, count in recovery.restarts.items():
        if name not in RESTARTABLE:
            near = difflib.get_close_matches(name, RESTARTABLE, n=1)
            raise ConfigError(
                f"recovery.restarts: {name!r} is not a restartable cause; those are {', '.join(RESTARTABLE)}",
                hint=f"did you mean recovery.restarts.{near[0]}?"
                if near
                else "leave it out, or name one of those",
            )
        if count < 0:
            raise ConfigError(
                f"recovery.restarts.{name} is {count}; it must be at least 0",
                hint=f"recovery.restarts.{name}=0 never starts a run again after that",
            )


def _check_what_grows_is_asked_for(settings: LaunchConfig) -> None:
    if settings.cluster.kind is ClusterKind.local:
        return
    recovery, resources = settings.recovery, settings.resources
    for name, factor, key, value in (
        ("grow_on_oom", recovery.grow_on_oom, "resources.mem_gb", resources.mem_gb),
        ("grow_on_timeout", recovery.grow_on_timeout, "resources.timeout_min", resources.timeout_min),
    ):
        if factor is not None and value is None:
            raise ConfigError(
                f"recovery.{name}={factor:g} multiplies {key}, which is not set",
                hint=f"state what the first attempt asks for: {key}=…",
            )


def _check_save_before_timeout(settings: LaunchConfig) -> None:
    found = None if settings.entry_point is None else explain_immediate_leave(settings)
    if found is not None:
        raise ConfigError(found[0], hint=found[1])


def explain_immediate_leave(settings: LaunchConfig) -> tuple[str, str] | None:
    """Return why a loop of hpckit's would leave as soon as it began, and what to do; None if it does not."""
    minutes, lead = settings.resources.timeout_min, settings.runtime.save_before_timeout_s
    if settings.cluster.kind is ClusterKind.local or minutes is None or lead < minutes * 60:
        return None
    later = f"runtime.save_before_timeout_s={minutes * 60 // 4} (0: only when Slurm says so)"
    problem = f"resources.timeout_min is {minutes}, and runtime.save_before_timeout_s is {lead:g}"
    return (
        f"{problem}: the run would save and leave as soon as it began",
        f"ask for more time, or save later: {later}",
    )


def _refuse_relative_weights_path(checkpoint: Checkpoint) -> None:
    """Refuse a path whose meaning depends on the folder that a rank starts in."""
    path = checkpoint.weights
    if path is not None and not path.startswith(("/", "~")):
        raise ConfigError(
            f"checkpoint.weights={path} is a relative path, and ranks start in another folder",
            hint=f'name the whole path, for example checkpoint.weights="$PWD/{path}"',
        )


def _check_entry_point_or_command(settings: LaunchConfig) -> None:
    if settings.entry_point is not None and settings.command is not None:
        raise ConfigError(
            f"both entry_point={settings.entry_point!r} and command={settings.command!r} are set; "
            "a run has exactly one of them",
            hint="to run the command, choose no other experiment: hpckit launch -- python "
            "train.py, with entry_point=null before -- if one of your files sets it; for "
            "the function, leave the command out",
        )
    if settings.command is not None:
        split_command(settings.command)
    elif settings.entry_point is None:
        raise ConfigError(
            "nothing to run: neither entry_point nor command is set",
            hint="a program: hpckit launch -- python train.py; a function: experiment=function "
            "entry_point=package.module:function; an example: experiment=digits",
        )
    elif _names_python_file(settings.entry_point) or not _ENTRY_POINT.match(settings.entry_point):
        raise ConfigError(
            f"entry_point {settings.entry_point!r} {_explain_bad_entry_point(settings.entry_point)}",
            hint=f"write entry_point={_guess_entry_point(settings.entry_point)}",
        )


def _names_python_file(text: str) -> bool:
    return text.partition(":")[0].endswith(".py")


def _explain_bad_entry_point(text: str) -> str:
    if _names_python_file(text):
        return "names a file; write a module without .py, with dots"
    if "/" in text:
        return "names a path; write a module with dots"
    return "is not of the form package.module:function"


def _guess_entry_point(text: str) -> str:
    """Return the entry point that a file, a path or a dotted name was probably meant to be."""
    module, colon, function = text.partition(":")
    parts = [part for part in module.removesuffix(".py").replace("/", ".").split(".") if part]
    if not colon and len(parts) > 1 and not module.endswith(".py") and "/" not in module:
        *parts, function = parts
    meant = f"{'.'.join(parts)}:{function or 'main'}"
    return meant if _ENTRY_POINT.match(meant) else "train:main for the function main of train.py"


def _check_env_variables(settings: LaunchConfig) -> None:
    for key, variables in (("env", settings.env), ("cluster.env", settings.cluster.env)):
        for name, value in variables.items():
            if not _VARIABLE.match(name) or "\0" in value:
                raise ConfigError(
                    f"{key} holds {name!r}, which cannot be an environment variable",
                    hint="names are letters, digits and _, and do not begin with a digit",
                )


def _refuse_too_many_ranks(resources: Resources, cluster: Cluster) -> None:
    """Refuse more ranks than there can be: numbers of ranks are made into lists, and processes."""
    ranks = resources.nodes * resources.tasks_per_node
    if ranks > MOST_RANKS:
        raise ConfigError(
            f"resources.nodes={resources.nodes} x "
            f"resources.tasks_per_node={resources.tasks_per_node} is {ranks} ranks; there can be "
            f"{MOST_RANKS} at most",
            hint="check both numbers: tasks_per_node is usually the number of GPUs of a node",
        )
    if cluster.kind is ClusterKind.local and ranks > _MOST_LOCAL_RANKS:
        raise ConfigError(
            f"resources.tasks_per_node={resources.tasks_per_node} would start that many processes "
            f"on this machine; there can be {_MOST_LOCAL_RANKS} at most",
            hint="take as many as it has GPUs or cores",
        )


def _check_node_counts(resources: Resources, cluster: Cluster) -> None:
    local = cluster.kind is ClusterKind.local
    if local and resources.nodes > 1:
        raise ConfigError(
            f"resources.nodes is {resources.nodes}, but the local executor has only this machine",
            hint="here: resources=cpu (one rank), or resources.tasks_per_node for several; else "
            "cluster=slurm",
        )
    if local and resources.spare_nodes:
        raise ConfigError(
            f"resources.spare_nodes is {resources.spare_nodes}, but the local executor has only this machine",
            hint="set resources.spare_nodes=0 here, or use cluster=slurm",
        )
    if resources.min_nodes is not None and resources.min_nodes > resources.nodes:
        raise ConfigError(
            f"resources.min_nodes is {resources.min_nodes}, more than resources.nodes, which is "
            f"{resources.nodes}; a run shrinks from nodes to min_nodes, and no further",
            hint=f"set resources.min_nodes to 1 … {resources.nodes}, or resources.spare_nodes to "
            "have spare nodes",
        )


def _check_switches_and_segment(resources: Resources) -> None:
    switches, segment = resources.switches, resources.segment
    if switches is not None and not _SWITCHES.fullmatch(switches):
        raise ConfigError(
            f"resources.switches is {switches!r}; it must be a count, or COUNT@TIME with "
            "the longest wait, as sbatch writes times",
            hint="for example resources.switches=1, or resources.switches=1@60 for an hour",
        )
    allocated = resources.nodes + resources.spare_nodes
    if segment is not None and allocated % segment:
        raise ConfigError(
            f"resources.segment is {segment}, which does not divide the {allocated} nodes that are "
            "asked for (resources.nodes and resources.spare_nodes)",
            hint="choose a divisor, such as the nodes of a replica, or another number of spare nodes",
        )


def _check_gpus_and_cpus(resources: Resources, cluster: Cluster) -> None:
    stated = cluster.gpus_per_node > 0 or cluster.kind is not ClusterKind.slurm
    if stated and (resources.gpus_per_node or 0) > cluster.gpus_per_node:
        raise ConfigError(
            f"resources.gpus_per_node is {resources.gpus_per_node}, but a node of this cluster "
            f"has {cluster.gpus_per_node} (cluster.gpus_per_node)",
            hint="ask for fewer (resources=cpu asks for none), or state what the nodes have: "
            "cluster.gpus_per_node=N",
        )
    cpus = resources.tasks_per_node * count_cpus_per_rank(resources)
    if cluster.cpus_per_node is not None and cpus > cluster.cpus_per_node:
        raise ConfigError(
            f"resources.tasks_per_node={resources.tasks_per_node} with "
            f"resources.cpus_per_task={count_cpus_per_rank(resources)} needs {cpus} CPUs, but a "
            f"node of this cluster has {cluster.cpus_per_node} (cluster.cpus_per_node)",
            hint="ask for fewer, or state what the nodes have: cluster.cpus_per_node=N",
        )


def _check_partition_is_known(resources: Resources, cluster: Cluster) -> None:
    chosen = resources.partition or cluster.partition
    if chosen is None or not cluster.partitions:
        return
    for partition in chosen.split(","):
        if partition not in cluster.partitions:
            near = difflib.get_close_matches(partition, cluster.partitions, n=1)
            raise ConfigError(
                f"partition {partition!r} is not one of this cluster's: {', '.join(cluster.partitions)}",
                hint=f"did you mean resources.partition={near[0]}?"
                if near
                else "choose one of them with resources.partition=NAME",
            )


def _check_notify_settings(settings: LaunchConfig) -> None:
    for key, variables in (("env", settings.env), ("cluster.env", settings.cluster.env)):
        if VARIABLE in variables:
            raise ConfigError(
                f"{key}.{VARIABLE} is set, but hpckit sends notices, not the ranks",
                hint=f"export {VARIABLE} in the shell that launches, or name a private file: "
                "notify.file=~/.config/hpckit/notify",
            )
    path = settings.notify.file
    if path is not None and not path.startswith(("/", "~/")):
        raise ConfigError(
            f"notify.file is {path!r}; it must begin with / or ~/, because nodes read it, too",
            hint="for example notify.file=~/.config/hpckit/notify, outside the project",
        )
