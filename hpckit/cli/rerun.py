"""`hpckit rerun`: one run anew, in a launch of its own, with the configuration it was frozen with.

Responsible for where its code is from (today's, or with --exact what was frozen) and for telling
what of the environment is not what it was; it must not compose anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hpckit.cli.context import Context, add_json, add_output_dir, add_reference, output_dir
from hpckit.cli.launch import may_start, print_scripts, say_started, start
from hpckit.cli.prepare import Prepared
from hpckit.cli.rerender import templates_of
from hpckit.errors import UsageError
from hpckit.model.ids import launch_id
from hpckit.model.launch import LaunchConfig
from hpckit.model.plan import SweepPoint
from hpckit.planning.plan import LaunchIdentity, make_plan
from hpckit.record.launches import Launch, load_settings
from hpckit.record.lookup import Selection, find
from hpckit.record.secret_variables import read_secrets
from hpckit.record.snapshot import collect
from hpckit.record.snapshot.environment import capture_of, differences
from hpckit.record.snapshot.git import Git
from hpckit.record.snapshot.identity import code_identity, frozen_identity
from hpckit.record.snapshot.restore import restore
from hpckit.record.store import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What a run is started anew from: its code in words, where templates are, and the Python."""

    snapshot: collect.CodeSnapshot
    words: str
    folders: tuple[Path, ...] | None
    python: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `rerun` understands."""
    add_reference(parser)
    parser.add_argument(
        "--exact",
        action="store_true",
        help="with the code and the Python it was frozen with, not today's",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the batch script, and leave nothing behind"
    )
    parser.add_argument(
        "--no-check", action="store_true", help="do not look beforehand whether it can run"
    )
    parser.add_argument(
        "--wait", action="store_true", help="wait for the end: exit code 1 unless it completed"
    )
    add_json(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Launch a run anew, and say what of code and environment is not what it was."""
    selection = find(arguments.reference, output_dir(arguments, context), cwd=context.cwd)
    launch, index = selection.launch, _index(selection)
    settings, config = load_settings(launch, index)
    with TemporaryDirectory(prefix="hpckit-") as scratch:
        source = (
            _exact(launch, settings, Path(scratch), context)
            if arguments.exact
            else _today(launch, settings, context)
        )
        head = launch.runs[index]
        point = SweepPoint(
            overrides=head.overrides,
            config=config,
            settings=settings,
            secrets=read_secrets(launch.paths, index, settings),
        )
        prepared = _prepared(launch, point, source, arguments, context)
        told = _tell(launch, prepared, source, context)
        more = {"rerun_of": head.id, "exact": arguments.exact, **told}
        if arguments.dry_run:
            print_scripts(prepared, context, as_json=arguments.json, more=more)
            return 0
        if not arguments.no_check and not may_start(prepared, context):
            return 2
        started = start(prepared, context)
    say_started(started, context, as_json=arguments.json, more=more)
    if not arguments.wait:
        return 0
    from hpckit.cli.wait import wait  # noqa: PLC0415  # only where somebody waits

    return wait(started.launch, context, quiet=arguments.json)


def _index(selection: Selection) -> int:
    launch = selection.launch
    if selection.index is not None:
        return selection.index
    if len(launch.runs) > 1:
        raise UsageError(
            f"{launch.id} has {len(launch.runs)} runs; rerun starts one of them anew",
            hint=f"name it, such as {launch.runs[0].id}; `hpckit results {launch.id}` lists them",
        )
    return 0


def _exact(launch: Launch, settings: LaunchConfig, scratch: Path, context: Context) -> _Source:
    # Slurm's nodes may have a Python that this host has not.
    if settings.cluster.python is None and not Path(launch.python).exists():
        raise UsageError(
            f"the Python that {launch.id} ran with is gone: {launch.python}",
            hint="bring that environment back, or leave --exact out to run with today's",
        )
    restored = restore(launch.paths, Git(context.environ), scratch)
    if restored.doubt is not None:
        context.note(f"warning: {restored.doubt}; the code may not be all that ran")
    return _Source(
        snapshot=restored.snapshot,
        words=f"as frozen ({restored.source})",
        folders=None,
        python=launch.python,
    )


def _today(launch: Launch, settings: LaunchConfig, context: Context) -> _Source:
    here = Path(launch.code.working_dir)
    project = Path(launch.code.project)
    if here.is_relative_to(launch.paths.code):
        here = project / here.relative_to(launch.paths.code)
    if not here.is_dir():
        raise UsageError(
            f"the project of {launch.id} is gone: {here}",
            hint="bring it back to its place, or take what was frozen: --exact",
        )
    snapshot = collect.collect(
        settings.code, cwd=here, output_dir=launch.folder.parent, git=Git(context.environ)
    )
    then, now = frozen_identity(launch.paths), code_identity(snapshot)
    same = "the same as it was" if then is not None and then == now else "not what it was"
    same = "and whether it is what it was is not known" if None in (then, now) else f"it is {same}"
    return _Source(
        snapshot=snapshot,
        words=f"today's, of {snapshot.root}: {same} (--exact takes what was frozen)",
        folders=(here,),
        python=settings.cluster.python or sys.executable,
    )


def _prepared(
    launch: Launch,
    point: SweepPoint,
    source: _Source,
    arguments: argparse.Namespace,
    context: Context,
) -> Prepared:
    from hpckit.slurm.script import render  # noqa: PLC0415  # slow to import: Jinja2

    created_at = context.now()
    name = launch_id(launch.name, created_at=created_at, token=context.token())
    plan = make_plan(
        [point],
        identity=LaunchIdentity(id=name, created_at=created_at),
        folder=str(launch.folder.parent / name),
        arguments=tuple(arguments.words),
        python=source.python,
    )
    templates = templates_of(launch, context, source.folders)
    # That of cluster.python is the nodes': as at the first launch, the one that launches is told.
    python = sys.executable if point.settings.cluster.python else source.python
    return Prepared(
        plan=plan,
        scripts={job.index: render(plan, job, templates) for job in plan.jobs},
        snapshot=source.snapshot,
        points=(point,),
        quiet=True,
        environment=capture_of(python, context.environ),
    )


def _tell(
    launch: Launch, prepared: Prepared, source: _Source, context: Context
) -> Mapping[str, object]:
    """Say where the code is from and what differs, and return that for programs."""
    context.note(f"code: {source.words}")
    found = _differences(launch, prepared)
    for line in found or ():
        context.note(f"environment: {line}")
    if not found:
        known = "nothing differs" if found is not None else "what differs cannot be told"
        context.note(f"environment: {known}")
    return {"code": source.words, "differences": found}


def _differences(launch: Launch, prepared: Prepared) -> tuple[str, ...] | None:
    """Return what of the environment is not what it was; None where nobody can tell."""
    try:
        then = read_json(launch.paths.environment)
    except (OSError, ValueError):
        return None
    if prepared.environment is None or not isinstance(then, dict):
        return None
    return differences(then, prepared.environment)
