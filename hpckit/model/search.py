"""A sweep: what a user may configure of it, its space, and the values that one run was given.

`scripts/config_reference.py` takes the docstrings below the fields of `Sweep`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from hpckit.model.command import detect_parser_of_value, encode_value_for_its_parser
from hpckit.values import dataclass, field


class Sampler(StrEnum):
    """How the points of a sweep are chosen."""

    grid = "grid"
    """all combinations of the given values"""
    random = "random"
    """`samples` points, drawn at launch"""
    optuna = "optuna"
    """`samples` points; as runs begin, they ask an Optuna study, which knows earlier results"""


class Direction(StrEnum):
    """Whether a small or a large value of the metric is good."""

    minimize = "minimize"
    """small values"""
    maximize = "maximize"
    """large values"""


class Pruner(StrEnum):
    """What ends runs early that promise little."""

    none = "none"
    """nothing"""
    median = "median"
    """Optuna's median rule"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """How the points of a sweep are chosen, and how many of its runs may run at a time."""

    max_concurrent: int | None = None
    """Runs at a time, over all arrays. Null: no bound; with `optuna` 4."""
    max_gpus: int | None = None
    """GPUs that runs hold together at a time. Null: no bound."""
    runs_per_job: int = 1
    """Runs that share one Slurm job at a time."""
    runs_per_gpu: int = 1
    """Runs that share one GPU; each must ask for exactly one."""
    job_timeout_min: int | None = None
    """Time limit of a shared job, which is queued again while runs are left. Null: long enough for
    all its runs."""
    mps: bool = True
    """Share a GPU by CUDA MPS, if the node has it."""
    sampler: Sampler = Sampler.grid
    """How the points are chosen."""
    samples: int | None = None
    """Number of points for `random` and `optuna`."""
    seed: int = 0
    """Seed of that choice."""
    metric: str | None = None
    """`optuna`: the metric of `run.log(...)` to optimise."""
    direction: Direction = Direction.minimize
    """`optuna`: which values of the metric are good."""
    pruner: Pruner = Pruner.none
    """`optuna`: what ends unpromising runs early."""
    zip: list[list[str]] = field(default_factory=list)
    """Groups of swept keys that advance together, like `[[lr,batch]]`."""
    points: str | None = None
    """File of points (.csv, .yaml, .jsonl), relative to the working directory; only on the command line."""


class AxisKind(StrEnum):
    """What an axis draws from: listed values, an interval of real numbers, or one of integers."""

    choice = "choice"
    real = "real"
    integer = "integer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One searched key. An interval includes both ends; `log` samples its logarithm uniformly.

    With a `step`, an interval has only the values a whole number of steps above `low`. `values` are
    those of a choice.
    """

    key: str
    kind: AxisKind
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    values: tuple[Any, ...] = ()

    @property
    def choice_labels(self) -> tuple[Any, ...]:
        """The values of a choice as scalars: lists and mappings as JSON."""
        return tuple(
            json.dumps(value) if isinstance(value, list | tuple | dict) else value for value in self.values
        )

    def value_of_label(self, label: Any) -> Any:
        """Return the value that a sampler's label stands for."""
        if self.kind is not AxisKind.choice:
            return label
        return self.values[self.choice_labels.index(label)]

    @property
    def extreme_values(self) -> tuple[Any, Any]:
        """The two values of the axis that differ the most."""
        if self.kind is AxisKind.choice:
            return self.values[0], self.values[-1]
        if self.kind is AxisKind.integer:
            return int(self.low), int(self.high)
        return self.low, self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedKey:
    """A place in the configuration whose value follows from searched keys.

    `path` holds keys and list indices, as text. The place is a copy of the key `copies`, or, if
    that is null, the text made of `pieces`: literal text and keys alternating, starting with text.
    """

    path: tuple[str, ...]
    copies: str | None = None
    pieces: tuple[str, ...] = ()

    def compute_value(self, given: Mapping[str, Any]) -> Any:
        """Return the value of this place for these values of the searched keys."""
        if self.copies is not None:
            return given[self.copies]
        text, listed = self.pieces[0], len(self.path) > 1
        for key, after in zip(self.pieces[1::2], self.pieces[2::2], strict=True):
            value = given[key]
            if self.path[0] == "command":
                value = encode_value_for_its_parser(value, detect_parser_of_value(text, after, listed=listed))
            text += f"{value}{after}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """An adaptive sweep: what it searches, and which reported metric it optimizes."""

    axes: tuple[Axis, ...]
    followers: tuple[DerivedKey, ...]
    metric: str
    direction: Direction
    pruner: Pruner
    seed: int

    def apply_values_to_config(self, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a configuration with these values of the searched keys."""
        changed: Any = dict(config)
        for key, value in given.items():
            changed = _replace_nested_value(changed, tuple(key.split(".")), value)
        for follower in self.followers:
            changed = _replace_nested_value(changed, follower.path, follower.compute_value(given))
        return dict(changed)


def _replace_nested_value(node: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    if isinstance(node, list | tuple):
        place = int(path[0])
        return [*node[:place], _replace_nested_value(node[place], path[1:], value), *node[place + 1 :]]
    return {**node, path[0]: _replace_nested_value(node.get(path[0], {}), path[1:], value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The values that a run of an adaptive sweep was given: trial `number` of the study.

    `signature` is that of the run's whole configuration; `earlier` are its previous trials.
    """

    number: int
    values: Mapping[str, Any]
    signature: str
    earlier: tuple[int, ...] = ()

    @property
    def overrides(self) -> tuple[str, ...]:
        """The values as overrides, for people and filters."""
        values = self.values.items()
        return tuple(f"{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in values)
