"""Warnings about what a plan will do, but was probably not meant to do. Pure.

The warnings follow from the configuration alone; nothing is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpckit.model.command import command_words
from hpckit.model.counted import counted
from hpckit.model.finding import Finding, warning
from hpckit.model.launch import SLURM_ONLY, ClusterKind, LaunchConfig, Sampler, StragglerPolicy
from hpckit.model.outside.tracker import TrackerKind
from hpckit.model.plan import LaunchPlan, RunSpec
from hpckit.model.ranges import ranges
from hpckit.model.telemetry.settings import ProfileTool
from hpckit.planning.checks.command_slips import command_slips
from hpckit.planning.checks.layout_slips import layout_slips

_SHOWN = 5

_OF_SHELLS = re.compile(r"\$(?:[A-Z_][A-Z0-9_]*|\{[A-Za-z_]\w*\})|\A~/")

_STAGE = re.compile(r"\A\w+:(?=[^=]*=)")
"""The stage that a word is for."""


def plan_slips(plan: LaunchPlan) -> tuple[Finding, ...]:
    """Return warnings about a plan, each once."""
    found: dict[Finding, None] = {}
    for run in plan.checked_runs:
        found.update(dict.fromkeys(_in_command(run)))
        found.update(dict.fromkeys(_in_variables(run.settings)))
        words = (*plan.arguments, *run.overrides)
        found.update(dict.fromkeys(layout_slips(run.settings, words)))
        found.update(dict.fromkeys(_idle_words(run.settings, words)))
    if plan.cluster.kind is ClusterKind.local:
        found.update(dict.fromkeys(_ignored_here(plan.arguments)))
    found.update(dict.fromkeys(_equal_runs(plan)))
    return tuple(found)


def _in_command(run: RunSpec) -> Iterator[Finding]:
    settings = run.settings
    if settings.command is not None:
        words = command_words(settings.command)
        yield from command_slips(words, settings.resources, value_keys(run.config))


def value_keys(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of a configuration that hold values, such as `params.lr`."""
    return frozenset(_dotted(config, ""))


def _dotted(config: Mapping[str, Any], above: str) -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def _in_variables(settings: LaunchConfig) -> Iterator[Finding]:
    for key, variables in (("env", settings.env), ("cluster.env", settings.cluster.env)):
        for name, value in variables.items():
            shown = _OF_SHELLS.search(value)
            if shown is not None:
                yield _kept_variable(f"{key}.{name}", name, value, shown[0])


def _kept_variable(key: str, name: str, value: str, shown: str) -> Finding:
    variable = "HOME" if shown == "~/" else shown.strip("${}")
    return warning(
        key,
        value,
        f"{shown} in {key} stays as it is: no shell reads it",
        f"insert its value at launch: ${{oc.env:{variable}}}; or let each node's shell do it: "
        f"cluster.setup=['export {name}={value}']",
    )


def _ignored_here(words: Sequence[str]) -> Iterator[Finding]:
    """Warn about typed overrides for a scheduler; values from files are meant for any cluster."""
    typed = [_STAGE.sub("", word) for word in words]
    keys = [word.lstrip("+").partition("=")[0] for word in typed if "=" in word]
    given = [key for key in SLURM_ONLY if any(f"{one}.".startswith(f"{key}.") for one in keys)]
    if given:
        yield warning(
            given[0],
            "",
            f"on this machine nothing reads {', '.join(given)}: there is no scheduler",
            "with cluster=slurm they count; to prepare the environment here, do it in your shell",
        )


def _equal_runs(plan: LaunchPlan) -> Iterator[Finding]:
    if any(run.settings.sweep.sampler is Sampler.optuna for run in plan.runs):
        return
    alike: dict[str, list[RunSpec]] = {}
    for run in plan.runs:
        alike.setdefault(run.signature, []).append(run)
    equal = [runs for runs in alike.values() if len(runs) > 1]
    if not equal:
        return
    more = sum(len(runs) - 1 for runs in equal)
    shown = "; ".join(map(_named, equal[:_SHOWN]))
    rest = f"; and {len(equal) - _SHOWN} more such groups" if len(equal) > _SHOWN else ""
    yield warning(
        "sweep",
        " ".join(equal[0][0].overrides),
        f"{counted(more, 'run')} of this sweep {'is' if more == 1 else 'are'} the same as "
        f"another one of it: {shown}{rest}",
        "take values or points out that are there twice, or set different seeds",
    )


def _named(runs: Sequence[RunSpec]) -> str:
    indices = ", ".join(str(run.index) for run in runs[:_SHOWN])
    more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
    return f"runs {indices}{more} ({' '.join(runs[-1].overrides)})"


def _idle_words(settings: LaunchConfig, words: Sequence[str]) -> Iterator[Finding]:
    """Yield a warning for each word of `words` that has no effect with these settings.

    ```python
    [one.message for one in _idle_words(settings, ["recovery.on_straggler=move"])]
    # ["recovery.on_straggler=move moves nothing: the run has no spare node"]
    ```

    Values from files are not looked at: they are meant for many launches.
    """
    typed = {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in words)}
    profile, tracker, size = settings.observe.profile, settings.tracker, _world_size(settings)
    planned = profile.at_step is not None or profile.tool is ProfileTool.nsys
    if (key := "observe.profile.ranks") in typed and not planned:
        absent = [rank for rank in profile.ranks if rank >= size]
        also = f", and the run has no rank {ranges(absent)}" if absent else ""
        yield warning(
            key,
            typed[key],
            f"{key}={typed[key]} profiles nothing: no profile is planned{also}",
            "plan one with observe.profile.at_step=100, or ask for one while the run trains: "
            "hpckit profile RUN --ranks 0",
        )
    if (key := "tracker.project") in typed and tracker.kind is TrackerKind.none:
        yield warning(
            key,
            typed[key],
            f"{key}={typed[key]} names no project: tracker.kind is none",
            "choose tracker=wandb or tracker=mlflow",
        )
    if (key := "notify.file") in typed and not settings.notify.events:
        yield warning(
            key,
            typed[key],
            f"{key}={typed[key]} gets no notice: notify.events is empty",
            "say what is told: notify.events=[failed,completed]",
        )
    moves = settings.recovery.on_straggler is StragglerPolicy.move
    if (key := "recovery.on_straggler") in typed and moves and not settings.resources.spare_nodes:
        yield warning(
            key,
            typed[key],
            f"{key}=move moves nothing: the run has no spare node",
            "ask for one: resources.spare_nodes=1",
        )


def _world_size(settings: LaunchConfig) -> int:
    return settings.resources.nodes * settings.resources.tasks_per_node
