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

from hpckit.model.counted import counted
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import (
    append_lines,
    open_plain,
    parsed_line,
    read_json,
    read_plain,
    read_rows,
    write_text,
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

    Each is an object: `value`, and the `step`, the time (`at`), the `round` and the `run_step` of
    its row. `round` is the latest one that has written: what a rank of an earlier one adds after it
    does not count.
    """

    size: int = 0
    round: int = 0
    values: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take(self, row: Mapping[str, Any]) -> None:
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

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Append rows; raises OSError. Last values that cannot be written are ignored."""
        if not self._opened:
            self._last = _read(self.paths, most=_MOST_AT_START)
            self._opened = True
            atexit.register(self.flush)
        size = append_lines(self.paths.metrics, *rows)
        if self._last is None:
            return
        for row in rows:
            self._last.take(row)
        self._last.size = size
        if self.clock() >= self._due_at:
            self.flush()

    def flush(self) -> None:
        """Write the last values now."""
        if self._last is None or not self._opened:
            return
        began = self.clock()
        _write(self.paths.last_metrics, self._last)
        ended = self.clock()
        self._due_at = ended + max(_INTERVAL_S, _SHARE * (ended - began))


def last_values(attempt: AttemptPaths) -> LastValues:
    """Return the last values of an attempt; empty if it logged nothing readable."""
    return _read(attempt) or LastValues()


def unreadable_rows(attempt: AttemptPaths) -> str:
    """Return how many lines no reader takes, in words; empty if none, or if there is much to read.

    Such as those of a script that writes Python's texts. A line cut off with its writer is none.
    """
    try:
        if attempt.metrics.stat().st_size > _WORTH_KEEPING:
            return ""
        lines = read_plain(attempt.metrics).splitlines()
    except OSError:
        return ""
    cut = [line.startswith(b'{"') and not line.endswith(b"}") for line in lines]
    lost = [n for n, one in enumerate(lines) if not cut[n] and parsed_line(one) is None]
    if not lost:
        return ""
    return (
        f"{counted(len(lost), 'line')} of metrics.jsonl cannot be read, from line {lost[0] + 1} "
        'on: each has to be one JSON object, such as {"step": 1, "loss": 0.5}'
    )


def metrics_size(attempt: AttemptPaths) -> int:
    """Return how many bytes of rows an attempt has; 0 without any. Raises OSError."""
    try:
        return attempt.metrics.stat().st_size
    except FileNotFoundError:
        return 0


def _read(attempt: AttemptPaths, *, most: int | None = None) -> LastValues | None:
    """Return the last values including newer rows; None if unreadable or there is too much to read.

    `most` is the number of bytes of newer rows to read at most.
    """
    try:
        rows = attempt.metrics.stat()
        last = _kept(attempt, rows.st_size)
        behind = rows.st_size - last.size
        if most is not None and behind > most:
            return None
        for row, end in read_rows(attempt.metrics, start=last.size):
            last.take(row)
            last.size = end
    except FileNotFoundError:
        return LastValues()
    except OSError:
        return None
    if behind > _WORTH_KEEPING and rows.st_uid == os.geteuid():
        _write(attempt.last_metrics, last)
    return last


def _kept(attempt: AttemptPaths, size: int) -> LastValues:
    """Return the content of the small file; empty if it cannot belong to these rows."""
    try:
        record = read_json(attempt.last_metrics)
        last = LastValues(size=record["size"], round=record["round"], values=record["values"])
        if record["v"] == VERSION and 0 < last.size <= size and _is_whole(last):
            return last if _ends_line(attempt.metrics, last.size) else LastValues()
    except (OSError, *_UNREADABLE):
        pass
    return LastValues()


def _is_whole(last: LastValues) -> bool:
    """Return whether all of it has the types that this version writes."""
    known = type(last.size) is int and type(last.round) is int
    return known and all(value.keys() >= {"value", *OWN_KEYS} for value in last.values.values())


def _ends_line(path: Path, size: int) -> bool:
    with open_plain(path) as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"


def _write(path: Path, last: LastValues) -> None:
    record = {"v": VERSION, "size": last.size, "round": last.round, "values": last.values}
    with suppress(OSError):
        write_text(path, json.dumps(record, separators=(",", ":")) + "\n", lasting=False)
