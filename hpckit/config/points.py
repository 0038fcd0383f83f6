"""Words of a sweep, and the points they make: axes, groups that advance together, files of points.

A word is an override of the command line, or a key of `sweep.points=FILE`, a column each.
Values are written in Hydra's grammar.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override, Quote, QuotedString

from hpckit.config.names import format_did_you_mean, suggest_nearest_names
from hpckit.config.overrides import (
    check_sweep_overrides,
    list_swept_values,
    parse_hydra_overrides,
    parse_simple_override_value,
)
from hpckit.errors import ConfigError
from hpckit.model.search import Sweep
from hpckit.planning.secrecy import mask_override
from hpckit.planning.sweep.point_file import Cell, Row, format_line_position, parse_point_file
from hpckit.planning.sweep.points import check_equal_lengths, combine_axis_values
from hpckit.values import dataclass

KEY = "sweep.points"

_SIMPLE = (bool, int, float, type(None))


def is_points_file_override(override: Override) -> bool:
    """Return whether an override names a file of points."""
    return str(override.key_or_group) == KEY and not override.is_delete()


def read_points_columns(override: Override, cwd: Path, loader: ConfigLoader) -> tuple[Word, ...]:
    """Return the keys that the points of the file set, in the order of the file.

    Raises ConfigError if the file cannot be read, or a value is not in the grammar.
    """
    name = override.value() if not override.is_sweep_override() else None
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{override.input_line}: sweep.points must be the name of one file",
            hint="for example sweep.points=points.csv",
        )
    rows = parse_point_file(_read_points_text(cwd / Path(name).expanduser(), name), Path(name).suffix, name)
    return build_points_columns(rows, name, loader)


def build_points_columns(rows: Sequence[Row], name: str, loader: ConfigLoader) -> tuple[Word, ...]:
    """Return the keys that these points set; `name` is what messages call their file."""
    return tuple(_Table(name=name, rows=rows, loader=loader).build_columns())


def refuse_points_in_config(sweep: Sweep) -> None:
    """Raise ConfigError if a configuration file sets sweep.points, which only an override can."""
    if sweep.points is not None:
        raise ConfigError(
            f"sweep.points is {sweep.points!r} in your configuration; it belongs on the command line",
            hint=f"set it to null there, and launch with sweep.points={sweep.points} -m",
        )


def refuse_doubly_set_keys(words: Sequence[Word]) -> None:
    """Raise ConfigError if a column sets a key that another word sets too."""
    others = {word.key_with_stage: word for word in words if word.column is None}
    for word in words:
        if word.column is not None and word.key_with_stage in others:
            line = others[word.key_with_stage].override.input_line
            raise ConfigError(
                f"{word.column.file} sets {word.key_with_stage}, and so does {line}",
                hint="remove one of the two",
            )


def _read_points_text(file: Path, name: str) -> str:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise ConfigError(f"sweep.points={name}: not a file", hint="name a file of points")
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"sweep.points={name} is not UTF-8: {error.reason} at byte {error.start}", hint="save it as UTF-8"
        ) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"sweep.points={name} cannot be read: {why}",
            hint=f"the path is relative to the current folder: {file}",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The points of a file, by their keys."""

    name: str
    rows: Sequence[Row]
    loader: ConfigLoader

    def build_columns(self) -> Iterator[Word]:
        lines = tuple(row.line for row in self.rows)
        for key in dict.fromkeys(key for row in self.rows for key in row.values):
            stage, dotted = self._split_stage_prefix(key)
            words = tuple(self._build_column_overrides(key, dotted))
            first = next(word for word in words if word is not None)
            values = (word.partition("=")[2].lstrip() for word in words if word is not None)
            scalars = not any(value[:1] in ("[", "{") for value in values)
            column = Column(file=self.name, lines=lines, words=words, scalars=scalars)
            yield Word(stage=stage, override=parse_hydra_overrides([first], self.loader)[0], column=column)

    def _split_stage_prefix(self, key: str) -> tuple[str | None, str]:
        if "=" in key:
            raise ConfigError(f"{self.name}: {key!r} is not a key", hint="write keys and values separately")
        stage, colon, rest = key.partition(":")
        return (stage, rest) if colon and stage.isidentifier() else (None, key)

    def _build_column_overrides(self, key: str, dotted: str) -> Iterator[str | None]:
        """Yield the word of each point; a repeated word is checked once."""
        known: dict[str, str] = {}
        for row in self.rows:
            if key not in row.values:
                yield None
                continue
            value = row.values[key]
            word = f"{dotted}={self._encode_value(row, value)}"
            if word not in known:
                self._check_single_valued_override(word, row, first=not known)
                known[word] = word
            yield known[word]

    def _encode_value(self, row: Row, value: Any) -> str:
        """Return a value as a word has it; raises ConfigError if Hydra's grammar has no way."""
        try:
            return encode_hydra_value(value)
        except ValueError as error:
            raise ConfigError(
                f"{format_line_position(self.name, row.line)}: {error}",
                hint="choose another name for the key, or set the dictionary in conf/",
            ) from error

    def _check_single_valued_override(self, word: str, row: Row, *, first: bool) -> None:
        """Raise ConfigError if a word is not an override with one value."""
        text = word.partition("=")[2]
        if not first and parse_simple_override_value(text) is not None:
            return
        where = format_line_position(self.name, row.line)
        shown = mask_override(word)
        try:
            (parsed,) = parse_hydra_overrides([word], self.loader)
        except ConfigError as error:
            if shown != word:
                raise _secret_value_error(where, shown, "it is not in Hydra's grammar") from error
            raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error
        if str(parsed.key_or_group).partition(".")[0] == "sweep":
            raise ConfigError(
                f"{where}: {shown}: a point cannot set how the sweep is done",
                hint="set keys that begin with sweep. on the command line",
            )
        if parsed.is_sweep_override():
            if shown != word:
                raise _secret_value_error(where, shown, "it has several values")
            raise ConfigError(
                f"{where}: {word} has several values; a point has one value for each key",
                hint=f'in CSV one text is "\'{text}\'" and one list "[{text}]", double quotes included',
            )


def _secret_value_error(where: str, shown: str, why: str) -> ConfigError:
    """Return the error for a value that looks like a secret, which no message quotes."""
    return ConfigError(
        f"{where}: {shown} is not a valid value of a point: {why}",
        hint="put a text with special characters in its own quotes, in CSV as \"'a, b [c'\"",
    )


def encode_hydra_value(value: Any) -> str:
    """Return a value in Hydra's grammar, which parses to the same value.

    Raises ValueError for a key of a dictionary that is read as another value, such as `nan`: no
    quotes are possible there.
    """
    if isinstance(value, Cell):
        return value.text
    if isinstance(value, str):
        if parse_simple_override_value(value) == value:
            return value
        return str(QuotedString(text=value, quote=Quote.single).with_quotes())
    if isinstance(value, _SIMPLE):
        return "null" if value is None else str(value).lower()
    if isinstance(value, Mapping):
        held = ",".join(
            f"{_encode_dictionary_key(key)}:{encode_hydra_value(one)}" for key, one in value.items()
        )
        return f"{{{held}}}"
    return f"[{','.join(map(encode_hydra_value, value))}]"


def _encode_dictionary_key(key: Any) -> str:
    text = encode_hydra_value(key)
    if isinstance(key, str) and text != key:
        raise ValueError(f"{key!r} cannot be a key of a dictionary in a point")
    return text


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
    def key_with_stage(self) -> str:
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
    def has_only_scalars(self) -> bool:
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

    def list_overrides_of_points(self, most: int | None = None) -> Sequence[str | None]:
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
        values = list_swept_values(override) if most is None else list_swept_values(override, most)
        return tuple(f"{override.get_key_element()}={value}" for value in values)


def overrides_of_first_point(words: Sequence[Word]) -> Listed:
    """Return the words of the first point; raises ConfigError if something has no values."""
    return tuple(word.list_overrides_of_points(1)[0] for word in words)


def expand_sweep_points(words: Sequence[Word], zipped: Sequence[Sequence[str]]) -> tuple[Listed, ...]:
    """Return the words of every point of the sweep; one point if nothing is swept.

    `zipped` are groups of keys that advance together, as do all columns of a file of points. Words
    are as the user typed them, except swept ones, which get the point's value. Raises ConfigError
    if something cannot be enumerated, or a group is not valid.
    """
    swept = any(word.is_swept for word in words)
    groups = _list_zip_groups(words, zipped) if swept else []
    axes = [word.list_overrides_of_points() for word in words]
    for group in groups:
        check_equal_lengths({words[one].key_with_stage: len(axes[one]) for one in group})
    columns = [number for number, word in enumerate(words) if word.column is not None]
    return combine_axis_values(axes, [*groups, *([columns] if columns else [])])


def drop_missing_overrides(listed: Sequence[str | None]) -> tuple[str, ...]:
    """Return the words that are not None."""
    return tuple(word for word in listed if word is not None)


def find_points_file_line(words: Sequence[Word], overrides: Sequence[str]) -> str | None:
    """Return the place of these overrides' point in the file of points; None without a file."""
    columns = [word.column for word in words if word.column is not None]
    given = set(overrides)
    for row in range(len(columns[0].words) if columns else 0):
        if all(column.words[row] is None or column.words[row] in given for column in columns):
            return format_line_position(columns[0].file, columns[0].lines[row])
    return None


def refuse_sweep_without_multirun(words: Sequence[Word], *, multirun: bool) -> None:
    """Raise ConfigError if something is swept without `multirun`, or has no values."""
    for word in words:
        if word.column is not None and not multirun:
            raise ConfigError(
                f"sweep.points={word.column.file} is a sweep, but this is a single run",
                hint="add -m (--multirun)",
            )
    check_sweep_overrides([word.override for word in words if word.column is None], multirun=multirun)


def _list_zip_groups(words: Sequence[Word], zipped: Sequence[Sequence[str]]) -> list[list[int]]:
    names = [word.key_with_stage for word in words if word.is_swept and word.column is None]
    seen: set[str] = set()
    groups = []
    for keys in zipped:
        if len(keys) < 2:  # noqa: PLR2004  # what advances alone is no group
            raise ConfigError(f"sweep.zip: [{', '.join(keys)}] is not a group", hint=_GROUP)
        for key in keys:
            if key in seen:
                raise ConfigError(f"sweep.zip names {key} twice", hint=_GROUP)
            seen.add(key)
            if names.count(key) != 1:
                raise _zip_key_error(key, names, words)
        groups.append([_find_swept_position(words, key) for key in keys])
    return groups


def _find_swept_position(words: Sequence[Word], key: str) -> int:
    (found,) = (number for number, word in enumerate(words) if word.key_with_stage == key and word.is_swept)
    override = words[found].override
    if getattr(override.value(), "shuffle", False):
        raise ConfigError(
            f"sweep.zip: {override.input_line} is shuffled, and keys of one group advance together",
            hint="list its values in the order that matches those of the other keys",
        )
    return found


def _zip_key_error(key: str, names: Sequence[str], words: Sequence[Word]) -> ConfigError:
    column = next((word.column for word in words if word.column and word.key_with_stage == key), None)
    if column is not None:
        return ConfigError(
            f"sweep.zip names {key}, which {column.file} sets: its points are a group already",
            hint=f"take {key} out of sweep.zip",
        )
    swept = f"the swept keys are {', '.join(names)}" if names else "nothing is swept here"
    what = "which is swept twice" if key in names else "which is not swept"
    return ConfigError(
        f"sweep.zip names {key}, {what}.{format_did_you_mean(suggest_nearest_names(key, names))}",
        hint=f"give {key} its values once, such as {key}=1,2; {swept}",
    )
