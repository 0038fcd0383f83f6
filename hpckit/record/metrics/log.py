"""The metrics of an attempt: rows that rank 0 appends, and next to them each name's last value.

No verb should read millions of rows to show a few values. The small file with the last values is a
cache. Rows that were added after it are read from where it ends. If it is missing or damaged, it is
rebuilt from all rows in one pass, a line at a time.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpckit.model.counted import format_count
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import (
    append_json_lines,
    open_regular_file,
    parse_json_line,
    read_json,
    read_regular_file,
    read_rows_with_offsets,
    write_text_atomically,
)
from hpckit.values import dataclass, field

VERSION = 3

_INTERVAL_S = 3.0
_SHARE = 200
"""Writing the last values takes at most one part in _SHARE of a rank's time."""

_WORTH_KEEPING = 4 << 20
"""From this many bytes of new rows, a reader saves the last values."""

_MOST_AT_START = 16 << 20
"""Most bytes of rows that a rank reads before its first line: some tenths of a second."""

_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
RUN_STEP = "run_step"
"""The step of the run in which a row was logged; only in rows whose `step` is another number."""
OWN_KEYS = ("step", "at", "round", RUN_STEP)
"""What hpckit itself writes into a row; all other keys are metrics."""


@dataclass(slots=True, kw_only=True)
class LastValues:
    """The last value of each name in the first `size` bytes of the rows.

    Each is an object: `value`, and the `step`, the time (`at`), the `round` and the `run_step` of its row.
    `round` is the latest one that has written: what a rank of an earlier one adds after it does not count.
    """

    size: int = 0
    round: int = 0
    values: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Take the next row into account."""
        step, at, number = row.get("step"), row.get("at"), row.get("round")
        if isinstance(number, int):
            if number < self.round:
                return
            self.round = number
        for name, value in row.items():
            if name not in OWN_KEYS:
                self.values[name] = {
                    "value": value,
                    "step": step,
                    "at": at,
                    "round": number,
                    RUN_STEP: row.get(RUN_STEP),
                }


@dataclass(slots=True, kw_only=True)
class MetricsLog:
    """Rank 0's writer: appends rows, and writes the last values every few seconds."""

    paths: AttemptPaths
    clock: Callable[[], float] = time.monotonic
    _last: LastValues | None = None
    _opened: bool = False
    _due_at: float = 0.0

    def append_rows(self, *rows: Mapping[str, Any]) -> None:
        """Append rows; raises OSError. Last values that cannot be written are ignored."""
        if not self._opened:
            self._last = _read_last_values(self.paths, most=_MOST_AT_START)
            self._opened = True
            atexit.register(self.write_last_values)
        size = append_json_lines(self.paths.metrics, *rows)
        if self._last is None:
            return
        for row in rows:
            self._last.add_row(row)
        self._last.size = size
        if self.clock() >= self._due_at:
            self.write_last_values()

    def write_last_values(self) -> None:
        """Write the last values now."""
        if self._last is None or not self._opened:
            return
        began = self.clock()
        _write_last_values(self.paths.last_metrics, self._last)
        ended = self.clock()
        self._due_at = ended + max(_INTERVAL_S, _SHARE * (ended - began))


def read_last_values(attempt: AttemptPaths) -> LastValues:
    """Return the last values of an attempt; empty if it logged nothing readable."""
    return _read_last_values(attempt) or LastValues()


def describe_unreadable_rows(attempt: AttemptPaths) -> str:
    """Return how many lines cannot be read, as text; empty if none, or if there is much to read.

    Such lines come from a script that writes Python literals. A torn line does not count.
    """
    try:
        if attempt.metrics.stat().st_size > _WORTH_KEEPING:
            return ""
        lines = read_regular_file(attempt.metrics).splitlines()
    except OSError:
        return ""
    cut = [line.startswith(b'{"') and not line.endswith(b"}") for line in lines]
    lost = [n for n, one in enumerate(lines) if not cut[n] and parse_json_line(one) is None]
    if not lost:
        return ""
    return (
        f"{format_count(len(lost), 'line')} of metrics.jsonl cannot be read, from line "
        f"{lost[0] + 1} "
        'on: each has to be one JSON object, such as {"step": 1, "loss": 0.5}'
    )


def read_metrics_file_size(attempt: AttemptPaths) -> int:
    """Return how many bytes of rows an attempt has; 0 without any. Raises OSError."""
    try:
        return attempt.metrics.stat().st_size
    except FileNotFoundError:
        return 0


def _read_last_values(attempt: AttemptPaths, *, most: int | None = None) -> LastValues | None:
    """Return the last values including newer rows; None if unreadable or there is too much to read.

    `most` is the number of bytes of newer rows to read at most.
    """
    try:
        rows = attempt.metrics.stat()
        last = _read_last_values_file(attempt, rows.st_size)
        behind = rows.st_size - last.size
        if most is not None and behind > most:
            return None
        for row, end in read_rows_with_offsets(attempt.metrics, start=last.size):
            last.add_row(row)
            last.size = end
    except FileNotFoundError:
        return LastValues()
    except OSError:
        return None
    if behind > _WORTH_KEEPING and rows.st_uid == os.geteuid():
        _write_last_values(attempt.last_metrics, last)
    return last


def _read_last_values_file(attempt: AttemptPaths, size: int) -> LastValues:
    """Return the content of the small file; empty if it cannot belong to these rows."""
    try:
        record = read_json(attempt.last_metrics)
        last = LastValues(size=record["size"], round=record["round"], values=record["values"])
        if record["v"] == VERSION and 0 < last.size <= size and _last_values_have_valid_types(last):
            return last if _ends_with_newline(attempt.metrics, last.size) else LastValues()
    except (OSError, *_UNREADABLE):
        pass
    return LastValues()


def _last_values_have_valid_types(last: LastValues) -> bool:
    known = type(last.size) is int and type(last.round) is int
    return known and all(value.keys() >= {"value", *OWN_KEYS} for value in last.values.values())


def _ends_with_newline(path: Path, size: int) -> bool:
    with open_regular_file(path) as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"


def _write_last_values(path: Path, last: LastValues) -> None:
    record = {"v": VERSION, "size": last.size, "round": last.round, "values": last.values}
    with suppress(OSError):
        write_text_atomically(path, json.dumps(record, separators=(",", ":")) + "\n", lasting=False)
