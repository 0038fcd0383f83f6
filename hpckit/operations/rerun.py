"""Starts runs of a launch again in a new launch, with their frozen configurations."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hpckit.config.command import command_override
from hpckit.config.recomposed import recomposed
from hpckit.config.request import PRIMARY, ComposeRequest
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.counted import listed
from hpckit.model.ids import launch_id
from hpckit.model.plain import leaves
from hpckit.model.plan import SweepPoint
from hpckit.model.stages import with_followed
from hpckit.operations.frozen_script import option_of, templates_of
from hpckit.operations.prepare import Prepared, plan_points, take_snapshot, with_outside
from hpckit.operations.resumable import require_installation
from hpckit.planning.plan import LaunchIdentity
from hpckit.record.launches import Launch, load_settings
from hpckit.record.secret_variables import read_secrets
from hpckit.record.snapshot import collect
from hpckit.record.snapshot.environment import capture_of, difference_words, environment_differences
from hpckit.record.snapshot.git import Git
from hpckit.record.snapshot.identity import code_identity, frozen_identity
from hpckit.record.snapshot.outside import differing, recorded_outside, unfrozen_words
from hpckit.record.snapshot.restore import restore
from hpckit.record.store import read_json
from hpckit.report.selection import assigned
from hpckit.slurm.script import render_script
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

    The code may be in a temporary folder that exists only in the context.
    `overrides`, and a command after `--` in the `words`, change the frozen configurations. With
    `exact`, code and Python are the frozen ones, not today's: they are the same for all runs of a
    launch. Writes no launch. Raises UsageError.
    """
    for index in indices:
        before = [other for other in with_followed(launch.stages, (index,)) if other != index]
        earlier = sorted({*before} & {*indices})
        if earlier:
            raise UsageError(
                f"run {index} of {launch.id} follows run {earlier[0]}, and runs of a rerun do not "
                "wait for each other",
                hint="rerun runs of one stage, resume the launch, or launch the experiment again",
            )
    points = [_point(launch, index) for index in indices]
    if command := words[words.index("--") + 1 :] if "--" in words else ():
        overrides = (*overrides, command_override(command))
    if overrides:
        made_by = [f"{option}={said}" for option in _MAKING if (said := option_of(launch, option))]
        words = [*words, *made_by]
        request = _request(launch, context)
        points = [recomposed(point, overrides, request) for point in points]
        _say_held(points, overrides, launch.id, context)
    with TemporaryDirectory(prefix="hpckit-") as scratch:
        source = (
            _exact(launch, points, Path(scratch), context)
            if exact
            else _today(launch, points, context)
        )
        prepared = _prepared(launch, points, source, words, context)
        yield prepared, source[1], _differences(launch, prepared)


def _say_held(
    points: Iterable[SweepPoint], words: Sequence[str], launch: str, context: Context
) -> None:
    """Say which words of the launch hold below a section that a rerun chooses or sets."""
    given = assigned(words)
    # The keys of a mapping are set one by one, after earlier words.
    chosen = (key for key, value in given.items() if not value.startswith("{"))
    places = tuple(f"{key.partition('@')[2] or key}.".replace("/", ".") for key in chosen)
    held: dict[str, str] = {}
    for point in points:
        there = [f"{leaf}." for leaf, _ in leaves(point.config)]
        for key, value in assigned(point.overrides).items():
            place = f"{key.replace('/', '.')}."
            below = key not in given and place.startswith(places)
            if below and any(leaf.startswith(place) for leaf in there):
                held[f"{key}={value}"] = key
    if held:
        again = f"rerun with {next(iter(held.values()))}=… to change that"
        context.note(f"words of {launch} still hold: {listed([*held], _SHOWN)}; {again}")


def _point(launch: Launch, index: int) -> SweepPoint:
    settings, config = load_settings(launch, index)
    return SweepPoint(
        overrides=launch.overrides(index),
        config=config,
        settings=settings,
        secrets=read_secrets(launch.paths, index, settings),
    )


def _request(launch: Launch, context: Context) -> ComposeRequest:
    """Return which files the launch was composed from, and when."""
    folder = option_of(launch, "--config-dir")
    here = Path(launch.code.working_dir)
    return ComposeRequest(
        config_dir=Path(folder) if folder else None,
        config_name=option_of(launch, "--config-name") or PRIMARY,
        environ=context.environ,
        cwd=here if here.is_dir() else Path(launch.code.project),
        moment=launch.created_at,
    )


def _exact(
    launch: Launch, points: Sequence[SweepPoint], scratch: Path, context: Context
) -> _Source:
    require_installation(launch, context)
    snapshot, origin, doubt = restore(launch.paths, Git(context.environ), scratch)
    if doubt is not None:
        context.note(f"warning: {doubt}; the code may not be all that ran")
    snapshot = with_outside(snapshot, points, context)
    other = differing({*snapshot.outside}, recorded_outside(launch.paths))
    if other:
        context.note(f"warning: {unfrozen_words(other)}; the runs take it as it is now")
    return snapshot, f"as frozen ({origin})", None, launch.python


def _today(launch: Launch, points: Sequence[SweepPoint], context: Context) -> _Source:
    here = launch.code.launched_in
    if not here.is_dir():
        raise UsageError(
            f"the project of {launch.id} is gone: {here}",
            hint="bring it back to its place, or take what was frozen: --exact",
        )
    snapshot = take_snapshot(points, launch.arguments, here, launch.folder.parent, context)
    then, now = frozen_identity(launch.paths), code_identity(snapshot)
    alike = then == now and not differing({*snapshot.outside}, recorded_outside(launch.paths))
    same = "the same as it was" if alike else "not what it was"
    same = "and whether it is what it was is not known" if None in (then, now) else f"it is {same}"
    words = f"today's, of {snapshot.root}: {same} (--exact takes what was frozen)"
    return snapshot, words, (here,), points[0].settings.cluster.python or sys.executable


def _prepared(
    launch: Launch,
    points: Sequence[SweepPoint],
    source: _Source,
    words: Sequence[str],
    context: Context,
) -> Prepared:
    snapshot, _, folders, python = source
    created_at = context.now()
    name = launch_id(launch.name, created_at=created_at, token=context.token())
    plan = plan_points(
        points,
        LaunchIdentity(id=name, created_at=created_at),
        folder=launch.folder.parent / name,
        words=words,
        python=python,
        context=context,
    )
    templates = templates_of(launch, context, folders)
    # cluster.python is on the nodes: as at the first launch, capture this process's environment.
    python = sys.executable if points[0].settings.cluster.python else python
    return Prepared(
        plan=replace(plan, swept=launch.swept),
        scripts={job.index: render_script(plan, job, templates) for job in plan.jobs},
        snapshot=snapshot,
        points=tuple(points),
        templates=templates,
        quiet=True,
        environment=capture_of(python, context.environ),
    )


def _differences(launch: Launch, prepared: Prepared) -> tuple[str, ...] | None:
    """Return what has changed in the environment; None if that is unknown."""
    try:
        then = read_json(launch.paths.environment)
    except (OSError, ValueError):
        return None
    if prepared.environment is None or not isinstance(then, dict):
        return None
    differences = environment_differences(then, prepared.environment)
    return tuple(difference_words(*difference) for difference in differences)
