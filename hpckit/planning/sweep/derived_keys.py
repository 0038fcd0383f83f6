"""Which places of a resolved configuration follow a searched key, and how. Pure.

They are found by comparing configurations composed with different values. A place may be a copy of
a searched key (`${lr}`), or a text with such keys in it (`"train.py --lr ${lr}"`). Other computed
values cannot be worked out on a node, which composes no configuration, and are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpckit.errors import ConfigError
from hpckit.model.command import encode_override_value
from hpckit.model.plain import has_same_repr
from hpckit.model.search import DerivedKey
from hpckit.values import dataclass

FIXED = frozenset(
    {"name", "output_dir", "entry_point", "cluster", "resources", "checkpoint", "recovery"}
    | {"runtime", "code", "sweep", "budget", "chaos", "notify", "observe", "preflight", "tracker"}
)
"""Fixed before a run begins: what is asked of Slurm, and how a run is operated."""

_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The configuration composed after changing one searched key from `before` to `after`."""

    key: str
    before: Any
    after: Any
    config: Mapping[str, Any]


def find_derived_keys(base: Mapping[str, Any], probes: list[Probe]) -> tuple[DerivedKey, ...]:
    """Return the places that follow; `base` has all keys at their `before`.

    Raises ConfigError if a place is computed in another way, or is fixed before a run begins.
    """
    found: dict[_Path, list[Probe]] = {}
    for probe in probes:
        own = tuple(probe.key.split("."))
        for path in _find_differing_paths(base, probe.config, (), probe):
            if path[: len(own)] != own:
                found.setdefault(path, []).append(probe)
    return tuple(_build_derived_key(base, path, moved) for path, moved in sorted(found.items()))


def check_key_may_vary(path: _Path, key: str) -> None:
    """Raise ConfigError if the value at this path cannot differ between runs of the sweep."""
    if path[0] not in FIXED:
        return
    name = ".".join(path)
    how = f"{name} follows {key}" if name != key else f"{name} is searched"
    raise ConfigError(
        f"{how}, and {path[0]} is fixed before a run of sweep.sampler=optuna asks for values.",
        hint="Use sweep.sampler=random, which draws all points beforehand.",
    )


def check_configs_equal(expected: Mapping[str, Any], applied: Mapping[str, Any]) -> None:
    """Raise ConfigError if values put into a frozen configuration differ from the composed one."""
    path = next(_find_differing_paths(expected, applied, (), None), None)
    if path is not None:
        raise _build_computed_key_error(path, "the searched keys")


def _build_derived_key(base: Mapping[str, Any], path: _Path, moved: list[Probe]) -> DerivedKey:
    before = _get_at_path(base, path)
    for probe in moved:
        check_key_may_vary(path, probe.key)
    first = moved[0]
    if len(moved) == 1 and has_same_repr(before, first.before):
        if has_same_repr(_get_at_path(first.config, path), first.after):
            return DerivedKey(path=path, copies=first.key)
    elif isinstance(before, str):
        follower = DerivedKey(path=path, pieces=_split_text_by_values(before, moved))
        values = {probe.key: probe.before for probe in moved}
        if all(
            follower.compute_value({**values, probe.key: probe.after}) == _get_at_path(probe.config, path)
            for probe in moved
        ):
            return follower
    raise _build_computed_key_error(path, ", ".join(probe.key for probe in moved))


def _split_text_by_values(text: str, moved: list[Probe]) -> tuple[str, ...]:
    """Return the text in pieces: fixed text, alternating with the keys whose values it contains."""
    pieces = [text]
    # Long values come first: a value that is part of another one would cut that apart.
    for probe in sorted(moved, key=lambda one: -len(str(one.before))):
        cut: list[str] = []
        for place, piece in enumerate(pieces):
            if place % 2:
                cut.append(piece)
                continue
            mark = str(probe.before)
            first, *rest = piece.split(mark if mark in piece else encode_override_value(probe.before))
            cut += [first, *(part for one in rest for part in (probe.key, one))]
        pieces = cut
    return tuple(pieces)


def _build_computed_key_error(path: _Path, keys: str) -> ConfigError:
    return ConfigError(
        f"{'.'.join(path)} is computed from {keys}; sweep.sampler=optuna can only copy values to "
        "other keys, or put them into texts.",
        hint="Compute it in your program, or use sweep.sampler=random, which composes every point.",
    )


def _find_differing_paths(one: Any, other: Any, path: _Path, probe: Probe | None) -> Iterator[_Path]:
    copied = probe is not None and has_same_repr(one, probe.before) and has_same_repr(other, probe.after)
    if isinstance(one, Mapping) and isinstance(other, Mapping) and not copied:
        for key in {**one, **other}:
            yield from _find_differing_paths(one.get(key, _GONE), other.get(key, _GONE), (*path, key), probe)
    elif [type(one), type(other)] == [list, list] and len(one) == len(other) and not copied:
        for place, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _find_differing_paths(left, right, (*path, str(place)), probe)
    elif not has_same_repr(one, other):
        yield path


_GONE = object()


def _get_at_path(values: Any, path: _Path) -> Any:
    for key in path:
        values = values[int(key)] if isinstance(values, list) else values.get(key, _GONE)
    return values
