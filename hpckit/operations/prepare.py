"""Composes, plans and renders a launch and takes its code snapshot; writes and submits nothing.

A dry run is exactly `prepare`; `write` freezes the result.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest, list_template_folders
from hpckit.config.slips import warn_about_suspicious_input
from hpckit.context import Context
from hpckit.errors import ConfigError, SchedulerError
from hpckit.model.cluster.site import NO_LIMITS, SubmitLimits
from hpckit.model.counted import format_count, format_short_list
from hpckit.model.finding import Finding, build_warning_finding
from hpckit.model.ids import build_launch_id, slugify_name
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig
from hpckit.model.plan import LaunchPlan, SweepPoint
from hpckit.model.settings import Notify
from hpckit.operations.avoid_nodes import exclude_bad_nodes
from hpckit.operations.cluster_limits import ask_limits_for_jobs
from hpckit.operations.launch_features import (
    choose_launch_python,
    find_containers,
    freeze_feature_files,
    pack_for_launch,
)
from hpckit.operations.notices.addresses import check_notice_commands, find_notice_destinations
from hpckit.operations.output_file import is_output_file
from hpckit.patterns import lazy_pattern
from hpckit.planning.checks.gpu_types import count_gpus_by_type, match_gpu_types
from hpckit.planning.jobs.shared_jobs import LEARNING, do_runs_share_jobs, sort_plan_longest_first
from hpckit.planning.notices import Destination
from hpckit.planning.plan import LaunchIdentity, build_launch_plan, build_resource_spec, choose_launch_name
from hpckit.planning.secrecy import mask_command_line
from hpckit.record.durations import find_durations_by_signature
from hpckit.record.freeze import write_frozen_launch
from hpckit.record.launches import Launch, load_launch
from hpckit.record.snapshot import collect
from hpckit.record.snapshot.environment import capture_environment
from hpckit.record.snapshot.git import Git
from hpckit.record.snapshot.outside import list_outside_code_checksums
from hpckit.record.snapshot.uncounted import find_non_code_files
from hpckit.report.results import find_override_keys_that_differ
from hpckit.report.selection import parse_overrides
from hpckit.slurm.clusters import refuse_slurm_cluster_variables
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import ask_cluster_nodes
from hpckit.slurm.script import AUTO_RESUME, SATELLITE, render_batch_script
from hpckit.slurm.site_query import PATIENCE, start_site_queries
from hpckit.values import dataclass, field, replace

_GPUS = "cluster.gpus_per_node"
_SHOWN = 8
_TEMPLATE = lazy_pattern(r"sbatch|\.j2\Z|\.jinja2?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A launch that could be written: `scripts` holds the text of each job index.

    `templates` are the folders its scripts are rendered from, in order of priority. `environment`
    is that of the launch's Python if it is not the current one. `destinations` are those of its
    notices. `files` are the texts that features freeze, by name. `warnings` have been said. With `quiet` no
    progress is drawn.
    """

    plan: LaunchPlan
    scripts: Mapping[int, str]
    snapshot: collect.CodeSnapshot
    points: tuple[SweepPoint, ...]
    templates: Sequence[Path]
    environment: Mapping[str, object] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    destinations: tuple[Destination, ...] = ()
    warnings: tuple[Finding, ...] = ()
    quiet: bool = False


def prepare_launch(
    request: ComposeRequest,
    words: Sequence[str],
    context: Context,
    *,
    checked: bool = False,
    quiet: bool = False,
) -> Prepared:
    """Compose, plan and render; raises any kind of UsageError. Writes nothing.

    `words` are the command line as typed, for the record. What will be `checked` needs answers of
    Slurm, which is asked meanwhile.
    """
    with context.show_progress("composing", quiet=quiet) as tell:
        points = compose_sweep_points(replace(request, tell=tell))
        gpus = _ask_gpus_per_node(request, points, context)
        if gpus:
            word = f"{_GPUS}={gpus}"
            again = replace(request, overrides=(word, *request.overrides), tell=tell)
            # The record has no word that the user has not typed.
            points = tuple(
                replace(point, overrides=tuple(typed for typed in point.overrides if typed != word))
                for point in compose_sweep_points(again)
            )
    cluster = points[0].settings.cluster if points else None
    if checked and cluster is not None and cluster.kind is ClusterKind.slurm:
        start_site_queries(_build_slurm_commands(cluster, context), context.heard)
    warnings = _print_warnings(warn_about_suspicious_input(request, points), context)
    templates = list_template_folders(request)
    swept = find_override_keys_that_differ([parse_overrides(point.overrides) for point in points])
    plan = replace(_build_launch_plan(points, tuple(words), context, templates), swept=swept)
    if plan.cluster.kind is not ClusterKind.slurm:
        templates = templates[-1:]  # nothing reads the scripts of a launch on this machine
    _check_optuna_search(plan, context)
    if plan.cluster.kind is ClusterKind.slurm:
        refuse_slurm_cluster_variables(context.environ)
    scripts = {job.index: render_batch_script(plan, job, templates) for job in plan.jobs}
    outputs = Path(plan.folder).parent
    files = freeze_feature_files(points, Path(plan.folder), context)
    snapshot = take_code_snapshot(points, request.overrides, context.cwd, outputs, context)
    found = (
        *_warn_of_unused_templates(templates[:-1], plan),
        *_warn_of_secret_files_left_out(snapshot.left_out),
    )
    warnings += _print_warnings(found, context)
    _refuse_notify_file_in_code(points[0].settings.notify, snapshot)
    return Prepared(
        plan=plan,
        scripts=scripts,
        snapshot=snapshot,
        points=points,
        templates=templates,
        files=files,
        warnings=warnings,
        quiet=quiet,
    )


def _print_warnings(found: Iterable[Finding], context: Context) -> tuple[Finding, ...]:
    """Say these warnings at once, as what follows may be refused; return them."""
    warnings = tuple(found)
    for finding in warnings:
        context.note(f"warning: {finding.message}")
    return warnings


def add_notice_destinations(prepared: Prepared, context: Context) -> Prepared:
    """Return the launch with the places its notices go to; raises ConfigError."""
    notify = prepared.points[0].settings.notify
    found = find_notice_destinations(notify, context.environ) if notify.events else ()
    check_notice_commands(notify, found, context.environ)
    return replace(prepared, destinations=found)


def _ask_gpus_per_node(request: ComposeRequest, points: Sequence[SweepPoint], context: Context) -> int | None:
    """Return the GPUs per node, as Slurm says, if a group such as one_node needs the number.

    Without a partition the default one counts. None if nodes differ in it, or points in their
    cluster or partition. Raises ConfigError if a word says that there are none.
    """
    asking = [point.settings for point in points if point.settings.resources.tasks_per_node == 0]
    needs = asking and asking[0].cluster.gpus_per_node == 0
    if not needs or asking[0].cluster.kind is not ClusterKind.slurm:
        return None
    typed = [word for word in request.overrides if word.lstrip("+").startswith(f"{_GPUS}=")]
    if typed:
        raise ConfigError(
            f"{typed[-1]} says that nodes have no GPUs, but groups such as one_node start one "
            "process for each GPU: resources.tasks_per_node is 0",
            hint=f"leave {_GPUS} out: hpckit asks Slurm; or state what the nodes have: {_GPUS}=N; "
            "or choose resources=cpu",
        )
    cluster = asking[0].cluster
    partitions = {settings.resources.partition or settings.cluster.partition for settings in asking}
    if len(partitions) > 1 or any(config.cluster != cluster for config in asking):
        return None
    names = (partitions.pop() or context.environ.get("SBATCH_PARTITION", "")).split(",")
    try:
        nodes = ask_cluster_nodes(_build_slurm_commands(cluster, context))
    except SchedulerError:
        return None
    there = [node.has for node in nodes if node.has.partition in names or (names == [""] and node.default)]
    counts = {_count_gpus(has.gres, asking[0].resources.gpu_type) for has in there} - {0}
    if len(counts) != 1:
        return None
    context.note(f"Slurm says that its nodes have {format_count(min(counts), 'GPU')}")
    return counts.pop()


def _count_gpus(gres: Mapping[str, int], kind: str | None) -> int:
    types = count_gpus_by_type(gres)
    return sum(types.values()) if kind is None else sum(types[name] for name in match_gpu_types(kind, types))


def take_code_snapshot(
    points: Sequence[SweepPoint], words: Sequence[str], cwd: Path, output_dir: Path, context: Context
) -> collect.CodeSnapshot:
    """Return the project around a folder as it is now; `words` made the points.

    It lists files that do not count as code, and code that the points take from elsewhere.
    """
    settings, git = points[0].settings.code, Git(context.environ)
    found = collect.find_project_files_to_freeze(settings, cwd=cwd, output_dir=output_dir, git=git)
    commands = " ".join(str(point.settings.command) for point in points)
    uncounted = find_non_code_files(found, output_dir, is_output_file, commands)
    files = (word.partition("sweep.points=")[2].strip("'\"") for word in words)
    points_ = [found.root / found.working_dir / Path(file).expanduser() for file in files if file]
    values = tuple(os.path.relpath(file, found.root) for file in points_)
    found = replace(found, uncounted=uncounted.union(values), points=values)
    return add_outside_code_checksums(found, points, context)


def add_outside_code_checksums(
    snapshot: collect.CodeSnapshot, points: Sequence[SweepPoint], context: Context
) -> collect.CodeSnapshot:
    """Return a snapshot with what is there now of the code that points take from elsewhere."""
    taken = (point.settings for point in points)
    return replace(snapshot, outside=list_outside_code_checksums(taken, snapshot, context.environ))


def _warn_of_unused_templates(folders: Sequence[Path], plan: LaunchPlan) -> Iterator[Finding]:
    used = (plan.cluster.template, AUTO_RESUME, SATELLITE)
    for folder in folders:
        found = sorted(path.name for path in folder.iterdir() if _TEMPLATE.search(path.name))
        if found and not any((folder / name).is_file() for name in used):
            yield build_warning_finding(
                "cluster.template",
                plan.cluster.template,
                f"no template of {folder} is used: it has no file {plan.cluster.template} "
                f"(cluster.template), but {', '.join(found[:_SHOWN])}",
            )


def _check_optuna_search(plan: LaunchPlan, context: Context) -> None:
    """Raise ConfigError if Optuna is missing; print the default number of concurrent runs."""
    if plan.search is None:
        return
    if plan.python == sys.executable and importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            f"sweep.sampler=optuna needs Optuna, and {plan.python} does not have it",
            hint="pip install '.[optuna]' in hpckit's checkout, or take sweep.sampler=random",
        )
    settings = plan.runs[0].settings
    if plan.cluster.kind is ClusterKind.slurm and settings.sweep.max_concurrent is None:
        context.note(
            f"running {LEARNING} at a time (sweep.max_concurrent); higher concurrency makes the "
            "search less informed"
        )


def _warn_of_secret_files_left_out(names: Sequence[str]) -> Iterator[Finding]:
    if names:
        yield build_warning_finding(
            "code.secrets",
            names[0],
            "not in the code snapshot, as they look like secrets: "
            f"{format_short_list(names, _SHOWN)} (code.secrets=[{names[0]}] takes it anyway)",
        )


def narrow_to_runs(prepared: Prepared, kept: Sequence[int], context: Context) -> Prepared:
    """Return the launch with only these runs (indices), under the same id."""
    before = prepared.plan
    points = tuple(prepared.points[index] for index in kept)
    plan = _build_launch_plan(
        points,
        before.arguments,
        context,
        prepared.templates,
        identity=LaunchIdentity(id=before.id, created_at=before.created_at),
    )
    scripts = {job.index: render_batch_script(plan, job, prepared.templates) for job in plan.jobs}
    plan = replace(plan, swept=before.swept)
    return replace(prepared, plan=plan, scripts=scripts, points=points)


def write_launch_folder(prepared: Prepared, context: Context) -> Launch:
    """Write the launch folder and read it back; raises UsageError if it cannot be written."""
    facts, shared = pack_for_launch(prepared.plan, context)
    environment = {**(prepared.environment or capture_environment(context.environ)), **facts}
    with context.show_progress("freezing", quiet=prepared.quiet) as tell:
        write_frozen_launch(
            prepared.plan,
            scripts=prepared.scripts,
            snapshot=prepared.snapshot,
            environment=environment,
            files={**prepared.files, **shared},
            tell=tell,
        )
    return load_launch(Path(prepared.plan.folder))


def _build_launch_plan(
    points: Sequence[SweepPoint],
    words: tuple[str, ...],
    context: Context,
    templates: Sequence[Path],
    *,
    identity: LaunchIdentity | None = None,
) -> LaunchPlan:
    if not points:
        raise ConfigError("the sweep has no points", hint="an axis matched nothing")
    settings = points[0].settings
    if identity is None:
        at = context.now()
        name = build_launch_id(choose_launch_name(settings), created_at=at, token=context.token())
        identity = LaunchIdentity(id=name, created_at=at)
    plan = plan_sweep_points(
        points,
        identity,
        folder=_resolve_output_dir(settings, context) / identity.id,
        words=words,
        python=choose_launch_python(points[0], _resolve_output_dir(settings, context), context),
        context=context,
    )
    return exclude_bad_nodes(plan, lambda planned, job: render_batch_script(planned, job, templates), context)


def plan_sweep_points(
    points: Sequence[SweepPoint],
    identity: LaunchIdentity,
    *,
    folder: Path,
    words: Sequence[str],
    python: str,
    context: Context,
) -> LaunchPlan:
    """Plan these points within the limits of the cluster; in shared jobs the longest runs go first.

    `words` are the command line as typed. Raises ConfigError.
    """
    plan = build_launch_plan(
        points,
        identity=identity,
        folder=str(folder),
        arguments=mask_command_line(
            words, {text for point in points for text in point.secrets.secret_values}
        ),
        python=python,
        limits=_ask_submit_limits(points, context),
    )
    plan = replace(plan, containers=find_containers(plan, context))
    if not do_runs_share_jobs(points[0].settings):
        return plan
    wanted = {run.signature for run in plan.runs}
    return sort_plan_longest_first(
        plan, find_durations_by_signature(Path(plan.folder).parent, slugify_name(plan.name), wanted)
    )


def _ask_submit_limits(points: Sequence[SweepPoint], context: Context) -> SubmitLimits:
    """Return the limits of the cluster, as far as known; for a single run Slurm is not asked."""
    settings = points[0].settings
    if len(points) == 1 or settings.cluster.kind is not ClusterKind.slurm:
        return NO_LIMITS
    return ask_limits_for_jobs(
        build_resource_spec(settings), _build_slurm_commands(settings.cluster, context), context.heard
    )


def _build_slurm_commands(cluster: Cluster, context: Context) -> SlurmCommands:
    return SlurmCommands(bin_dir=cluster.bin_dir, environ=context.environ, timeout=PATIENCE)


def _resolve_output_dir(settings: LaunchConfig, context: Context) -> Path:
    if not settings.output_dir.strip():
        raise ConfigError(
            "output_dir is empty: launches would be written into the project itself",
            hint="name a folder, or leave the key out for ./outputs",
        )
    # Not resolved: a node may reach the folder by this path only.
    return Path(os.path.normpath(context.cwd / Path(settings.output_dir).expanduser()))


def _refuse_notify_file_in_code(notify: Notify, snapshot: collect.CodeSnapshot) -> None:
    if notify.file is None or snapshot.files is None:
        return
    file = Path(notify.file).expanduser().resolve()
    if any((snapshot.root / file_.path).resolve() == file for file_ in snapshot.files):
        raise ConfigError(
            f"notify.file is {notify.file!r}, which would be copied into the launch folder with your code",
            hint="keep it outside the project: ~/.config/hpckit/notify",
        )
