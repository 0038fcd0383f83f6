"""Words of a sweep, and the points they make: axes, groups that advance together, files of points.

A word is an override of the command line, or a key that a file of points sets.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from hpckit.config.names import nearest, question
from hpckit.config.overrides import check_swept, swept_values
from hpckit.errors import ConfigError
from hpckit.planning.sweep.point_file import place
from hpckit.planning.sweep.points import check_equal_lengths, expand
from hpckit.values import dataclass

Listed = tuple[str | None, ...]
"""The point's text for each word, in order; None if it has none."""

_GROUP = "a group is a list of two or more keys: sweep.zip=[[lr,batch]]"


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


def first_point(words: Sequence[Word]) -> Listed:
    """Return the words of the first point; raises ConfigError if something has no values."""
    return tuple(word.axis(1)[0] for word in words)


def list_points(words: Sequence[Word], zipped: Sequence[Sequence[str]]) -> tuple[Listed, ...]:
    """Return the words of every point of the sweep; one point if nothing is swept.

    `zipped` are groups of keys that advance together, as do all columns of a file of points. Words
    are as the user typed them, except swept ones, which get the point's value. Raises ConfigError
    if something cannot be enumerated, or a group is not valid.
    """
    swept = any(word.is_swept for word in words)
    groups = _groups(words, zipped) if swept else []
    axes = [word.axis() for word in words]
    for group in groups:
        check_equal_lengths({words[one].name: len(axes[one]) for one in group})
    columns = [number for number, word in enumerate(words) if word.column is not None]
    return expand(axes, [*groups, *([columns] if columns else [])])


def present(listed: Sequence[str | None]) -> tuple[str, ...]:
    """Return the words that are not None."""
    return tuple(word for word in listed if word is not None)


def line_of(words: Sequence[Word], overrides: Sequence[str]) -> str | None:
    """Return the place of these overrides' point in the file of points; None without a file."""
    columns = [word.column for word in words if word.column is not None]
    given = set(overrides)
    for row in range(len(columns[0].words) if columns else 0):
        if all(column.words[row] is None or column.words[row] in given for column in columns):
            return place(columns[0].file, columns[0].lines[row])
    return None


def check_multirun(words: Sequence[Word], *, multirun: bool) -> None:
    """Raise ConfigError if something is swept without `multirun`, or has no values."""
    for word in words:
        if word.column is not None and not multirun:
            raise ConfigError(
                f"sweep.points={word.column.file} is a sweep, and this is a single run",
                hint="add -m (--multirun)",
            )
    check_swept([word.override for word in words if word.column is None], multirun=multirun)


def _groups(words: Sequence[Word], zipped: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return the positions of the words in each group."""
    names = [word.name for word in words if word.is_swept and word.column is None]
    seen: set[str] = set()
    groups = []
    for keys in zipped:
        if len(keys) < 2:  # noqa: PLR2004  # what advances alone is no group
            raise ConfigError(f"sweep.zip: [{', '.join(keys)}] is no group", hint=_GROUP)
        for key in keys:
            if key in seen:
                raise ConfigError(f"sweep.zip names {key} twice", hint=_GROUP)
            seen.add(key)
            if names.count(key) != 1:
                raise _not_swept(key, names, words)
        groups.append([_place(words, key) for key in keys])
    return groups


def _place(words: Sequence[Word], key: str) -> int:
    (found,) = (number for number, word in enumerate(words) if word.name == key and word.is_swept)
    override = words[found].override
    if getattr(override.value(), "shuffle", False):
        raise ConfigError(
            f"sweep.zip: {override.input_line} is shuffled, and keys of one group advance together",
            hint="list its values in the order in which they belong to those of the other keys",
        )
    return found


def _not_swept(key: str, names: Sequence[str], words: Sequence[Word]) -> ConfigError:
    column = next((word.column for word in words if word.column and word.name == key), None)
    if column is not None:
        return ConfigError(
            f"sweep.zip names {key}, which {column.file} sets: its points are a group already",
            hint=f"take {key} out of sweep.zip",
        )
    swept = f"swept are {', '.join(names)}" if names else "nothing is swept here"
    what = "which is swept twice" if key in names else "which is not swept"
    return ConfigError(
        f"sweep.zip names {key}, {what}.{question(nearest(key, names))}",
        hint=f"give {key} its values once, such as {key}=1,2; {swept}",
    )
