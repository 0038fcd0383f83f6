"""Starts runs of a launch again in a new launch, with their frozen configurations."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hpckit.config.command import build_command_override
from hpckit.config.recomposed import recompose_point_with_overrides
from hpckit.config.request import PRIMARY, ComposeRequest
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.counted import format_short_list
from hpckit.model.ids import build_launch_id
from hpckit.model.plain import iterate_leaf_values
from hpckit.model.plan import SweepPoint
from hpckit.model.stages import add_prerequisite_runs
from hpckit.operations.frozen_script import find_launch_option, find_template_folders
from hpckit.operations.launch_features import find_changed_files, freeze_feature_files
from hpckit.operations.prepare import (
    Prepared,
    add_outside_code_checksums,
    plan_sweep_points,
    take_code_snapshot,
)
from hpckit.operations.resumable import refuse_missing_installation
from hpckit.planning.plan import LaunchIdentity
from hpckit.record.launches import Launch, load_run_settings
from hpckit.record.secret_variables import read_secrets
from hpckit.record.snapshot import collect
from hpckit.record.snapshot.environment import (
    capture_python_environment,
    format_environment_change,
    list_environment_differences,
)
from hpckit.record.snapshot.git import Git
from hpckit.record.snapshot.identity import compute_code_identity, read_frozen_identity
from hpckit.record.snapshot.outside import (
    format_changed_code_warning,
    list_changed_outside_code_paths,
    read_outside_code_checksums,
)
from hpckit.record.snapshot.restore import restore_frozen_code
from hpckit.record.store import read_json
from hpckit.report.selection import parse_overrides
from hpckit.slurm.script import render_batch_script
from hpckit.values import replace

_MAKING = ("--config-dir", "--config-name")
"""Options that say which configuration a launch was made from."""

_SHOWN = 3


_Source = tuple[collect.CodeSnapshot, str, tuple[Path, ...] | None, str]
"""Source of a rerun: the code, also in words, the folders for templates, and the Python."""


@contextmanager
def prepare_rerun(
    launch: Launch,
    indices: Sequence[int],
    words: Sequence[str],
    context: Context,
    *,
    exact: bool,
    overrides: Sequence[str] = (),
) -> Iterator[tuple[Prepared, str, tuple[str, ...] | None]]:
    """Give a rerun, where its code is from, and what changed in the environment, None if unknown.

    The code may be in a temporary folder that exists only in the context. `overrides`, and a command after
    `--` in the `words`, change the frozen configurations. With `exact`, code and Python are the frozen ones,
    not today's: they are the same for all runs of a launch. Writes no launch. Raises UsageError.
    """
    for index in indices:
        before = [other for other in add_prerequisite_runs(launch.stages, (index,)) if other != index]
        earlier = sorted({*before} & {*indices})
        if earlier:
            raise UsageError(
                f"run {index} of {launch.id} follows run {earlier[0]}, and runs of a rerun do not "
                "wait for each other",
                hint="rerun runs of one stage, resume the launch, or launch the experiment again",
            )
    points = [_load_sweep_point(launch, index, exact=exact) for index in indices]
    if command := words[words.index("--") + 1 :] if "--" in words else ():
        overrides = (*overrides, build_command_override(command))
    if overrides:
        made_by = [f"{option}={said}" for option in _MAKING if (said := find_launch_option(launch, option))]
        words = [*words, *made_by]
        request = _rebuild_compose_request(launch, context)
        points = [recompose_point_with_overrides(point, overrides, request) for point in points]
        _tell_which_overrides_still_apply(points, overrides, launch.id, context)
    with TemporaryDirectory(prefix="hpckit-") as scratch:
        source = (
            _restore_frozen_source(launch, points, Path(scratch), context)
            if exact
            else _snapshot_current_code(launch, points, context)
        )
        prepared = _prepare_rerun_launch(launch, points, source, words, context)
        runs = [(point.settings, point.config) for point in points if exact]
        if changed := find_changed_files(launch.paths, runs, prepared.files):
            raise UsageError(
                f"{format_short_list(changed, _SHOWN)} changed since {launch.id} was frozen",
                hint="bring back what it was, or rerun without --exact",
            )
        yield prepared, source[1], _find_environment_changes(launch, prepared)


def _tell_which_overrides_still_apply(
    points: Iterable[SweepPoint], words: Sequence[str], launch: str, context: Context
) -> None:
    """Say which words of the launch hold below a section that a rerun chooses or sets."""
    given = parse_overrides(words)
    # The keys of a mapping are set one by one, after earlier words.
    chosen = (key for key, value in given.items() if not value.startswith("{"))
    places = tuple(f"{key.partition('@')[2] or key}.".replace("/", ".") for key in chosen)
    held: dict[str, str] = {}
    for point in points:
        there = [f"{leaf}." for leaf, _ in iterate_leaf_values(point.config)]
        for key, value in parse_overrides(point.overrides).items():
            place = f"{key.replace('/', '.')}."
            below = key not in given and place.startswith(places)
            if below and any(leaf.startswith(place) for leaf in there):
                held[f"{key}={value}"] = key
    if held:
        again = f"rerun with {next(iter(held.values()))}=… to change that"
        context.note(f"words of {launch} still apply: {format_short_list([*held], _SHOWN)}; {again}")


def _load_sweep_point(launch: Launch, index: int, *, exact: bool) -> SweepPoint:
    settings, config = load_run_settings(launch, index)
    if exact and (image := launch.find_container(index)) is not None:  # another one is refused
        config = {**config, "container": {**config["container"], "digest": image.digest}}
        settings = replace(settings, container=replace(settings.container, digest=image.digest))
    return SweepPoint(
        overrides=launch.overrides(index),
        config=config,
        settings=settings,
        secrets=read_secrets(launch.paths, index, settings),
    )


def _rebuild_compose_request(launch: Launch, context: Context) -> ComposeRequest:
    folder = find_launch_option(launch, "--config-dir")
    here = Path(launch.code.working_dir)
    return ComposeRequest(
        config_dir=Path(folder) if folder else None,
        config_name=find_launch_option(launch, "--config-name") or PRIMARY,
        environ=context.environ,
        cwd=here if here.is_dir() else Path(launch.code.project),
        moment=launch.created_at,
    )


def _restore_frozen_source(
    launch: Launch, points: Sequence[SweepPoint], scratch: Path, context: Context
) -> _Source:
    refuse_missing_installation(launch, context)
    snapshot, origin, doubt = restore_frozen_code(launch.paths, Git(context.environ), scratch)
    if doubt is not None:
        context.note(f"warning: {doubt}; the code may not be all that ran")
    snapshot = add_outside_code_checksums(snapshot, points, context)
    other = list_changed_outside_code_paths({*snapshot.outside}, read_outside_code_checksums(launch.paths))
    if other:
        context.note(f"warning: {format_changed_code_warning(other)}; the runs take it as it is now")
    return snapshot, f"as frozen ({origin})", None, launch.python


def _snapshot_current_code(launch: Launch, points: Sequence[SweepPoint], context: Context) -> _Source:
    here = launch.code.original_working_dir
    if not here.is_dir():
        raise UsageError(
            f"the project of {launch.id} is gone: {here}",
            hint="bring it back to its place, or use the frozen code: --exact",
        )
    snapshot = take_code_snapshot(points, launch.arguments, here, launch.folder.parent, context)
    then, now = read_frozen_identity(launch.paths), compute_code_identity(snapshot)
    alike = then == now and not list_changed_outside_code_paths(
        {*snapshot.outside}, read_outside_code_checksums(launch.paths)
    )
    same = "the same as it was" if alike else "not the same as it was"
    same = "and whether it has changed is not known" if None in (then, now) else f"it is {same}"
    words = f"today's, of {snapshot.root}: {same} (--exact takes what was frozen)"
    return snapshot, words, (here,), points[0].settings.cluster.python or sys.executable


def _prepare_rerun_launch(
    launch: Launch, points: Sequence[SweepPoint], source: _Source, words: Sequence[str], context: Context
) -> Prepared:
    snapshot, _, folders, python = source
    created_at = context.now()
    name = build_launch_id(launch.name, created_at=created_at, token=context.token())
    plan = plan_sweep_points(
        points,
        LaunchIdentity(id=name, created_at=created_at),
        folder=launch.folder.parent / name,
        words=words,
        python=python,
        context=context,
    )
    templates = find_template_folders(launch, context, folders)
    # cluster.python is on the nodes: as at the first launch, capture this process's environment.
    python = sys.executable if points[0].settings.cluster.python else python
    return Prepared(
        plan=replace(plan, swept=launch.swept),
        scripts={job.index: render_batch_script(plan, job, templates) for job in plan.jobs},
        snapshot=snapshot,
        points=tuple(points),
        templates=templates,
        files=freeze_feature_files(
            points, Path(plan.folder), replace(context, cwd=launch.code.original_working_dir)
        ),
        quiet=True,
        environment=capture_python_environment(python, context.environ),
    )


def _find_environment_changes(launch: Launch, prepared: Prepared) -> tuple[str, ...] | None:
    try:
        then = read_json(launch.paths.environment)
    except (OSError, ValueError):
        return None
    if prepared.environment is None or not isinstance(then, dict):
        return None
    differences = list_environment_differences(then, prepared.environment)
    return tuple(format_environment_change(*difference) for difference in differences)
