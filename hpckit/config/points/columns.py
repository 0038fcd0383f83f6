"""Reads the file of `sweep.points=FILE` and returns its words: a column for each key.

Values are written in Hydra's grammar.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override, Quote, QuotedString

from hpckit.config.overrides import parse, parse_plain_value
from hpckit.config.points.expansion import Column, Word
from hpckit.errors import ConfigError
from hpckit.model.launch import Sweep
from hpckit.planning.secrecy import masked_word
from hpckit.planning.sweep.point_file import Cell, Row, place, read_points
from hpckit.values import dataclass

KEY = "sweep.points"

_SIMPLE = (bool, int, float, type(None))


def is_points(override: Override) -> bool:
    """Return whether an override names a file of points."""
    return str(override.key_or_group) == KEY and not override.is_delete()


def read_columns(override: Override, cwd: Path, loader: ConfigLoader) -> tuple[Word, ...]:
    """Return the keys that the points of the file set, in the order of the file.

    Raises ConfigError if the file cannot be read, or a value is not in the grammar.
    """
    name = override.value() if not override.is_sweep_override() else None
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{override.input_line}: sweep.points is the name of one file",
            hint="for example sweep.points=points.csv",
        )
    rows = read_points(_text(cwd / Path(name).expanduser(), name), Path(name).suffix, name)
    table = _Table(name=name, rows=rows, loader=loader)
    return tuple(table.columns())


def check_no_points(sweep: Sweep) -> None:
    """Raise ConfigError if a configuration file sets sweep.points, which only an override can."""
    if sweep.points is not None:
        raise ConfigError(
            f"sweep.points is {sweep.points!r} in your configuration; it is a word of the command "
            "line",
            hint=f"set it to null there, and launch with sweep.points={sweep.points} -m",
        )


def check_unlike(words: Sequence[Word]) -> None:
    """Raise ConfigError if a column sets a key that another word sets too."""
    others = {word.name: word for word in words if word.column is None}
    for word in words:
        if word.column is not None and word.name in others:
            line = others[word.name].override.input_line
            raise ConfigError(
                f"{word.column.file} sets {word.name}, and so does {line}",
                hint="take one of the two out",
            )


def _text(file: Path, name: str) -> str:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise ConfigError(f"sweep.points={name}: this is no file", hint="name a file of points")
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"sweep.points={name} is not UTF-8: {error.reason} at byte {error.start}",
            hint="save it as UTF-8",
        ) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"sweep.points={name} cannot be read: {why}",
            hint=f"the file is looked for from where you stand: {file}",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The points of a file, by their keys."""

    name: str
    rows: Sequence[Row]
    loader: ConfigLoader

    def columns(self) -> Iterator[Word]:
        lines = tuple(row.line for row in self.rows)
        for key in dict.fromkeys(key for row in self.rows for key in row.values):
            stage, dotted = self._addressed(key)
            words = tuple(self._words(key, dotted))
            first = next(word for word in words if word is not None)
            column = Column(
                file=self.name, lines=lines, words=words, scalars=not any(map(_is_nested, words))
            )
            yield Word(stage=stage, override=parse([first], self.loader)[0], column=column)

    def _addressed(self, key: str) -> tuple[str | None, str]:
        """Return the stage that a key is for, None for all, and the key."""
        if "=" in key:
            raise ConfigError(
                f"{self.name}: {key!r} is no key", hint="keys and values stand apart in the file"
            )
        stage, colon, rest = key.partition(":")
        return (stage, rest) if colon and stage.isidentifier() else (None, key)

    def _words(self, key: str, dotted: str) -> Iterator[str | None]:
        """Yield the word of each point; a repeated word is checked once."""
        known: dict[str, str] = {}
        for row in self.rows:
            if key not in row.values:
                yield None
                continue
            value = row.values[key]
            word = f"{dotted}={self._text(row, value)}"
            if word not in known:
                self._check(word, row, first=not known)
                known[word] = word
            yield known[word]

    def _text(self, row: Row, value: Any) -> str:
        """Return a value as a word has it; raises ConfigError if Hydra's grammar has no way."""
        try:
            return written(value)
        except ValueError as error:
            raise ConfigError(
                f"{place(self.name, row.line)}: {error}",
                hint="choose another name for the key, or set the dictionary in conf/",
            ) from error

    def _check(self, word: str, row: Row, *, first: bool) -> None:
        """Raise ConfigError if a word is not an override with one value."""
        text = word.partition("=")[2]
        if not first and parse_plain_value(text) is not None:
            return
        where = place(self.name, row.line)
        shown = masked_word(word)
        try:
            (parsed,) = parse([word], self.loader)
        except ConfigError as error:
            if shown != word:
                raise _unquoted(where, shown, "it is not in Hydra's grammar") from error
            raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error
        if str(parsed.key_or_group).partition(".")[0] == "sweep":
            raise ConfigError(
                f"{where}: {shown}: a point cannot say how it is swept",
                hint="set what begins with sweep. on the command line",
            )
        if parsed.is_sweep_override():
            if shown != word:
                raise _unquoted(where, shown, "it is several values")
            raise ConfigError(
                f"{where}: {word} is several values; a point has one for each key",
                hint=f'in CSV one text is "\'{text}\'" and one list "[{text}]", double quotes '
                "included",
            )


def _unquoted(where: str, shown: str, why: str) -> ConfigError:
    """Return the error for a value that looks like a secret, which no message quotes."""
    return ConfigError(
        f"{where}: {shown} is no value of a point: {why}",
        hint="a text with special characters stands in quotes of its own, in CSV as \"'a, b [c'\"",
    )


def _is_nested(word: str | None) -> bool:
    return word is not None and word.partition("=")[2].lstrip()[:1] in ("[", "{")


def written(value: Any) -> str:
    """Return a value in Hydra's grammar, which parses to the same value.

    Raises ValueError for a key of a dictionary that is read as another value, such as `nan`: no
    quotes are possible there.
    """
    if isinstance(value, Cell):
        return value.text
    if isinstance(value, str):
        return value if parse_plain_value(value) == value else _quoted(value)
    if isinstance(value, _SIMPLE):
        return "null" if value is None else str(value).lower()
    if isinstance(value, Mapping):
        return f"{{{_joined(f'{_key(key)}:{written(one)}' for key, one in value.items())}}}"
    return f"[{_joined(map(written, value))}]"


def _key(key: Any) -> str:
    text = written(key)
    if isinstance(key, str) and text != key:
        raise ValueError(f"{key!r} cannot be a key of a dictionary in a point")
    return text


def _joined(texts: Iterable[str]) -> str:
    return ",".join(texts)


def _quoted(text: str) -> str:
    return str(QuotedString(text=text, quote=Quote.single).with_quotes())
