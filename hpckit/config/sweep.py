"""Composes the points of a sweep.

Hydra needs tens of milliseconds for one composition, so points that differ only in plain values of
separate keys share one. Everything else (groups, mappings, lists, keys set twice) is composed by
Hydra for every point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import OverrideType

from hpckit.config.command import mark_command
from hpckit.config.explain import load_config
from hpckit.config.overrides import parse, parse_plain_value
from hpckit.config.points import Word, line_of
from hpckit.config.resolve import Lost, resolve
from hpckit.config.session import Session
from hpckit.config.shared_composition import SharedComposition
from hpckit.config.types import reads_text, takes
from hpckit.config.written import override_with_texts
from hpckit.errors import ConfigError
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import from_plain
from hpckit.model.plan import SweepPoint
from hpckit.values import dataclass, field

_SETS = (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD)

_KEPT = 32
"""Number of compositions to keep: the axes of a sweep vary one by one, the last one fastest."""

_PARSED = 4096
"""Number of values from Hydra's parser to keep."""


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

    def point(self, overrides: Sequence[str]) -> SweepPoint:
        """Return the point with these overrides; raises ConfigError."""
        key = tuple(overrides)
        if key not in self.latest:
            point = self._point(key)
            self.latest.clear()
            self.latest[key] = point
        return self.latest[key]

    def _point(self, overrides: tuple[str, ...]) -> SweepPoint:
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
            found = shared.at({key: self._value(key, word) for key, word in given.items()})
        if found is None:
            found = self._composed(kind, overrides)
        config, settings = found
        return SweepPoint(overrides=overrides, config=config, settings=settings, lost=self.lost)

    def _composed(
        self, kind: tuple[tuple[str, ...], tuple[str, ...]], overrides: Sequence[str]
    ) -> tuple[dict[str, Any], LaunchConfig]:
        """Let Hydra compose, and keep what the next points can share."""
        config = mark_command(load_config(self.session, overrides))
        values = resolve(config, self.environ, self.lost)
        try:
            settings = from_plain(LaunchConfig, values)
        except (TypeError, ValueError) as error:
            raise _impossible(error) from error
        keys = kind[1]
        shared = SharedComposition.of(config, values, settings, keys) if keys else None
        if shared is not None:
            if len(self.shared) == _KEPT:
                del self.shared[next(iter(self.shared))]
            self.shared[kind] = shared
        return values, settings

    def _value(self, key: str, word: str) -> Any:
        typed = word.partition("=")[2]
        plain = parse_plain_value(typed)
        if plain is not None:
            differs = not isinstance(plain, str) and str(plain) != typed
            return typed if differs and reads_text(key) else plain
        if word not in self.parsed:
            if len(self.parsed) == _PARSED:
                self.parsed.clear()
            self.parsed[word] = override_with_texts(parse([word], self.session.loader)[0]).value()
        return self.parsed[word]


def point_of(composing: Composer, words: Sequence[Word], overrides: Sequence[str]) -> SweepPoint:
    """Return the point with these overrides; a ConfigError names its line in a file of points."""
    try:
        return composing.point(overrides)
    except ConfigError as error:
        where = line_of(words, overrides)
        if where is None:
            raise
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error


def composer(session: Session, words: Sequence[Word], environ: Mapping[str, str]) -> Composer:
    """Return the composer for the points of these words."""
    swept = any(word.is_swept for word in words)
    movable = dict(_movable(session, words)) if swept else {}
    return Composer(session=session, environ=environ, movable=movable)


def _movable(session: Session, words: Sequence[Word]) -> Iterator[tuple[str, str]]:
    keys = [word.override.key_or_group for word in words]
    for index, word in enumerate(words):
        override, key = word.override, keys[index]
        others = (*keys[:index], *keys[index + 1 :])
        plain = override.type in _SETS and override.package is None
        if (
            word.is_swept
            and plain
            and not override.is_hydra_override()
            and not any(_related(key, other) for other in others)
            and word.is_plain
            and not session.has_group(key)
        ):
            yield override.get_key_element(), key


def _related(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _impossible(error: Exception) -> ConfigError:
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
        hint=f"{takes(key)} A number has to be finite, and fit into 64 bits."
        if "out of range" in rest
        else "the configuration reference has the type of each key",
    )
