"""Words of a sweep: overrides of the command line, and keys that a file of points sets."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from hpckit.config.overrides import swept_values
from hpckit.errors import ConfigError
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A key that the points of a file set: one word for each point, None if it lacks the key.

    `file` is its name, `lines` are the lines of the points. `scalars` is true if no value is a list
    or a mapping.
    """

    file: str
    lines: tuple[int, ...]
    words: tuple[str | None, ...]
    scalars: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """An override; `stage` is the only stage it is for, None for all.

    For a `column` of a file of points, the override is the first one in the column.
    """

    stage: str | None = None
    override: Override
    column: Column | None = None

    @property
    def name(self) -> str:
        """The key, or `STAGE:KEY` for a word for one stage."""
        key = str(self.override.key_or_group)
        if self.override.package is not None:
            key += f"@{self.override.package}"
        return key if self.stage is None else f"{self.stage}:{key}"

    @property
    def is_swept(self) -> bool:
        """Whether it differs between points."""
        return self.column is not None or self.override.is_sweep_override()

    @property
    def is_plain(self) -> bool:
        """Whether no value of a swept word is a list or a mapping."""
        if self.column is not None:
            return self.column.scalars
        swept = self.override
        # A range has numbers only, and may have too many to look at each.
        return (
            swept.is_interval_sweep()
            or swept.is_range_sweep()
            or not any(isinstance(value, list | dict) for value in swept.sweep_iterator())
        )

    def axis(self, most: int | None = None) -> Sequence[str | None]:
        """Return the words for the points, at most `most`; raises ConfigError for interval()."""
        override = self.override
        if self.column is not None:
            return self.column.words[:most]
        if not override.is_sweep_override():
            return (str(override.input_line),)
        if not override.is_discrete_sweep():
            raise ConfigError(
                f"{override.input_line}: interval() has no list of values; it needs "
                "sweep.sampler=random or optuna.",
                hint="Add sweep.sampler=random sweep.samples=N, or use range(start,stop,step) or "
                "choice(a,b,c).",
            )
        values = swept_values(override) if most is None else swept_values(override, most)
        return tuple(f"{override.get_key_element()}={value}" for value in values)
