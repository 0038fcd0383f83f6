"""The points of a sweep that a sampler chooses.

It reads the space from `interval()`, `range()`, `choice()`, `glob()`, `int()` and `tag(log, ...)`
and composes the sampled points, or freezes a space from which runs will ask for values. The drawing
itself is in planning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from hpckit.config.overrides import list_swept_values
from hpckit.config.points import Word
from hpckit.config.sweep import Composer, compose_sweep_point
from hpckit.errors import ConfigError
from hpckit.model.plan import SweepPoint
from hpckit.model.search import Axis, AxisKind, Sampler, Search, Sweep
from hpckit.planning.sweep.derived_keys import (
    Probe,
    check_configs_equal,
    check_key_may_vary,
    find_derived_keys,
)
from hpckit.planning.sweep.points import MAX_POINTS, check_sampling_settings, draw_random_points
from hpckit.values import dataclass, replace

_LOG = "log"


def sample_sweep_points(composing: Composer, words: Sequence[Word]) -> tuple[SweepPoint, ...] | None:
    """Return the points that the sampler chooses, None if there is none; raises ConfigError."""
    if not any(word.is_swept for word in words):
        return None
    space = _Space(composing=composing, words=tuple(words))
    sweep = _compose_sweep_settings(space)
    if sweep is None or sweep.sampler is Sampler.grid:
        return None
    _refuse_points_file_and_zip(words, sweep)
    samples = check_sampling_settings(sweep)
    axes = [build_search_axis(word.override) for word in words if word.is_swept]
    _refuse_keys_swept_twice(axes)
    if sweep.sampler is Sampler.random:
        drawn = draw_random_points(axes, samples=samples, seed=sweep.seed)
        return tuple(space.compose_point(values) for values in drawn)
    return _build_search_points(space, axes, sweep, samples)


def _refuse_points_file_and_zip(words: Sequence[Word], sweep: Sweep) -> None:
    """Raise ConfigError if values belong together: a sampler draws for each key separately."""
    file = next((word.column.file for word in words if word.column is not None), None)
    if file is not None:
        raise ConfigError(
            f"sweep.points={file} lists the points, and sweep.sampler={sweep.sampler} chooses them",
            hint="remove one of the two",
        )
    if sweep.zip:
        groups = ", ".join(f"[{','.join(keys)}]" for keys in sweep.zip)
        raise ConfigError(
            f"sweep.zip pairs listed values ({groups}), and sweep.sampler={sweep.sampler} draws "
            "values for each key separately",
            hint="remove one of the two (sweep.zip=[]), or make a group of files whose options "
            "set the keys that belong together, and sweep that",
        )


def _compose_sweep_settings(space: _Space) -> Sweep | None:
    """Return the sweep settings; None if the first point cannot be composed."""
    try:
        return space.compose_point({}).settings.sweep
    except ConfigError:
        if any(word.override.key_or_group == "sweep.sampler" for word in space.words):
            raise
        return None


def _refuse_keys_swept_twice(axes: Sequence[Axis]) -> None:
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(
                f"{key} is swept twice; a sampler draws one value for it.",
                hint="Give it one choice() or interval().",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Space:
    """Composes points of a space: the overrides, of which the swept ones get values."""

    composing: Composer
    words: tuple[Word, ...]

    def compose_point(self, values: Mapping[str, Any]) -> SweepPoint:
        """Return the point with these texts as values of keys; other keys get their first value."""
        overrides = [self._override_with_value(word, values) for word in self.words]
        return compose_sweep_point(self.composing, self.words, overrides, many=True)

    def _override_with_value(self, word: Word, values: Mapping[str, Any]) -> str:
        override = word.override
        if not override.is_sweep_override():
            return str(override.input_line)
        key = override.key_or_group
        value = values[key] if key in values else first_swept_value(override)
        return f"{override.get_key_element()}={value}"


def _build_search_points(
    space: _Space, axes: Sequence[Axis], sweep: Sweep, samples: int
) -> tuple[SweepPoint, ...]:
    """Return `samples` identical points, with the space that their runs get values from."""
    for axis in axes:
        if space.composing.session.has_group(axis.key):
            raise ConfigError(
                f"{axis.key} is a group, and sweep.sampler=optuna sets plain values: on a node "
                "nothing is composed.",
                hint="Use sweep.sampler=random, or one launch for each choice.",
            )
        check_key_may_vary(tuple(axis.key.split(".")), axis.key)
    axes = [replace(axis, values=tuple(dict.fromkeys(axis.values))) for axis in axes]
    resolved = [_resolve_choice_values(space, axis) for axis in axes]
    search = Search(
        axes=tuple(resolved),
        followers=find_derived_keys(*_probe_key_effects(space, axes, resolved)),
        metric=str(sweep.metric),
        direction=sweep.direction,
        pruner=sweep.pruner,
        seed=sweep.seed,
    )
    point = _compose_verified_point(space, axes, search)
    fixed = tuple(str(word.override.input_line) for word in space.words if not word.is_swept)
    return (replace(point, overrides=fixed, search=search),) * samples


def _resolve_choice_values(space: _Space, axis: Axis) -> Axis:
    if axis.kind is not AxisKind.choice:
        return axis
    key = axis.key
    values = (_get_dotted_key(space.compose_point({key: word}).config, key) for word in axis.values)
    return replace(axis, values=tuple(values))


def _probe_key_effects(
    space: _Space, axes: Sequence[Axis], resolved: Sequence[Axis]
) -> tuple[Mapping[str, Any], list[Probe]]:
    """Return the configuration at distinctive values of all keys, and the effect of changing each.

    Distinctive values show in a text which key they come from. If the configuration refuses them
    (an enumeration does), two of the axis's own values are used.
    """
    given = {
        axis.key: _choose_distinctive_values(space, axis, place) or own.extreme_values
        for place, (own, axis) in enumerate(zip(axes, resolved, strict=True))
    }
    before = {key: pair[0] for key, pair in given.items()}
    base = space.compose_point(before).config
    probes = []
    for key, pair in given.items():
        config = space.compose_point({**before, key: pair[1]}).config
        probes.append(
            Probe(
                key=key, before=_get_dotted_key(base, key), after=_get_dotted_key(config, key), config=config
            )
        )
    return base, probes


def _choose_distinctive_values(space: _Space, axis: Axis, place: int) -> tuple[Any, Any] | None:
    kinds = {type(value) for value in axis.values}
    pair: tuple[Any, Any] | None = None
    if axis.kind is AxisKind.real or kinds == {float}:
        pair = (0.6180339887498949 + place, 0.3819660112501051 + place)
    elif axis.kind is AxisKind.integer or kinds == {int}:
        pair = (618033900 + place, 381966000 + place)
    elif kinds == {str}:
        pair = (f"hpckit_mark_{place}_one", f"hpckit_mark_{place}_two")
    if pair is None:
        return None
    try:
        for mark in pair:
            space.compose_point({axis.key: mark})
    except ConfigError:
        return None
    return pair


def _get_dotted_key(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value[name]
    return value


def _compose_verified_point(space: _Space, axes: Sequence[Axis], search: Search) -> SweepPoint:
    """Return the point to freeze, after testing it with both ends of all axes."""
    frozen = space.compose_point({})
    for end in (0, 1):
        words = {axis.key: axis.extreme_values[end] for axis in axes}
        values = {axis.key: axis.extreme_values[end] for axis in search.axes}
        composed = space.compose_point(words).config
        check_configs_equal(composed, search.apply_values_to_config(frozen.config, values))
    return frozen


def build_search_axis(word: Override) -> Axis:
    """Return the axis of a swept override; a choice's `values` are text. Raises ConfigError."""
    swept: Any = word.value()
    key, log = word.key_or_group, _LOG in swept.tags
    if isinstance(swept, IntervalSweep):
        kind = AxisKind.integer if isinstance(swept.start, int) else AxisKind.real
        low, high = cast("tuple[float, float]", (swept.start, swept.end))
        return _check_axis_bounds(word, Axis(key=key, kind=kind, low=low, high=high, log=log))
    if isinstance(swept, RangeSweep):
        return _build_range_axis(word, swept)
    if log:
        raise _log_tag_error(word)
    return Axis(key=key, kind=AxisKind.choice, values=tuple(list_swept_values(word)))


def _build_range_axis(word: Override, swept: RangeSweep) -> Axis:
    """Return the axis of a range: its numbers are ordered, which a sampler may learn from."""
    first_swept_value(word)
    numbers = [value for _, value in zip(range(MAX_POINTS + 1), swept.range(), strict=False)]
    integer = all(isinstance(number, int) for number in numbers)
    step, log = abs(float(swept.step)), _LOG in swept.tags
    if log and not (integer and step == 1):
        raise _log_tag_error(word)
    axis = Axis(
        key=word.key_or_group,
        kind=AxisKind.integer if integer else AxisKind.real,
        low=min(numbers),
        high=max(numbers),
        step=None if integer and step == 1 else int(step) if integer else step,
        log=log,
    )
    return _check_axis_bounds(word, axis)


def _log_tag_error(word: Override) -> ConfigError:
    return ConfigError(
        f"{word.input_line}: the tag log is for interval() and range() of integers with step 1.",
        hint="Write tag(log, interval(a,b)), or leave the tag out.",
    )


def first_swept_value(word: Override) -> Any:
    """Return the first value of a swept override, an interval's lowest; raises ConfigError."""
    swept: Any = word.value()
    return swept.start if word.is_interval_sweep() else list_swept_values(word, 1)[0]


def _check_axis_bounds(word: Override, axis: Axis) -> Axis:
    if not (math.isfinite(axis.low) and math.isfinite(axis.high)):
        raise ConfigError(
            f"{word.input_line}: the ends of an interval must be finite numbers.",
            hint="For example interval(0,1).",
        )
    if not axis.low <= axis.high:
        raise ConfigError(
            f"{word.input_line}: an interval must go from its least to its largest value.",
            hint=f"Write interval({axis.high:g},{axis.low:g}).",
        )
    if axis.log and axis.low <= 0:
        raise ConfigError(
            f"{word.input_line}: there is no logarithm of {axis.low:g}; with the tag log both ends "
            "have to be above 0.",
            hint="Raise the lower end, or leave the tag out.",
        )
    return axis
