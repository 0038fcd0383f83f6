"""Where features take part in the launch of their runs: what they choose, freeze and pack for it.

Which function of a feature is called is said by its name in `hpckit.run_features`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.context import Context
from hpckit.model.finding import Finding
from hpckit.model.launch import LaunchConfig
from hpckit.model.node_setup import FrozenContainer
from hpckit.model.plan import LaunchPlan, SweepPoint
from hpckit.record.layout import LaunchPaths
from hpckit.run_features import describe_inputs, find_run_hooks
from hpckit.values import replace


def choose_launch_python(point: SweepPoint, outputs: Path, context: Context) -> str:
    """Return the Python of a launch; it may have to be built when it starts. Raises ConfigError.

    `choose_python(*, settings, config, outputs, cwd) -> str | None`: None if it is another's choice.
    """
    settings, cwd = point.settings, context.cwd
    hooks = find_run_hooks(settings, point.config, "choose_python")
    made = (choose(settings=settings, config=point.config, outputs=outputs, cwd=cwd) for choose in hooks)
    return next(filter(None, made), None) or settings.cluster.python or sys.executable


def find_containers(plan: LaunchPlan, context: Context) -> tuple[FrozenContainer, ...]:
    """Return the images of the runs, each with its digest; raises ConfigError."""
    found, runs = dict[str, FrozenContainer](), defaultdict[FrozenContainer, list[int]](list)
    for run in plan.runs:
        for find in find_run_hooks(run.settings, run.config, "find_container"):
            key = f"{run.settings.container} {run.settings.command is None}"
            if key not in found:
                output_dir = Path(plan.folder).parent
                found[key] = find(settings=run.settings, output_dir=output_dir, context=context)
            runs[found[key]].append(run.index)
    return tuple(replace(container, runs=tuple(indices)) for container, indices in runs.items())


def find_feature_problems(plan: LaunchPlan, context: Context) -> list[Finding]:
    """Return what features find wrong with the runs, as far as this machine can say; each thing once.

    `find_problems(*, plan, run, context) -> Iterator[Finding]`.
    """
    found = dict[Finding, None]()
    for run in plan.runs_to_check:
        for find in find_run_hooks(run.settings, run.config, "find_problems"):
            found |= dict.fromkeys(find(plan=plan, run=run, context=context))
    return list(found)


def freeze_feature_files(points: Sequence[SweepPoint], folder: Path, context: Context) -> dict[str, str]:
    """Return the files that features of these points freeze in the launch folder; raises ConfigError.

    `freeze_files(runs, folder, cwd, environ)`: all runs, also those that do not use the feature.
    """
    runs = [(point.settings, point.config) for point in points]
    files: dict[str, str] = {}
    for hook in _list_hooks(runs, "freeze_files"):
        files |= hook(runs, folder, context.cwd, context.environ)
    return files


def find_changed_files(
    paths: LaunchPaths, runs: Iterable[tuple[LaunchConfig, Mapping[str, Any]]], files: Mapping[str, str]
) -> list[str]:
    """Return the inputs of these runs that are not as an earlier launch froze them.

    `paths` are those of the earlier launch, `files` the texts that are frozen now, by name.
    """
    found = dict[str, None]()
    for settings, config in runs:
        then = describe_inputs(settings, config, lambda name: (paths.folder / name).read_text())
        now = describe_inputs(settings, config, files.__getitem__)
        found |= dict.fromkeys(name for name, told in then.items() if told != now.get(name))
    return list(found)


def _list_hooks(
    runs: Iterable[tuple[LaunchConfig, Mapping[str, Any]]], name: str
) -> list[Callable[..., Any]]:
    """Return the functions of this name of all features that any of the runs uses."""
    return [*dict.fromkeys(hook for run in runs for hook in find_run_hooks(*run, name))]


def pack_for_launch(plan: LaunchPlan, context: Context) -> tuple[dict[str, object], dict[str, Path]]:
    """Build and pack what a launch needs besides its code, before it is frozen; raises UsageError.

    Returns what its environment.json says of that, and the files it shares with other launches, by
    the name of its link to them.
    """
    facts, shared = dict[str, object](), dict[str, Path]()
    for pack in _list_hooks(((run.settings, run.config) for run in plan.runs), "pack_for_launch"):
        told, files = pack(plan=plan, context=context)
        facts |= told
        shared |= files
    return facts, shared
