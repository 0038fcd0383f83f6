"""A composition that many points of a sweep share: values are set in it, one point after another.

It returns exactly what Hydra would have composed and OmegaConf resolved for the point, or nothing.
Only values that can differ are resolved again: those that are set, and interpolations. All other
values are the same objects in all points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from omegaconf import AnyNode, Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpckit.config.resolve import as_json_value
from hpckit.errors import ConfigError
from hpckit.model.launch import MISSING, LaunchConfig
from hpckit.model.plain import from_plain, same_value
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, field_names, replace

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
class SharedComposition:
    """A composition for one set of choices, with its resolved values.

    `places` are the containers and names of the keys that differ between points; `unsettled` are
    the paths of interpolations.
    """

    config: DictConfig
    values: Mapping[str, Any]
    settings: LaunchConfig
    places: Mapping[str, tuple[DictConfig, str]]
    unsettled: tuple[_Path, ...]

    @classmethod
    def of(
        cls,
        config: DictConfig,
        values: Mapping[str, Any],
        settings: LaunchConfig,
        keys: Sequence[str],
    ) -> SharedComposition | None:
        """Return what points that differ only in these keys can share; None if they cannot."""
        places = {key: _place(config, key) for key in keys}
        unsettled = tuple(_unsettled(config, ()))
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

    def at(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], LaunchConfig] | None:
        """Return the values and settings of the point with these values at all of its keys.

        None if a value is refused, or has to be composed: Hydra then reports the error, or composes
        it.
        """
        texts = [value for value in given.values() if isinstance(value, str)]
        if any("${" in text or text == MISSING for text in texts):
            return None
        try:
            changes = dict(self._changes(given))
        except (OmegaConfBaseException, ConfigError):
            return None
        values = dict(self.values)
        for path, value in changes.items():
            _put(values, path, value)
        return values, self._settings(values, {str(path[0]) for path in changes})

    def _changes(self, given: Mapping[str, Any]) -> Iterator[tuple[_Path, Any]]:
        """Set the given values; yield the resolved values that differ from before."""
        if not self.unsettled and all(self._is_free(*item) for item in given.items()):
            yield from (((*key.split("."),), value) for key, value in given.items())
            return
        for key, value in given.items():
            container, name = self.places[key]
            OmegaConf.update(container, name, value)
        OmegaConf.clear_cache(self.config)
        settled = [tuple(key.split(".")) for key in given]
        for path in (*settled, *self.unsettled):
            value = _resolved(self.config, path)
            if not same_value(value, _get(self.values, path)):
                yield path, value

    def _is_free(self, key: str, value: object) -> bool:
        """Whether this is a plain value of a key that takes any."""
        container, name = self.places[key]
        return type(value) in _PLAIN and type(container._get_node(name)) is AnyNode  # noqa: SLF001

    def _settings(self, values: Mapping[str, Any], changed: set[str]) -> LaunchConfig:
        names = changed & _FIELDS
        if not names:
            return self.settings
        made = from_plain(LaunchConfig, {name: values[name] for name in names})
        return replace(self.settings, **{name: getattr(made, name) for name in names})


def _place(config: DictConfig, key: str) -> tuple[DictConfig, str] | None:
    """Return where a key is set; None if that is not a plain mapping in the composition."""
    node: Any = config
    *parents, name = key.split(".")
    for parent in parents:
        if not isinstance(node, DictConfig) or node._is_interpolation():  # noqa: SLF001
            return None
        node = node._get_node(parent)  # noqa: SLF001
    fit = isinstance(node, DictConfig) and not node._is_interpolation() and name in node  # noqa: SLF001
    return (node, name) if fit else None


def _unsettled(node: Any, path: _Path) -> Iterator[_Path]:
    """Yield the paths of interpolations that a configuration value could change."""
    if path[:1] == ("stages",) and path[2:3] == ("overrides",) and len(path) > _OVERRIDES:
        return  # words for the runs of the stage, each of which resolves them
    if node._is_interpolation():  # noqa: SLF001
        if not _OF_THE_ENVIRONMENT.match(node._value()):  # noqa: SLF001
            yield path
    elif isinstance(node, DictConfig | ListConfig) and not node._is_none():  # noqa: SLF001
        keys: Any = range(len(node)) if isinstance(node, ListConfig) else list(node.keys())
        for key in keys:
            yield from _unsettled(node._get_node(key), (*path, key))  # noqa: SLF001


def _resolved(config: DictConfig, path: _Path) -> Any:
    """Return the plain value of a key; raises ConfigError, or what OmegaConf raises."""
    value: Any = config
    for key in path:
        value = value[key]
    if isinstance(value, Container):
        value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    return as_json_value(value, ".".join(map(str, path)) + ".", {})


def _get(values: Any, path: _Path) -> Any:
    for key in path:
        values = values[_as_key(values, key)]
    return values


def _put(values: dict[str, Any], path: _Path, value: Any) -> None:
    """Put a value at its path, copying the containers around it; only `values` is changed."""
    inside: Any = values
    for key in path[:-1]:
        place = _as_key(inside, key)
        inside[place] = inside[place].copy()
        inside = inside[place]
    inside[_as_key(inside, path[-1])] = value


def _as_key(container: Any, key: str | int) -> str | int:
    return key if isinstance(container, list) else str(key)
