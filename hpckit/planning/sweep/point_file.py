"""The points of a sweep in the text of a file: CSV, YAML or JSON lines. Pure.

It does not know what a key or a value means to Hydra.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import yaml

from hpckit.errors import ConfigError
from hpckit.model.counted import format_count
from hpckit.patterns import lazy_pattern
from hpckit.planning.sweep.points import MAX_POINTS
from hpckit.values import dataclass

EXAMPLES = (
    "CSV: a line of keys, then a line for each point; YAML: a list of mappings, such as "
    "`- {lr: 0.1, batch: 32}`; JSON lines: one object a line"
)
GIVEN = "points"
"""In place of the name of a file: the points that a program gave, as its parameter is called."""

_MOST = MAX_POINTS + 1
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN_VALUES = {"": None, "~": None, "null": None, "true": True, "false": False}
_NOT_FINITE = lazy_pattern(r"([-+]?)\.?(inf|nan)\Z", re.IGNORECASE)
_NUMBER_LIKE = lazy_pattern(r"[-+.]{0,2}[0-9][\w.:+-]*\Z", re.ASCII)
"""Numbers, times, dates, versions: what the command line has after `key=` as it is."""

_TAGS = "tag:yaml.org,2002:"
_TEXT = f"{_TAGS}str"
_ALIAS = lazy_pattern(r"alias\s.*", re.DOTALL)
_COLLECTIONS = frozenset({"tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"})


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as it would be typed on the command line after `key=`."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A point: its line in the file, from 1, and its values by key.

    In CSV each value is a Cell, elsewhere each number is; the others are what the file has: text,
    list, mapping and so on.
    """

    line: int
    values: Mapping[str, Any]


def parse_point_file(text: str, ending: str, name: str) -> tuple[Row, ...]:
    """Return the points in a file of this ending (`.csv`), at most one more than may be launched.

    `name` is that of the file, for messages. Raises ConfigError with file and line.
    """
    read = _READERS.get(ending.lower())
    if read is None:
        raise ConfigError(
            f"{name}: sweep.points reads files that end in {', '.join(_READERS)}", hint=EXAMPLES
        )
    rows = tuple(islice(read(text, name), _MOST))
    if not rows:
        raise ConfigError(f"{name} has no points", hint=EXAMPLES)
    return rows


def build_point_rows(points: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Return the points that a program gives, numbered from 1; raises ConfigError."""
    rows = tuple(_build_point_row(dict(point), number, GIVEN) for number, point in enumerate(points, start=1))
    if not rows:
        raise ConfigError("points is empty", hint="give a mapping of keys to values for each run")
    return rows


def format_line_position(name: str, line: int) -> str:
    """Return a line of a file as text, for the beginning of a message; `name` may be GIVEN."""
    return f"{GIVEN}[{line - 1}]" if name == GIVEN else f"{name}, line {line}"


def _parse_csv(text: str, name: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines = _read_csv_rows_with_line_numbers(reader, name)
    line, header = next(lines, (1, []))
    keys = [key.strip() for key in header]
    _check_csv_header(keys, format_line_position(name, line))
    for line, cells in lines:
        if len(cells) != len(keys):
            raise ConfigError(
                f"{format_line_position(name, line)} has {format_count(len(cells), 'value')}, and "
                f"the first line has {format_count(len(keys), 'key')}: {', '.join(keys)}",
                hint='put a value with a comma in double quotes: "[1,2]"; leave out a key of '
                "one point by leaving its place empty: 1,,3",
            )
        yield Row(
            line=line,
            # If there is nothing between two commas, the point does not set that key.
            values={key: Cell(cell.strip()) for key, cell in zip(keys, cells, strict=True) if cell.strip()},
        )


def _read_csv_rows_with_line_numbers(reader: Any, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows that are not empty, with the line on which each begins."""
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ConfigError(
                f"{format_line_position(name, line)} is not CSV: {error}", hint=EXAMPLES
            ) from error
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield line, cells


def _check_csv_header(keys: Sequence[str], where: str) -> None:
    empty = next((number for number, key in enumerate(keys, start=1) if not key), None)
    if empty is not None:
        raise ConfigError(f"{where}: column {empty} has no key", hint=EXAMPLES)
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise _build_duplicate_key_error(twice, where)
    if len(keys) == 1 and re.search(r"[;\t]", keys[0]):
        raise ConfigError(f"{where}: {keys[0]!r}: columns are separated by commas", hint=EXAMPLES)


def _parse_json_lines(text: str, name: str) -> Iterator[Row]:
    for line, record in enumerate(text.split("\n"), start=1):
        if not record.strip():
            continue
        where = format_line_position(name, line)
        try:
            values = json.loads(
                record,
                object_pairs_hook=partial(_pairs_to_unique_mapping, where=where),
                parse_int=Cell,
                parse_float=Cell,
            )
            # Refuses half a surrogate pair.
            json.dumps(values, ensure_ascii=False, default=str).encode()
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where} is not JSON: {error}", hint=EXAMPLES) from error
        yield _build_point_row(values, line, name)


def _parse_yaml(text: str, name: str) -> Iterator[Row]:
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except (yaml.YAMLError, RecursionError) as error:
        raise _build_yaml_error(error, name) from error
    if root is None:
        return
    if not isinstance(root, yaml.SequenceNode):
        raise ConfigError(f"{name} does not contain a list of points", hint=EXAMPLES)
    seen: set[int] = set()
    for node in root.value:
        line = node.start_mark.line + 1
        yield _build_point_row(_convert_yaml_node(node, name, seen), line, name)


def _build_yaml_error(error: Exception, name: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    where = name if mark is None else format_line_position(name, mark.line + 1)
    # The name of an alias may be a value that should have been quoted, and a secret.
    problem = _ALIAS.sub("alias", getattr(error, "problem", None) or "nested too deeply")
    return ConfigError(f"{where} is not YAML: {problem}", hint=EXAMPLES)


def _convert_yaml_node(node: Any, name: str, seen: set[int]) -> Any:
    where = format_line_position(name, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return node.value if _is_yaml_text(node, where) else _parse_yaml_scalar(node.value)
    if node.tag not in _COLLECTIONS:
        raise _build_yaml_tag_error(node, where)
    # An alias may refer to a list or mapping that contains it, or multiply its content endlessly.
    if id(node) in seen:
        raise ConfigError(
            f"{where}: write this list or mapping out; an alias (*) is not allowed", hint=EXAMPLES
        )
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return [_convert_yaml_node(item, name, seen) for item in node.value]
    pairs = [
        (_convert_yaml_node(key, name, seen), _convert_yaml_node(value, name, seen))
        for key, value in node.value
    ]
    return _pairs_to_unique_mapping(pairs, where)


def _is_yaml_text(node: Any, where: str) -> bool:
    """Whether a scalar is a text: quoted, or with the tag !!str; raises ConfigError for others."""
    implicit = yaml.SafeLoader("").resolve(  # type: ignore[no-untyped-call]
        yaml.ScalarNode, node.value, (not node.style, bool(node.style))
    )
    if node.tag == implicit:
        return bool(node.style)
    if node.tag != _TEXT:
        raise _build_yaml_tag_error(node, where)
    return True


def _build_yaml_tag_error(node: Any, where: str) -> ConfigError:
    known = node.tag.startswith(_TAGS)
    # A tag of one's own may be a value that should have been quoted, and a secret.
    tag = f"the tag !!{node.tag.removeprefix(_TAGS)}" if known else "a tag (!)"
    return ConfigError(f"{where}: {tag} has no meaning in points; !!str has", hint=EXAMPLES)


def _parse_yaml_scalar(text: str) -> Any:
    """Return the value of a plain scalar; what begins as a number stands for what is typed."""
    if text.lower() in _PLAIN_VALUES:
        return _PLAIN_VALUES[text.lower()]
    special = _NOT_FINITE.match(text)
    if special is not None:
        return float(special[1] + special[2])
    return Cell(text) if _NUMBER_LIKE.match(text) else text


def _pairs_to_unique_mapping(pairs: Sequence[tuple[Any, Any]], where: str) -> dict[str, Any]:
    """Return pairs as a mapping. Raises ConfigError if a key is not text or appears twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if not isinstance(key, str) or not key.strip():
            shown = key.text if isinstance(key, Cell) else repr(key)
            raise ConfigError(f"{where}: {shown} is not a key", hint=EXAMPLES)
        if key in found:
            raise _build_duplicate_key_error(key, where)
        found[key] = value
    return found


def _build_duplicate_key_error(key: str, where: str) -> ConfigError:
    return ConfigError(f"{where}: {key} appears twice", hint="a point has one value for each key")


def _build_point_row(values: object, line: int, name: str) -> Row:
    if not isinstance(values, dict) or not values:
        raise ConfigError(
            f"{format_line_position(name, line)}: a point is a mapping of keys to values", hint=EXAMPLES
        )
    return Row(line=line, values={key.strip(): value for key, value in values.items()})


_READERS: Mapping[str, Callable[[str, str], Iterator[Row]]] = {
    ".csv": _parse_csv,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".jsonl": _parse_json_lines,
}
