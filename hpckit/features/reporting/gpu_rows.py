"""Reads some rows of what a node measured, evenly over time: enough for a chart of many runs.

Files are not read whole: what this costs depends on how many rows are asked for, not on how long a
run was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from hpckit.model.telemetry.json_form import decode_telemetry
from hpckit.model.telemetry.vocabulary import GpuGauge, TelemetryRow
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import open_plain, parsed_line
from hpckit.record.telemetry import NO_ROW, closed_segments, lines_backwards
from hpckit.values import replace

_SHORTEST_ROW = 1000
"""Bytes. Files with fewer bytes for each row that is asked for are read whole."""

_LONGEST_ROW = 1_000_000

_LEAST = 2
"""Rows of a file: the first stands for all up to the last."""


def some_gpu_rows(
    attempt: AttemptPaths, node: str, gauges: frozenset[GpuGauge], *, most: int
) -> Iterator[TelemetryRow]:
    """Yield about `most` rows of a node in an attempt, the oldest first; raises OSError.

    They have GPUs only, with these gauges and the reasons of their clocks. Each lasts until the
    next one of its file begins, as it stands for those between them.
    """
    files = [*closed_segments(attempt, node), attempt.telemetry(node)]
    step = -(-len(files) * _LEAST // max(most, _LEAST))
    chosen = files[::-1][::step][::-1]
    for file in chosen:
        yield from _stretched(_rows_of(file, gauges, max(most // len(chosen), _LEAST)))


def _stretched(rows: Iterator[TelemetryRow]) -> Iterator[TelemetryRow]:
    held: TelemetryRow | None = None
    for row in rows:
        if held is not None:
            # The first row of an attempt spans no time, and a clock may be set.
            until = row.start if held.start < held.end <= row.start else held.end
            yield replace(held, end=until)
        held = row
    if held is not None:
        yield held


def _rows_of(file: Path, gauges: frozenset[GpuGauge], most: int) -> Iterator[TelemetryRow]:
    with suppress(FileNotFoundError), open_plain(file) as opened:
        for line in _some_lines(opened, most):
            row = _decoded(line, gauges)
            if row is not None:
                yield row


def _some_lines(opened: BinaryIO, most: int) -> Iterator[bytes]:
    """Yield lines of rows: all of a short file, else those at places of equal distance."""
    size = opened.seek(0, os.SEEK_END)
    if size <= most * _SHORTEST_ROW:
        opened.seek(0)
        yield from filter(_may_be_row, opened)
        return
    last = next(filter(_may_be_row, lines_backwards(opened)), b"")
    reached = 0
    for number in range(most - 1):
        place = size * number // (most - 1)
        if place < reached:
            continue
        opened.seek(max(place - 1, 0))
        if place:
            opened.readline(_LONGEST_ROW)  # the rest of a line, or the end of the one before
        line = next(filter(_may_be_row, iter(lambda: opened.readline(_LONGEST_ROW), b"")), b"")
        reached = opened.tell()
        if line.rstrip(b"\n") == last:
            break
        yield line
    yield last


def _may_be_row(line: bytes) -> bool:
    return len(line) > 1 and not line.startswith(NO_ROW)


def _decoded(line: bytes, gauges: frozenset[GpuGauge]) -> TelemetryRow | None:
    plain = parsed_line(line)
    if plain is None or plain.get("kind") != "row":
        return None
    record = decode_telemetry({**_ends(plain), "gpus": _only(plain.get("gpus"), gauges)})
    return record if isinstance(record, TelemetryRow) else None


def _ends(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain.get(name) for name in ("kind", "start", "end")}


def _only(gpus: object, gauges: frozenset[GpuGauge]) -> object:
    """Return the GPUs of a row with these gauges and no counters: decoding is most of the cost."""
    if not isinstance(gpus, dict) or not isinstance(gpus.get("gauges"), dict):
        return None
    kept = {name: values for name, values in gpus["gauges"].items() if name in gauges}
    return {**gpus, "gauges": kept, "counters": {}}
