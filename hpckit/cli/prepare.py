"""From the words of `launch` and `render` to what would be written: plan, scripts, snapshot.

Responsible for wiring composing, planning and rendering; it must not write or submit anything, so
that a dry run is this and nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpckit.cli.context import Context, add_json
from hpckit.cli.progress import progress
from hpckit.cli.searching import check_search
from hpckit.errors import ConfigError
from hpckit.model.ids import launch_id, slug
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.limits import NO_LIMITS, SubmitLimits
from hpckit.model.plan import LaunchPlan, SweepPoint
from hpckit.planning.jobs.packing import in_order, is_packed
from hpckit.planning.masking import exposed_keys, masked_words
from hpckit.planning.plan import LaunchIdentity, launch_name, make_plan, resource_spec
from hpckit.record.freeze import freeze
from hpckit.record.launches import Launch, load_launch
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot import collect
from hpckit.record.snapshot.environment import capture
from hpckit.record.snapshot.git import Git

if TYPE_CHECKING:
    from hpckit.config.request import ComposeRequest


_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A launch that could be written: `scripts` holds the text of each job index.

    `environment` is that of its Python, where that is not the one that runs this. With `quiet`
    nobody watches how far it is.
    """

    plan: LaunchPlan
    scripts: Mapping[int, str]
    snapshot: collect.CodeSnapshot
    points: tuple[SweepPoint, ...] = ()
    environment: Mapping[str, object] | None = None
    quiet: bool = False


def add_composing(parser: argparse.ArgumentParser) -> None:
    """Add what says which configuration is meant."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help="Hydra's overrides: key=value, group=choice, +key=value, ~key",
    )
    parser.add_argument("-m", "--multirun", action="store_true", help="sweep: x=1,2 y=range(0,3)")
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        type=Path,
        help="your own conf/ (default: $HPCKIT_CONFIG_DIR, else ./conf where it exists)",
    )
    parser.add_argument(
        "--config-name", metavar="NAME", default="config", help="the primary configuration"
    )
    parser.add_argument(
        "--cfg",
        nargs="?",
        const="",
        metavar="KEY",
        help="print the composed configuration, or the part under KEY, and do nothing else",
    )
    parser.add_argument(
        "--info",
        nargs="?",
        const="",
        metavar="WHAT",
        help="print where configuration comes from (searchpath, groups) and do nothing else",
    )
    add_json(parser)


def show_instead(arguments: argparse.Namespace, context: Context) -> bool:
    """Print what `--cfg` or `--info` ask for; returns whether they do."""
    if arguments.cfg is None and arguments.info is None:
        return False
    # Imported here: Hydra is slow to import, and `--help` does without it.
    from hpckit.config.show import show_config, show_info  # noqa: PLC0415

    request = compose_request(arguments, context)
    if arguments.cfg is not None:
        context.stdout.write(show_config(request, package=_topic(arguments.cfg)))
    if arguments.info is not None:
        context.stdout.write(show_info(request, _topic(arguments.info) or "all"))
    return True


def compose_request(arguments: argparse.Namespace, context: Context) -> ComposeRequest:
    """Return the request for these words."""
    from hpckit.config.request import ComposeRequest  # noqa: PLC0415  # lazy: as above

    swallowed = [word for word in (arguments.cfg, arguments.info) if _is_override(word)]
    return ComposeRequest(
        overrides=(*swallowed, *arguments.overrides),
        config_dir=arguments.config_dir,
        config_name=arguments.config_name,
        multirun=arguments.multirun,
        environ=context.environ,
        cwd=context.cwd,
    )


def prepare(arguments: argparse.Namespace, context: Context) -> Prepared:
    """Compose, plan and render; raises UsageError of every kind. Writes nothing."""
    from hpckit.config.compose import compose  # noqa: PLC0415  # lazy: as above
    from hpckit.config.number_slips import texts_for_numbers  # noqa: PLC0415
    from hpckit.config.search_path import template_folders  # noqa: PLC0415
    from hpckit.config.typos import slips  # noqa: PLC0415
    from hpckit.slurm.clusters import refuse_other_clusters  # noqa: PLC0415
    from hpckit.slurm.script import render  # noqa: PLC0415

    request = compose_request(arguments, context)
    with progress("composing", context, quiet=arguments.json) as tell:
        points = compose(replace(request, tell=tell))
    for key, meant in sorted(slips(points[0].config, request.overrides)):
        context.note(
            f"warning: nothing of hpckit reads {key}, which your files set; meant {meant}?"
        )
    for word, number in texts_for_numbers(request):
        context.note(f"warning: {word} is a text; without it the value is the number {number:g}")
    for key in exposed_keys(points[0]):
        context.note(f"warning: {key} has a copy of a secret variable, which is not masked there")
    plan = _plan(points, tuple(arguments.words), context)
    check_search(plan, context)
    if plan.cluster.kind is ClusterKind.slurm:
        refuse_other_clusters(context.environ)
    folders = template_folders(request)
    scripts = {job.index: render(plan, job, folders) for job in plan.jobs}
    snapshot = collect.collect(
        points[0].settings.code,
        cwd=context.cwd,
        output_dir=Path(plan.folder).parent,
        git=Git(context.environ),
    )
    _say_left_out(snapshot.left_out, context)
    return Prepared(
        plan=plan,
        scripts=scripts,
        snapshot=snapshot,
        points=points,
        quiet=arguments.json,
    )


def _say_left_out(names: Sequence[str], context: Context) -> None:
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        context.note(
            f"warning: not in the code snapshot, as they look like secrets: "
            f"{', '.join(names[:_SHOWN])}{more} (code.secrets=[{names[0]}] takes it all the same)"
        )


def narrowed(
    prepared: Prepared, kept: Sequence[int], arguments: argparse.Namespace, context: Context
) -> Prepared:
    """Return the launch with these of its runs (indices) only, under its own id."""
    from hpckit.config.search_path import template_folders  # noqa: PLC0415  # lazy: as above
    from hpckit.slurm.script import render  # noqa: PLC0415

    before = prepared.plan
    points = tuple(prepared.points[index] for index in kept)
    plan = _plan(
        points,
        before.arguments,
        context,
        identity=LaunchIdentity(id=before.id, created_at=before.created_at),
    )
    folders = template_folders(compose_request(arguments, context))
    scripts = {job.index: render(plan, job, folders) for job in plan.jobs}
    return replace(prepared, plan=plan, scripts=scripts, points=points)


def write(prepared: Prepared, context: Context) -> Launch:
    """Write the launch folder and read it back; raises UsageError where it cannot be written."""
    with progress("freezing", context, quiet=prepared.quiet) as tell:
        freeze(
            prepared.plan,
            scripts=prepared.scripts,
            snapshot=prepared.snapshot,
            environment=prepared.environment or capture(context.environ),
            tell=tell,
        )
    return load_launch(Path(prepared.plan.folder))


def launch_document(
    launch: Launch | LaunchPlan, jobs: Mapping[int, str], main_jobs: Sequence[str]
) -> dict[str, object]:
    """Return the object that `launch --json` prints; `jobs` names the Slurm job of a run."""
    runs = [
        {
            "run": run.id,
            "index": run.index,
            "overrides": run.overrides,
            "job": jobs.get(run.index),
            "stage": run.stage,
        }
        for run in launch.runs
    ]
    return {"launch": launch.id, "dir": str(launch.folder), "runs": runs, "jobs": list(main_jobs)}


def script_paths(launch: Launch | LaunchPlan) -> list[str]:
    """Return the rendered scripts' paths, by job."""
    paths = LaunchPaths(Path(launch.folder))
    return [str(paths.script(job.index)) for job in launch.jobs]


def script_documents(
    launch: Launch | LaunchPlan, scripts: Mapping[int, str]
) -> list[dict[str, str]]:
    """Return what `--dry-run --json` prints of scripts, by job index."""
    paths = LaunchPaths(Path(launch.folder))
    return [{"path": str(paths.script(index)), "text": text} for index, text in scripts.items()]


def _plan(
    points: Sequence[SweepPoint],
    words: tuple[str, ...],
    context: Context,
    *,
    identity: LaunchIdentity | None = None,
) -> LaunchPlan:
    if not points:
        raise ConfigError("the sweep has no points", hint="an axis matched nothing")
    settings = points[0].settings
    identity = identity or _new_identity(settings, context)
    plan = make_plan(
        points,
        identity=identity,
        folder=str(_output_dir(settings, context) / identity.id),
        arguments=masked_words(words, {text for one in points for text in one.secrets.texts}),
        python=settings.cluster.python or sys.executable,
        limits=_limits(points, context),
    )
    if not is_packed(settings):
        return plan
    from hpckit.record.durations import durations  # noqa: PLC0415  # few launches need it

    wanted = {run.signature for run in plan.runs}
    return in_order(plan, durations(Path(plan.folder).parent, slug(plan.name), wanted))


def _new_identity(settings: LaunchConfig, context: Context) -> LaunchIdentity:
    created_at = context.now()
    name = launch_id(launch_name(settings), created_at=created_at, token=context.token())
    return LaunchIdentity(id=name, created_at=created_at)


def _limits(points: Sequence[SweepPoint], context: Context) -> SubmitLimits:
    """Return what the cluster takes, as far as it says; for a single run nothing is asked."""
    settings = points[0].settings
    if len(points) == 1 or settings.cluster.kind is not ClusterKind.slurm:
        return NO_LIMITS
    from hpckit.cli.feeding import limits_for  # noqa: PLC0415  # only on Slurm
    from hpckit.slurm.commands import SlurmCommands  # noqa: PLC0415
    from hpckit.slurm.site_query import PATIENCE  # noqa: PLC0415

    commands = SlurmCommands(
        bin_dir=settings.cluster.bin_dir, environ=context.environ, timeout=PATIENCE
    )
    return limits_for(resource_spec(settings), commands, context.heard)


def _output_dir(settings: LaunchConfig, context: Context) -> Path:
    # Not resolved: a node may reach the folder by this very path only.
    return Path(os.path.normpath(context.cwd / Path(settings.output_dir).expanduser()))


def _is_override(word: str | None) -> bool:
    """Whether a word after `--cfg` is an override that argparse took for its value."""
    return word is not None and ("=" in word or word.startswith("~"))


def _topic(word: str) -> str:
    # `job` is how Hydra's own --cfg names the whole of it.
    return "" if _is_override(word) or word == "job" else word
