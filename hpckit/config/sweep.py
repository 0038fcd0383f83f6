"""The points of a sweep, composed. It must not know what a configuration means.

Hydra needs tens of milliseconds for one composition, so that one is shared by all points that
differ only in plain values of keys of their own: these are set in it one point after the other,
which gives what Hydra would have given. Everything else (groups, mappings, lists, keys set
twice) is composed by Hydra for every point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpckit.config.explain import load
from hpckit.config.overrides import parse
from hpckit.config.session import Session

_SETS = (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composer:
    """Composes the points of one sweep; `movable` are the positions of words set in place."""

    session: Session
    movable: tuple[int, ...]
    shared: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)

    def load(self, point: Sequence[str]) -> DictConfig:
        """Return the point's configuration, good until the next call; raises ConfigError."""
        rest = tuple(word for index, word in enumerate(point) if index not in self.movable)
        config = self.shared.get(rest)
        if config is not None and self._move(config, [point[index] for index in self.movable]):
            return config
        config = load(self.session, point)
        if self.movable:
            self.shared[rest] = config
        return config

    def _move(self, config: DictConfig, words: Sequence[str]) -> bool:
        """Set every movable word; False where a value is refused, which Hydra then explains."""
        try:
            for override in parse(words, self.session.loader):
                OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
        except OmegaConfBaseException:
            return False
        return True


def composer(session: Session, words: Sequence[Override]) -> Composer:
    """Return what composes the points of these words."""
    swept = any(word.is_sweep_override() for word in words)
    movable = tuple(_movable(session, words)) if swept else ()
    return Composer(session=session, movable=movable)


def _movable(session: Session, words: Sequence[Override]) -> Iterator[int]:
    groups = session.groups()
    for index, word in enumerate(words):
        others = [other.key_or_group for other in words if other is not word]
        plain = word.type in _SETS and word.package is None and word.key_or_group not in groups
        if (
            word.is_sweep_override()
            and plain
            and not word.is_hydra_override()
            and not any(_related(word.key_or_group, other) for other in others)
            and all(_is_scalar(value) for value in word.sweep_iterator())
        ):
            yield index


def _related(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _is_scalar(value: object) -> bool:
    return not isinstance(value, list | dict)
