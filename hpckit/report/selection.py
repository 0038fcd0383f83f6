"""Which runs and launches are shown, in what order, and the overrides that tell them apart. Pure.

Filters and sort keys mean the same in every verb.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

from hpckit.errors import UsageError
from hpckit.model.states import RunState
from hpckit.patterns import lazy_pattern
from hpckit.report.escape import shorten_text
from hpckit.report.rows import LaunchHead, RunRow
from hpckit.values import dataclass, field, replace

T = TypeVar("T")

FAILED = (RunState.failed, RunState.interrupted, RunState.unknown)
"""The states of `--failed`: ended, but not successfully. `resume` would submit these again."""

_GLOB = frozenset("*?[")
_NUMBER = lazy_pattern(r"[+-]?((0|[1-9](_?\d)*)(\.(\d(_?\d)*)?)?|\.\d(_?\d)*)([eE][+-]?\d+)?")
"""A number in Hydra's syntax, but for nan and inf, which JSON does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter for runs: by one of `states`, and by matching overrides; an empty part takes all.

    `overrides` has a tuple of globs for each key; one of them has to match its value.
    """

    states: frozenset[RunState] = frozenset()
    overrides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def takes_all_runs(self) -> bool:
        """Whether it takes every run."""
        return not self.states and not self.overrides

    def matches_run(self, state: RunState, overrides: Iterable[str]) -> bool:
        """Whether the filter takes a run in this state, with these overrides."""
        if self.states and state not in self.states:
            return False
        if not self.overrides:
            return True
        given = parse_overrides(overrides)
        return all(
            any(
                _matches_glob_or_number(value, glob)
                for value in _find_values_of_override_key(given, key)
                for glob in globs
            )
            for key, globs in self.overrides.items()
        )


def find_unknown_filter_keys(wanted: Filter, overrides: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return the keys of a filter that no run sets; none if there is no run."""
    runs = [parse_overrides(override) for override in overrides]
    if not runs:
        return ()
    return tuple(
        key for key in wanted.overrides if not any(_find_values_of_override_key(run, key) for run in runs)
    )


def _find_values_of_override_key(given: Mapping[str, str], key: str) -> list[str]:
    """Return the values of a key, or of keys that end in it: `lr` is also `params.lr`."""
    if key in given:
        return [given[key]]
    return [value for name, value in given.items() if name.endswith(f".{key}")]


def parse_run_filter(
    states: Iterable[str] = (), overrides: Iterable[str] = (), *, failed: bool = False
) -> Filter:
    """Return the filter of words such as `failed,running` and `lr=0.*`.

    Raises UsageError for an unknown state, or an override without key or `=`.
    """
    wanted = {_parse_state(word) for words in states for word in words.split(",")}
    globs: dict[str, tuple[str, ...]] = {}
    for words in overrides:
        key, equals, glob = words.lstrip("+").partition("=")
        if not key or not equals:
            raise UsageError(
                f"--override is {words!r}; it must be KEY=VALUE; VALUE may be a glob",
                hint="for example --override 'lr=0.*', or lr=* for runs that set lr at all",
            )
        globs[key] = (*globs.get(key, ()), glob)
    return Filter(states=frozenset(wanted | set(FAILED if failed else ())), overrides=globs)


def _parse_state(word: str) -> RunState:
    if word not in RunState.__members__:
        raise UsageError(
            f"--state: {word!r} is not a state; states are {', '.join(RunState)}",
            hint="several are separated by commas: --state failed,interrupted",
        )
    return RunState(word)


def _matches_glob_or_number(value: str, glob: str) -> bool:
    if value == glob or fnmatchcase(value, glob):
        return True
    if _GLOB & set(glob):
        return False
    try:
        return float(value) == float(glob)
    except ValueError:
        return False


def parse_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """Return overrides in Hydra's syntax by key: `+lr=0.1` is lr 0.1, `~opt` is opt ~."""
    return dict(map(_split_override, overrides))


def _split_override(override: str) -> tuple[str, str]:
    if override.startswith("~"):
        return override[1:].partition("=")[0], "~"
    key, _, value = override.lstrip("+").partition("=")
    return key, value


_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
_PARTS = lazy_pattern(
    r"""\s*( '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | [][{},]
    | (?: \\(?:.|\Z) | \$\{[^{}]*\} | [^][{}(),'"\\] )+ | . )""",
    re.DOTALL | re.VERBOSE,
)
"""A quoted text, a sign, an unquoted text, or what belongs to none of these."""

_ESCAPED = lazy_pattern(r"(?<!\\)(\\*)\1\\\$\{")  # an odd number of backslashes


def parse_override_value(text: str) -> Any:
    """Return a value of Hydra's syntax as it has it; the text if it is no plain value.

    That is a text without its quotes, a number, boolean or null, or a list or mapping of these. Not
    by Hydra's parser: its import would take longer than all else of `hpckit results`.
    """
    parts = deque(_PARTS.findall(text.lstrip()))
    try:
        value = _parse_value(parts)
    except (IndexError, ValueError, RecursionError):
        return text
    return text if parts and "".join(parts).strip() else value


def parse_override_values(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as the runs have them; a variable of the environment is a text, an escape is undone."""

    def parse(key: str, text: Any) -> Any:
        value = parse_override_value(text) if isinstance(text, str) else text
        value = _ESCAPED.sub(r"\1${", value) if isinstance(value, str) else value
        return text if key.startswith("env.") and isinstance(value, int | float) else value

    return {key: parse(key, text) for key, text in overrides.items()}


def _parse_value(parts: deque[str]) -> Any:
    """Take a value from the parts of a text; raises ValueError or IndexError if there is none."""
    first = parts.popleft()
    if first[0] in "'\"":
        # Backslashes count as such, but before a quote and at the end.
        halved = rf"(\\*)\1(?:\\({first[0]})|\Z)"
        return re.sub(halved, r"\1\2", first[1:-1])
    if first in "[{":
        return _parse_list_or_mapping(parts, named=first == "{")
    if first in "]}(),":
        raise ValueError
    return _parse_unquoted_value(re.sub(r"(?<!\\)\s+\Z", "", first))


def _parse_list_or_mapping(parts: deque[str], *, named: bool) -> Any:
    """Take a list or a mapping whose bracket is taken already."""
    end, found = "}" if named else "]", []
    sign = parts[0]
    while sign != end:
        key = ""
        if named:
            key, colon, rest = parts.popleft().partition(":")
            if not colon or key[:1] in "'\"":
                raise ValueError
            parts.extendleft([rest.lstrip()] if rest.strip() else [])
        found.append((key.strip(), _parse_value(parts)))
        sign = parts.popleft()
        if sign not in (",", end):
            raise ValueError
    if not found:
        parts.popleft()
    return dict(found) if named else [value for _, value in found]


def _parse_unquoted_value(text: str) -> bool | float | str | None:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not text.isascii() or not _NUMBER.fullmatch(text):
        return re.sub(r"\\([\\()\[\]{}:=,\s])", r"\1", text)
    value = float(text)
    if not math.isfinite(value):
        return text
    return value if {".", "e", "E"} & {*text} else int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortKey:
    """A column to sort by."""

    column: str
    descending: bool = False


def parse_sort_key(text: str, *, descending: bool = False) -> SortKey:
    """Return the sort key for `loss`, or `-loss` (largest first)."""
    return SortKey(column=text.removeprefix("-"), descending=descending or text.startswith("-"))


def sort_with_missing_last(items: Iterable[T], value_of: Callable[[T], Any], *, descending: bool) -> list[T]:
    """Return items sorted by a value; NaN and those without one come last, in either order."""
    valued = [(value_of(item), item) for item in items]
    ranked = [(numbers_first_sort_key(value), item) for value, item in valued if value is not None]
    numbers = [pair for pair in ranked if pair[0] != NAN_RANK]
    numbers.sort(key=lambda pair: pair[0], reverse=descending)
    last = [pair for pair in ranked if pair[0] == NAN_RANK]
    return [item for _, item in numbers + last] + [item for value, item in valued if value is None]


NAN_RANK: Final = (1, 0.0, "nan")


def numbers_first_sort_key(item: Any) -> tuple[int, float, str]:
    """Return a key that orders numbers (also as text) by size before other text."""
    try:
        number = float(item)
    except (TypeError, ValueError):
        return (1, 0.0, str(item))
    except OverflowError:  # an integer beyond all floats
        number = math.inf if item > 0 else -math.inf
    # NaN compares false with everything: it is sorted after all numbers.
    return NAN_RANK if math.isnan(number) else (0, number, "")


def resolve_sort_column(key: SortKey, columns: Sequence[str], what: str) -> SortKey:
    """Return the key with the column that it means: `lr` is also `params.lr`, if no other is.

    Raises UsageError with the known columns if there is none.
    """
    if key.column in columns:
        return key
    ends = [column for column in columns if column.endswith(f".{key.column}")]
    if len(ends) != 1:
        raise UsageError(
            f"{what} have no column {key.column!r}; they have {', '.join(columns)}",
            hint="give --sort one of these; -NAME puts the largest first",
        )
    return replace(key, column=ends[0])


_OWN = ("index", "state", "step", "time", "attempt")


def sort_rows(rows: Sequence[RunRow], key: SortKey, now: datetime) -> list[RunRow]:
    """Return rows sorted by a built-in column, an override or a metric.

    Raises UsageError for an unknown column.
    """
    given = {row.index: parse_overrides(row.overrides) for row in rows}
    names = [*_OWN, *(name for row in given.values() for name in row)]
    names += [name for row in rows for name in row.metrics]
    key = resolve_sort_column(key, tuple(dict.fromkeys(names)), "runs")

    def value(row: RunRow) -> Any:
        elapsed = row.elapsed(now)
        own = {"index": row.index, "state": row.state, "step": row.step, "attempt": row.attempt}
        own["time"] = None if elapsed is None else elapsed.total_seconds()
        return {**row.metrics, **given[row.index], **own}.get(key.column)

    return sort_with_missing_last(rows, value, descending=key.descending)


CELL_WIDTH = 60
_KEY_WIDTH = 10
_LEAST_VALUE = 8


def find_common_overrides(sweep: Iterable[Iterable[str]], swept: Sequence[str] = ()) -> frozenset[str]:
    """Return the overrides that all these runs have, but not those of `swept` keys."""
    runs = [*map(frozenset[str], sweep)]
    common = frozenset.intersection(*runs) if runs else frozenset()
    return frozenset(word for word in common if _split_override(word)[0] not in swept)


def format_override_cells(runs: Iterable[Iterable[str]], common: frozenset[str]) -> list[str]:
    """Return a cell for each run: its overrides without those in `common`, keys shortened."""
    given = [parse_overrides(word for word in words if word not in common) for words in runs]
    # A key is shown by its last part, unless another key ends with the same part.
    lasts = {key: key.rpartition(".")[2] for row in given for key in row}
    counts = Counter(lasts.values())
    names = {key: last if counts[last] == 1 else key for key, last in lasts.items()}
    return [_format_override_cell({names[key]: value for key, value in row.items()}) for row in given]


def _format_override_cell(given: Mapping[str, str]) -> str:
    """Return `lr=0.1 seed=2`; if too long, first with shorter keys, then with shorter values."""
    words = [f"{key}={value}" for key, value in given.items()]
    if len(" ".join(words)) <= CELL_WIDTH:
        return " ".join(words)
    keys = [shorten_text(key, _KEY_WIDTH) for key in given]
    taken = sum(len(key) + 2 for key in keys) - 1
    room = max((CELL_WIDTH - taken) // len(keys), _LEAST_VALUE)
    words = [f"{key}={shorten_text(value, room)}" for key, value in zip(keys, given.values(), strict=True)]
    return shorten_text(" ".join(words), CELL_WIDTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """A launch, its runs by state, and the metrics of its selected runs."""

    head: LaunchHead
    counts: Mapping[RunState, int]
    metrics: tuple[Mapping[str, Any], ...] = ()


_OF_LAUNCHES = ("created", "name", "runs", *RunState.__members__)


def sort_launches(lines: Sequence[LaunchLine], key: SortKey) -> list[LaunchLine]:
    """Return launches sorted by a column; for a metric, the smallest value of each launch counts.

    In descending order the largest value counts. Raises UsageError for an unknown column.
    """
    names = (name for line in lines for metric in line.metrics for name in metric)
    key = resolve_sort_column(key, (*_OF_LAUNCHES, *dict.fromkeys(names)), "launches")
    return sort_with_missing_last(
        lines, lambda line: _find_launch_sort_value(line, key), descending=key.descending
    )


def _find_launch_sort_value(line: LaunchLine, key: SortKey) -> Any:
    if key.column in RunState.__members__:
        return line.counts.get(RunState(key.column), 0)
    own = {"created": line.head.created_at.timestamp(), "name": line.head.name}
    own["runs"] = sum(line.counts.values())
    return own[key.column] if key.column in own else find_sort_metric_value(line, key)


def find_sort_metric_value(line: LaunchLine, key: SortKey | None) -> Any:
    """Return the value of the metric that a launch is sorted by, None without such a metric."""
    if key is None or key.column in _OF_LAUNCHES:
        return None
    found = (metric.get(key.column) for metric in line.metrics)
    return next(iter(sort_with_missing_last(found, lambda value: value, descending=key.descending)), None)
