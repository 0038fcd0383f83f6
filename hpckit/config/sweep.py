"""Composes the points of a sweep.

Hydra needs tens of milliseconds for one composition, so points that differ only in plain values of
separate keys share one: values are set in it, one point after another. What comes of it is exactly
what Hydra would have composed and OmegaConf resolved for the point. Everything else (groups,
mappings, lists, keys set twice) is composed by Hydra for every point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from hydra.core.override_parser.types import OverrideType
from omegaconf import AnyNode, Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpckit.config.command import wrap_command_interpolations
from hpckit.config.explain import load_config
from hpckit.config.overrides import parse_hydra_overrides, parse_simple_override_value
from hpckit.config.points import Word, find_points_file_line
from hpckit.config.resolve import Lost, config_value_to_json, resolve_config
from hpckit.config.schema import describe_allowed_values, key_takes_text_not_number
from hpckit.config.session import Session
from hpckit.config.written import keep_override_values_as_written
from hpckit.errors import ConfigError
from hpckit.model.launch import MISSING, LaunchConfig
from hpckit.model.plain import from_plain, has_same_repr
from hpckit.model.plan import SweepPoint
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, field, field_names, replace

_SETS = (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD)

_KEPT = 32
"""Number of compositions to keep: the axes of a sweep vary one by one, the last one fastest."""

_PARSED = 4096
"""Number of values from Hydra's parser to keep."""

_DECIDED = ("cluster.kind", "cluster.bin_dir")
"""The inputs of `cluster.kind`: a composition that could change them is not shared."""

_OF_THE_ENVIRONMENT = lazy_pattern(r"\$\{oc\.env:\w+(,[^${}]*)?\}\Z")
"""An interpolation that does not depend on any configuration value."""

_FIELDS = frozenset(field_names(LaunchConfig))

_PLAIN = (str, int, float, bool)
_OVERRIDES = 3
"""Length of the path `stages.NAME.overrides`."""

_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Composer:
    """Composes the points of one sweep.

    `movable` maps the text before the `=` to the keys that are set in a shared composition.
    `latest` is the point that was composed last, by its overrides: the first one is asked for
    before all are listed, and then again.
    """

    session: Session
    environ: Mapping[str, str]
    movable: Mapping[str, str]
    shared: dict[tuple[tuple[str, ...], ...], SharedComposition] = field(default_factory=dict)
    parsed: dict[str, Any] = field(default_factory=dict)
    latest: dict[tuple[str, ...], SweepPoint] = field(default_factory=dict)
    lost: Lost = field(default_factory=dict)

    def compose_point(self, overrides: Sequence[str]) -> SweepPoint:
        """Return the point with these overrides; raises ConfigError."""
        key = tuple(overrides)
        if key not in self.latest:
            point = self._compose_uncached_point(key)
            self.latest.clear()
            self.latest[key] = point
        return self.latest[key]

    def _compose_uncached_point(self, overrides: tuple[str, ...]) -> SweepPoint:
        given: dict[str, str] = {}
        rest: list[str] = []
        for word in overrides:
            key = self.movable.get(word.partition("=")[0])
            if key is None:
                rest.append(word)
            else:
                given[key] = word
        kind = (tuple(rest), tuple(given))
        shared = self.shared.get(kind)
        found = None
        if shared is not None:
            found = shared.compute_point_without_hydra(
                {key: self._parse_override_value(key, word) for key, word in given.items()}
            )
        if found is None:
            found = self._compose_with_hydra(kind, overrides)
        config, settings = found
        return SweepPoint(overrides=overrides, config=config, settings=settings, lost=self.lost)

    def _compose_with_hydra(
        self, kind: tuple[tuple[str, ...], tuple[str, ...]], overrides: Sequence[str]
    ) -> tuple[dict[str, Any], LaunchConfig]:
        """Let Hydra compose, and keep what the next points can share."""
        config = wrap_command_interpolations(load_config(self.session, overrides))
        values = resolve_config(config, self.environ, self.lost)
        try:
            settings = from_plain(LaunchConfig, values)
        except (TypeError, ValueError) as error:
            raise _impossible_value_error(error) from error
        keys = kind[1]
        shared = SharedComposition.build_if_shareable(config, values, settings, keys) if keys else None
        if shared is not None:
            if len(self.shared) == _KEPT:
                del self.shared[next(iter(self.shared))]
            self.shared[kind] = shared
        return values, settings

    def _parse_override_value(self, key: str, word: str) -> Any:
        typed = word.partition("=")[2]
        plain = parse_simple_override_value(typed)
        if plain is not None:
            differs = not isinstance(plain, str) and str(plain) != typed
            return typed if differs and key_takes_text_not_number(key) else plain
        if word not in self.parsed:
            if len(self.parsed) == _PARSED:
                self.parsed.clear()
            self.parsed[word] = keep_override_values_as_written(
                parse_hydra_overrides([word], self.session.loader)[0]
            ).value()
        return self.parsed[word]


def compose_sweep_point(
    composing: Composer, words: Sequence[Word], overrides: Sequence[str], *, many: bool = False
) -> SweepPoint:
    """Return the point with these overrides.

    A ConfigError names its line in a file of points and, if there are `many`, its overrides.
    """
    try:
        return composing.compose_point(overrides)
    except ConfigError as error:
        line = find_points_file_line(words, overrides)
        where = "" if line is None else f"{line}: "
        which = f" (in the run {' '.join(overrides)})" if many else ""
        raise ConfigError(f"{where}{error.message}{which}", hint=error.hint) from error


def build_composer(session: Session, words: Sequence[Word], environ: Mapping[str, str]) -> Composer:
    """Return the composer for the points of these words."""
    swept = any(word.is_swept for word in words)
    movable = dict(_list_keys_set_without_hydra(session, words)) if swept else {}
    return Composer(session=session, environ=environ, movable=movable)


def _list_keys_set_without_hydra(session: Session, words: Sequence[Word]) -> Iterator[tuple[str, str]]:
    keys = [word.override.key_or_group for word in words]
    for index, word in enumerate(words):
        override, key = word.override, keys[index]
        others = (*keys[:index], *keys[index + 1 :])
        plain = override.type in _SETS and override.package is None
        if (
            word.is_swept
            and plain
            and not override.is_hydra_override()
            and not any(_are_nested_keys(key, other) for other in others)
            and word.has_only_scalars
            and not session.has_group(key)
        ):
            yield override.get_key_element(), key


def _are_nested_keys(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _impossible_value_error(error: Exception) -> ConfigError:
    """Return the error for a value that no run can have: `from_plain` names its key, part by part.

    Such as `observe: row_s: nan is out of range`.
    """
    path, rest = [], str(error)
    while rest.partition(": ")[0].isidentifier() and ": " in rest:
        name, _, rest = rest.partition(": ")
        path.append(name)
    key = ".".join(path)
    return ConfigError(
        f"{key}: {rest}" if key else rest,
        hint=f"{describe_allowed_values(key)} A number has to be finite, and fit into 64 bits."
        if "out of range" in rest
        else "see the type of each key in the configuration reference",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedComposition:
    """A composition for one set of choices, with its resolved values.

    `places` are the containers and names of the keys that differ between points; `unsettled` are
    the paths of interpolations. Only what is set, and interpolations, are resolved again: all other
    values are the same objects in all points.
    """

    config: DictConfig
    values: Mapping[str, Any]
    settings: LaunchConfig
    places: Mapping[str, tuple[DictConfig, str]]
    unsettled: tuple[_Path, ...]

    @classmethod
    def build_if_shareable(
        cls, config: DictConfig, values: Mapping[str, Any], settings: LaunchConfig, keys: Sequence[str]
    ) -> SharedComposition | None:
        """Return what points that differ only in these keys can share; None if they cannot."""
        places = {key: _find_container_of_key(config, key) for key in keys}
        unsettled = tuple(_find_interpolations(config, ()))
        decided = {".".join(map(str, path)) for path in unsettled} | set(keys)
        if None in places.values() or not decided.isdisjoint(_DECIDED):
            return None
        return cls(
            config=config,
            values=values,
            settings=settings,
            places=cast("Mapping[str, tuple[DictConfig, str]]", places),
            unsettled=unsettled,
        )

    def compute_point_without_hydra(
        self, given: Mapping[str, Any]
    ) -> tuple[dict[str, Any], LaunchConfig] | None:
        """Return the values and settings of the point with these values at all of its keys.

        None if a value is refused, or has to be composed: Hydra then reports the error, or composes it.
        """
        texts = [value for value in given.values() if isinstance(value, str)]
        if any("${" in text or text == MISSING for text in texts):
            return None
        try:
            changes = dict(self._resolve_changed_values(given))
        except (OmegaConfBaseException, ConfigError):
            return None
        values = dict(self.values)
        for path, value in changes.items():
            _set_at_path(values, path, value)
        return values, self._update_settings(values, {str(path[0]) for path in changes})

    def _resolve_changed_values(self, given: Mapping[str, Any]) -> Iterator[tuple[_Path, Any]]:
        """Set the given values; yield the resolved values that differ from before."""
        if not self.unsettled and all(self._is_plain_untyped_value(*item) for item in given.items()):
            yield from (((*key.split("."),), value) for key, value in given.items())
            return
        for key, value in given.items():
            container, name = self.places[key]
            OmegaConf.update(container, name, value)
        OmegaConf.clear_cache(self.config)
        settled = [tuple(key.split(".")) for key in given]
        for path in (*settled, *self.unsettled):
            value = _resolve_key(self.config, path)
            if not has_same_repr(value, _get_at_path(self.values, path)):
                yield path, value

    def _is_plain_untyped_value(self, key: str, value: object) -> bool:
        container, name = self.places[key]
        return type(value) in _PLAIN and type(container._get_node(name)) is AnyNode  # noqa: SLF001

    def _update_settings(self, values: Mapping[str, Any], changed: set[str]) -> LaunchConfig:
        names = changed & _FIELDS
        if not names:
            return self.settings
        made = from_plain(LaunchConfig, {name: values[name] for name in names})
        return replace(self.settings, **{name: getattr(made, name) for name in names})


def _find_container_of_key(config: DictConfig, key: str) -> tuple[DictConfig, str] | None:
    """Return where a key is set; None if that is not a plain mapping in the composition."""
    node: Any = config
    *parents, name = key.split(".")
    for parent in parents:
        if not isinstance(node, DictConfig) or node._is_interpolation():  # noqa: SLF001
            return None
        node = node._get_node(parent)  # noqa: SLF001
    fit = isinstance(node, DictConfig) and not node._is_interpolation() and name in node  # noqa: SLF001
    return (node, name) if fit else None


def _find_interpolations(node: Any, path: _Path) -> Iterator[_Path]:
    """Yield the paths of interpolations that a configuration value could change."""
    if path[:1] == ("stages",) and path[2:3] == ("overrides",) and len(path) > _OVERRIDES:
        return  # words for the runs of the stage, each of which resolves them
    if node._is_interpolation():  # noqa: SLF001
        if not _OF_THE_ENVIRONMENT.match(node._value()):  # noqa: SLF001
            yield path
    elif isinstance(node, DictConfig | ListConfig) and not node._is_none():  # noqa: SLF001
        keys: Any = range(len(node)) if isinstance(node, ListConfig) else list(node.keys())
        for key in keys:
            yield from _find_interpolations(node._get_node(key), (*path, key))  # noqa: SLF001


def _resolve_key(config: DictConfig, path: _Path) -> Any:
    """Return the plain value of a key; raises ConfigError, or what OmegaConf raises."""
    value: Any = config
    for key in path:
        value = value[key]
    if isinstance(value, Container):
        value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    return config_value_to_json(value, ".".join(map(str, path)) + ".", {})


def _get_at_path(values: Any, path: _Path) -> Any:
    for key in path:
        values = values[_to_container_key(values, key)]
    return values


def _set_at_path(values: dict[str, Any], path: _Path, value: Any) -> None:
    """Put a value at its path, copying the containers around it; only `values` is changed."""
    inside: Any = values
    for key in path[:-1]:
        place = _to_container_key(inside, key)
        inside[place] = inside[place].copy()
        inside = inside[place]
    inside[_to_container_key(inside, path[-1])] = value


def _to_container_key(container: Any, key: str | int) -> str | int:
    return key if isinstance(container, list) else str(key)
