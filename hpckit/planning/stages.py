"""The stages an experiment names: what each asks for, checked and put into order. Pure.

Responsible for what `stages` in a configuration means; it must not compose configurations, nor
know about jobs.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpckit.errors import ConfigError
from hpckit.model.plan import RunSpec, SweepPoint
from hpckit.model.stages import DependencyType, Stage, list_prerequisite_runs
from hpckit.patterns import lazy_pattern
from hpckit.planning.signature import LENGTH
from hpckit.values import dataclass, replace

_NAME = lazy_pattern(r"[a-z][a-z0-9_]*\Z", re.ASCII)
STAGE_KEYS = ("overrides", "once", "after")
_EXAMPLE = "for example stages: {prepare: {overrides: [resources=cpu], once: true}, train: {}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """A stage as configured: what differs in it, and whether it is swept."""

    name: str
    overrides: tuple[str, ...]
    """Overrides for this stage alone, in command-line form: `[resources=cpu, lr=0.1]`."""
    once: bool
    """One run for the whole sweep, not one for each point."""
    after: DependencyType
    """When a run may begin. Default: `aftercorr` if this stage and the one before are both swept,
    else `afterok`."""


def parse_stages(configured: Mapping[str, Any]) -> tuple[StageSettings, ...]:
    """Return the stages of a configuration, in their order; raises ConfigError."""
    found: list[StageSettings] = []
    for name, given in configured.items():
        found.append(_parse_stage(str(name), given, found[-1] if found else None))
    return tuple(found)


def _parse_stage(name: str, given: Any, before: StageSettings | None) -> StageSettings:
    key = f"stages.{name}"
    if not _NAME.match(name):
        raise ConfigError(
            f"{key} is not a valid stage name: use small letters, digits and _, and begin with a letter",
            hint=_EXAMPLE,
        )
    if not isinstance(given, Mapping | None):
        raise ConfigError(f"{key} is {given!r}; it must be a mapping", hint=_EXAMPLE)
    stated = given or {}
    for word in stated:
        if word not in STAGE_KEYS:
            near = difflib.get_close_matches(str(word), STAGE_KEYS, n=1)
            raise ConfigError(
                f"{key}.{word} is not a key of a stage; those are {', '.join(STAGE_KEYS)}",
                hint=f"did you mean {key}.{near[0]}?"
                if near
                else f"put its settings into {key}.overrides, as on a command line",
            )
    once = stated.get("once", False)
    if not isinstance(once, bool):
        raise ConfigError(f"{key}.once is {once!r}; it must be true or false", hint=_EXAMPLE)
    return StageSettings(
        name=name,
        overrides=_check_stage_overrides(key, stated.get("overrides") or []),
        once=once,
        after=_parse_stage_dependency(key, stated.get("after"), once=once, before=before),
    )


def _check_stage_overrides(key: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, list) and all(isinstance(word, str) for word in given):
        return tuple(given)
    raise ConfigError(
        f"{key}.overrides is {given!r}; it must be a list of overrides in Hydra's grammar",
        hint="for example overrides: [resources=cpu, entry_point=pipeline:prepare]",
    )


def _parse_stage_dependency(
    key: str, given: Any, *, once: bool, before: StageSettings | None
) -> DependencyType:
    alike = before is not None and not once and not before.once
    if given is None:
        return DependencyType.aftercorr if alike else DependencyType.afterok
    if given not in list(DependencyType):
        raise ConfigError(
            f"{key}.after is {given!r}; it must be one of {', '.join(DependencyType)}",
            hint="afterok: all runs of the stage before have completed; aftercorr: the one of the "
            "same point; afterany: all have ended, well or not",
        )
    if before is None:
        raise ConfigError(
            f"{key}.after is {given}, and there is no stage before it", hint=f"remove {key}.after"
        )
    if DependencyType(given) is DependencyType.aftercorr and not alike:
        raise ConfigError(
            f"{key}.after is aftercorr, which needs a run for every point both in "
            f"{key.split('.')[1]} and in {before.name}; one of them has `once: true`",
            hint=f"set {key}.after=afterok, or sweep both",
        )
    return DependencyType(given)


def list_stages_of_points(points: Sequence[SweepPoint]) -> tuple[Stage, ...]:
    """Return the stages of these points, which are those of one stage after the other."""
    if not points or points[0].stage is None:
        return ()
    counts: dict[str, int] = {}
    for point in points:
        counts[str(point.stage)] = counts.get(str(point.stage), 0) + 1
    found: list[Stage] = []
    for stage in parse_stages(points[0].settings.stages):
        first = found[-1].first + found[-1].count if found else 0
        count = counts[stage.name]
        found.append(Stage(name=stage.name, first=first, count=count, after=stage.after))
    return tuple(found)


def chain_run_signatures(runs: Sequence[RunSpec], stages: Sequence[Stage]) -> tuple[RunSpec, ...]:
    """Return the runs with signatures that also tell what they follow.

    Two evaluations of one configuration are not the same thing where they evaluate different runs.
    """
    found: list[RunSpec] = []
    known: dict[range, str] = {}
    for run in runs:
        before = list_prerequisite_runs(stages, run.index)
        if before not in known:
            known[before] = combine_signatures(found[index].signature for index in before)
        found.append(replace(run, signature=chain_signature(run.signature, known[before])))
    return tuple(found)


def combine_signatures(signatures: Iterable[str]) -> str:
    """Return one signature for those of several runs; empty for none."""
    text = " ".join(signatures)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH] if text else ""


def chain_signature(own: str, before: str) -> str:
    """Return the signature of a run from that of its configuration and of what it follows."""
    return combine_signatures([own, before]) if before else own
