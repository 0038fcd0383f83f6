"""The points of a sweep, composed. It must not know what a configuration means.

Hydra needs tens of milliseconds for one composition, so that one is shared by all points that
differ only in plain values of keys of their own. Everything else (groups, mappings, lists, keys
set twice) is composed by Hydra for every point.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType

from hpckit.config.explain import load_config
from hpckit.config.overrides import parse
from hpckit.config.resolve import resolve
from hpckit.config.session import Session
from hpckit.config.shared_composition import SharedComposition
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import from_plain
from hpckit.model.plan import SweepPoint

_SETS = (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD)

_KEPT = 32
"""So many compositions are kept: the axes of a sweep vary one by one, the last one fastest."""

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)\Z", re.ASCII)
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?\Z", re.ASCII)
_WORD = re.compile(r"(?!(null|true|false|inf|nan)\Z)[a-z_][a-z0-9_]*\Z", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composer:
    """Composes the points of one sweep.

    `movable` are the keys that are set in a shared composition, by the position of their words.
    """

    session: Session
    environ: Mapping[str, str]
    movable: Mapping[int, str]
    shared: dict[tuple[str, ...], SharedComposition] = field(default_factory=dict)

    def point(self, overrides: Sequence[str]) -> SweepPoint:
        """Return the point with these overrides; raises ConfigError."""
        rest = tuple(word for index, word in enumerate(overrides) if index not in self.movable)
        shared = self.shared.get(rest)
        found = None if shared is None else shared.at(self._values(overrides))
        if found is None:
            found = self._composed(rest, overrides)
        config, settings = found
        return SweepPoint(overrides=tuple(overrides), config=config, settings=settings)

    def _composed(
        self, rest: tuple[str, ...], overrides: Sequence[str]
    ) -> tuple[dict[str, Any], LaunchConfig]:
        """Let Hydra compose, and keep for the next points what they can share."""
        config = load_config(self.session, overrides)
        values = resolve(config, self.environ)
        settings = from_plain(LaunchConfig, values)
        keys = tuple(self.movable.values())
        shared = SharedComposition.of(config, values, settings, keys) if keys else None
        if shared is not None:
            if len(self.shared) == _KEPT:
                del self.shared[next(iter(self.shared))]
            self.shared[rest] = shared
        return values, settings

    def _values(self, overrides: Sequence[str]) -> dict[str, Any]:
        return {key: self._value(overrides[index]) for index, key in self.movable.items()}

    def _value(self, word: str) -> Any:
        """Return the value of a `key=value`, for the plainest ones without Hydra's slow parser."""
        text = word.partition("=")[2]
        if _INTEGER.match(text):
            return int(text)
        if _FLOAT.match(text):
            return float(text)
        if _WORD.match(text):
            return text
        return parse([word], self.session.loader)[0].value()


def composer(session: Session, words: Sequence[Override], environ: Mapping[str, str]) -> Composer:
    """Return what composes the points of these words."""
    swept = any(word.is_sweep_override() for word in words)
    movable = dict(_movable(session, words)) if swept else {}
    return Composer(session=session, environ=environ, movable=movable)


def _movable(session: Session, words: Sequence[Override]) -> Iterator[tuple[int, str]]:
    groups = session.groups()
    for index, word in enumerate(words):
        others = [other.key_or_group for other in words if other is not word]
        plain = word.type in _SETS and word.package is None and word.key_or_group not in groups
        if (
            word.is_sweep_override()
            and plain
            and not word.is_hydra_override()
            and not any(_related(word.key_or_group, other) for other in others)
            and (word.is_interval_sweep() or all(map(_is_scalar, word.sweep_iterator())))
        ):
            yield index, word.key_or_group


def _related(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _is_scalar(value: object) -> bool:
    return not isinstance(value, list | dict)
