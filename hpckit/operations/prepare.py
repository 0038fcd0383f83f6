"""Composes, plans and renders a launch and takes its code snapshot; writes and submits nothing.

A dry run is exactly `prepare`; `write` freezes the result.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hpckit.config.compose import compose
from hpckit.config.request import ComposeRequest, template_folders
from hpckit.config.slips import input_slips
from hpckit.context import Context
from hpckit.errors import ConfigError, SchedulerError
from hpckit.model.cluster.site import NO_LIMITS, SubmitLimits
from hpckit.model.counted import counted, listed
from hpckit.model.finding import Finding, warning
from hpckit.model.ids import launch_id, slug
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig
from hpckit.model.plan import LaunchPlan, SweepPoint
from hpckit.model.settings import Notify
from hpckit.operations.avoid_nodes import without_bad_nodes
from hpckit.operations.cluster_limits import limits_for
from hpckit.operations.notices.addresses import check_commands, find_destinations
from hpckit.operations.output_file import is_output_file
from hpckit.patterns import lazy_pattern
from hpckit.planning.jobs.shared_jobs import LEARNING, in_order, shares_jobs
from hpckit.planning.notices import Destination
from hpckit.planning.plan import LaunchIdentity, launch_name, make_plan, resource_spec
from hpckit.planning.secrecy import masked_words
from hpckit.record.durations import durations
from hpckit.record.freeze import freeze
from hpckit.record.launches import Launch, load_launch
from hpckit.record.snapshot import collect
from hpckit.record.snapshot.environment import capture_environment
from hpckit.record.snapshot.git import Git
from hpckit.record.snapshot.outside import outside_code
from hpckit.record.snapshot.uncounted import uncounted_files
from hpckit.report.results import differing_keys
from hpckit.report.selection import assigned
from hpckit.slurm.clusters import refuse_other_clusters
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import cluster_nodes
from hpckit.slurm.script import AUTO_RESUME, SATELLITE, render_script
from hpckit.slurm.site_query import PATIENCE, ask_ahead
from hpckit.values import dataclass, replace

_GPUS = "cluster.gpus_per_node"
_SHOWN = 8
_TEMPLATE = lazy_pattern(r"sbatch|\.j2\Z|\.jinja2?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A launch that could be written: `scripts` holds the text of each job index.

    `templates` are the folders its scripts are rendered from, in order of priority. `environment`
    is that of the launch's Python if it is not the current one. `destinations` are those of its
    notices. `warnings` have been said. With `quiet` no progress is drawn.
    """

    plan: LaunchPlan
    scripts: Mapping[int, str]
    snapshot: collect.CodeSnapshot
    points: tuple[SweepPoint, ...]
    templates: Sequence[Path]
    environment: Mapping[str, object] | None = None
    destinations: tuple[Destination, ...] = ()
    warnings: tuple[Finding, ...] = ()
    quiet: bool = False


def prepare(
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
    with context.progress("composing", quiet=quiet) as tell:
        points = compose(replace(request, tell=tell))
        gpus = _gpus_of_nodes(request, points, context)
        if gpus:
            word = f"{_GPUS}={gpus}"
            again = replace(request, overrides=(word, *request.overrides), tell=tell)
            # The record has no word that the user has not typed.
            points = tuple(
                replace(point, overrides=tuple(typed for typed in point.overrides if typed != word))
                for point in compose(again)
            )
    cluster = points[0].settings.cluster if points else None
    if checked and cluster is not None and cluster.kind is ClusterKind.slurm:
        ask_ahead(_commands(cluster, context), context.heard)
    warnings = _warn(input_slips(request, points), context)
    templates = template_folders(request)
    swept = differing_keys([assigned(point.overrides) for point in points])
    plan = replace(_plan(points, tuple(words), context, templates), swept=swept)
    if plan.cluster.kind is not ClusterKind.slurm:
        templates = templates[-1:]  # nothing reads the scripts of a launch on this machine
    _check_search(plan, context)
    if plan.cluster.kind is ClusterKind.slurm:
        refuse_other_clusters(context.environ)
    scripts = {job.index: render_script(plan, job, templates) for job in plan.jobs}
    outputs = Path(plan.folder).parent
    snapshot = take_snapshot(points, request.overrides, context.cwd, outputs, context)
    found = (*_unused_templates(templates[:-1], plan), *_left_out(snapshot.left_out))
    warnings += _warn(found, context)
    _refuse_in_snapshot(points[0].settings.notify, snapshot)
    return Prepared(
        plan=plan,
        scripts=scripts,
        snapshot=snapshot,
        points=points,
        templates=templates,
        warnings=warnings,
        quiet=quiet,
    )


def _warn(found: Iterable[Finding], context: Context) -> tuple[Finding, ...]:
    """Say these warnings at once, as what follows may be refused; return them."""
    warnings = tuple(found)
    for finding in warnings:
        context.note(f"warning: {finding.message}")
    return warnings


def with_destinations(prepared: Prepared, context: Context) -> Prepared:
    """Return the launch with the places its notices go to; raises ConfigError."""
    notify = prepared.points[0].settings.notify
    found = find_destinations(notify, context.environ) if notify.events else ()
    check_commands(notify, found, context.environ)
    return replace(prepared, destinations=found)


def _gpus_of_nodes(
    request: ComposeRequest, points: Sequence[SweepPoint], context: Context
) -> int | None:
    """Return what Slurm says a node has where a group such as one_node needs it, and none says it.

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
            f"{typed[-1]} says that nodes have no GPUs, and in groups such as one_node there is a "
            "process for each of them: resources.tasks_per_node is 0",
            hint=f"leave {_GPUS} out, and Slurm is asked; or state what the nodes have: {_GPUS}=N; "
            "or choose resources=cpu",
        )
    cluster = asking[0].cluster
    partitions = {settings.resources.partition or settings.cluster.partition for settings in asking}
    if len(partitions) > 1 or any(config.cluster != cluster for config in asking):
        return None
    names = (partitions.pop() or context.environ.get("SBATCH_PARTITION", "")).split(",")
    try:
        nodes = cluster_nodes(_commands(cluster, context))
    except SchedulerError:
        return None
    there = [
        node.has
        for node in nodes
        if node.has.partition in names or (names == [""] and node.default)
    ]
    counts = {has.gres.get("gpu", 0) for has in there} - {0}
    if len(counts) != 1:
        return None
    context.note(f"Slurm says that its nodes have {counted(min(counts), 'GPU')}")
    return counts.pop()


def take_snapshot(
    points: Sequence[SweepPoint],
    words: Sequence[str],
    cwd: Path,
    output_dir: Path,
    context: Context,
) -> collect.CodeSnapshot:
    """Return the project around a folder as it is now; `words` made the points.

    With what of it does not count as code, and what the points take from elsewhere.
    """
    settings, git = points[0].settings.code, Git(context.environ)
    found = collect.collect(settings, cwd=cwd, output_dir=output_dir, git=git)
    uncounted = uncounted_files(found, output_dir, is_output_file)
    files = (word.partition("sweep.points=")[2].strip("'\"") for word in words)
    points_ = [found.root / found.working_dir / Path(file).expanduser() for file in files if file]
    values = tuple(os.path.relpath(file, found.root) for file in points_)
    found = replace(found, uncounted=uncounted.union(values), points=values)
    return with_outside(found, points, context)


def with_outside(
    snapshot: collect.CodeSnapshot, points: Sequence[SweepPoint], context: Context
) -> collect.CodeSnapshot:
    """Return a snapshot with what is there now of the code that points take from elsewhere."""
    taken = (point.settings for point in points)
    return replace(snapshot, outside=outside_code(taken, snapshot, context.environ))


def _unused_templates(folders: Sequence[Path], plan: LaunchPlan) -> Iterator[Finding]:
    """Warn of folders of templates that have none which is used."""
    used = (plan.cluster.template, AUTO_RESUME, SATELLITE)
    for folder in folders:
        found = sorted(path.name for path in folder.iterdir() if _TEMPLATE.search(path.name))
        if found and not any((folder / name).is_file() for name in used):
            yield warning(
                "cluster.template",
                plan.cluster.template,
                f"nothing of {folder} is used: it has no file {plan.cluster.template} "
                f"(cluster.template), but {', '.join(found[:_SHOWN])}",
            )


def _check_search(plan: LaunchPlan, context: Context) -> None:
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


def _left_out(names: Sequence[str]) -> Iterator[Finding]:
    if names:
        yield warning(
            "code.secrets",
            names[0],
            f"not in the code snapshot, as they look like secrets: {listed(names, _SHOWN)}"
            f" (code.secrets=[{names[0]}] takes it anyway)",
        )


def narrowed(prepared: Prepared, kept: Sequence[int], context: Context) -> Prepared:
    """Return the launch with only these runs (indices), under the same id."""
    before = prepared.plan
    points = tuple(prepared.points[index] for index in kept)
    plan = _plan(
        points,
        before.arguments,
        context,
        prepared.templates,
        identity=LaunchIdentity(id=before.id, created_at=before.created_at),
    )
    scripts = {job.index: render_script(plan, job, prepared.templates) for job in plan.jobs}
    plan = replace(plan, swept=before.swept)
    return replace(prepared, plan=plan, scripts=scripts, points=points)


def write(prepared: Prepared, context: Context) -> Launch:
    """Write the launch folder and read it back; raises UsageError if it cannot be written."""
    with context.progress("freezing", quiet=prepared.quiet) as tell:
        freeze(
            prepared.plan,
            scripts=prepared.scripts,
            snapshot=prepared.snapshot,
            environment=prepared.environment or capture_environment(context.environ),
            tell=tell,
        )
    return load_launch(Path(prepared.plan.folder))


def _plan(
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
        name = launch_id(launch_name(settings), created_at=at, token=context.token())
        identity = LaunchIdentity(id=name, created_at=at)
    plan = plan_points(
        points,
        identity,
        folder=_output_dir(settings, context) / identity.id,
        words=words,
        python=settings.cluster.python or sys.executable,
        context=context,
    )
    return without_bad_nodes(
        plan, lambda planned, job: render_script(planned, job, templates), context
    )


def plan_points(
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
    plan = make_plan(
        points,
        identity=identity,
        folder=str(folder),
        arguments=masked_words(words, {text for point in points for text in point.secrets.texts}),
        python=python,
        limits=_limits(points, context),
    )
    if not shares_jobs(points[0].settings):
        return plan
    wanted = {run.signature for run in plan.runs}
    return in_order(plan, durations(Path(plan.folder).parent, slug(plan.name), wanted))


def _limits(points: Sequence[SweepPoint], context: Context) -> SubmitLimits:
    """Return the limits of the cluster, as far as known; for a single run Slurm is not asked."""
    settings = points[0].settings
    if len(points) == 1 or settings.cluster.kind is not ClusterKind.slurm:
        return NO_LIMITS
    return limits_for(resource_spec(settings), _commands(settings.cluster, context), context.heard)


def _commands(cluster: Cluster, context: Context) -> SlurmCommands:
    return SlurmCommands(bin_dir=cluster.bin_dir, environ=context.environ, timeout=PATIENCE)


def _output_dir(settings: LaunchConfig, context: Context) -> Path:
    if not settings.output_dir.strip():
        raise ConfigError(
            "output_dir is empty: launches would lie in the project itself",
            hint="name a folder, or leave the key out for ./outputs",
        )
    # Not resolved: a node may reach the folder by this path only.
    return Path(os.path.normpath(context.cwd / Path(settings.output_dir).expanduser()))


def _refuse_in_snapshot(notify: Notify, snapshot: collect.CodeSnapshot) -> None:
    """Raise ConfigError if the private file would be copied with the code."""
    if notify.file is None or snapshot.files is None:
        return
    file = Path(notify.file).expanduser().resolve()
    if any((snapshot.root / file_.path).resolve() == file for file_ in snapshot.files):
        raise ConfigError(
            f"notify.file is {notify.file!r}, which would be copied into the launch folder with "
            "your code",
            hint="keep it outside the project: ~/.config/hpckit/notify",
        )
