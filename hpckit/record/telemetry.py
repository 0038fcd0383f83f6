"""Reads what nodes measured: `telemetry-NODE.jsonl` and the older segments of an attempt.

A segment may be closed (renamed) or replaced by a coarser one while it is read: every record is
then read once, from either of the two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from hpckit.model.telemetry.json_form import decode_telemetry
from hpckit.model.telemetry.vocabulary import (
    GpuDevice,
    TelemetryRecord,
    TelemetrySegment,
    TelemetryTotal,
)
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import read_lines

_FIRST_RECORDS = 200
"""Devices are named at the beginning of a file, or as soon as the driver answers."""

_END_BYTES = 400_000
"""Rows of ten minutes of a node with 16 GPUs and as many ranks, and a total, are less."""


def telemetry_nodes(attempt: AttemptPaths) -> list[str]:
    """Return the nodes that measured something in an attempt, sorted; raises OSError."""
    pattern = attempt.telemetry("*").name
    before, behind = pattern.split("*")
    newest = attempt.folder.glob(pattern)
    names = {file.name.removeprefix(before).removesuffix(behind) for file in newest}
    older = attempt.old_telemetry
    names |= {folder.name for folder in older.iterdir()} if older.is_dir() else set()
    return sorted(names)


def closed_segments(attempt: AttemptPaths, node: str) -> list[Path]:
    """Return the files of a node's older telemetry, the oldest first."""
    return sorted((attempt.old_telemetry / node).glob("[0-9]*.jsonl"))


def read_segment(file: Path) -> Iterator[TelemetryRecord]:
    """Yield the records of one file, without what this version cannot read; raises OSError."""
    return _records(read_lines(file))


def segment_header(file: Path) -> TelemetrySegment | None:
    """Return what a file says of itself, None if it is missing or damaged."""
    try:
        first = next(read_segment(file), None)
    except OSError:
        return None
    return first if isinstance(first, TelemetrySegment) else None


def last_total(attempt: AttemptPaths, node: str) -> TelemetryTotal | None:
    """Return the latest total of a node in an attempt, from the end of its newest file.

    None if it has none yet; raises OSError. Long files are not read whole: a total is at most
    minutes old.
    """
    found = None
    for record in _end_of(attempt.telemetry(node)):
        if isinstance(record, TelemetryTotal):
            found = record
    return found


def telemetry_devices(attempt: AttemptPaths, node: str) -> tuple[GpuDevice, ...]:
    """Return the GPUs of a node, as the newest file of an attempt begins; raises OSError."""
    first = islice(read_segment(attempt.telemetry(node)), _FIRST_RECORDS)
    found = {record.uuid: record for record in first if isinstance(record, GpuDevice)}
    return tuple(found.values())


def _end_of(file: Path) -> Iterator[TelemetryRecord]:
    """Yield the records at the end of a file, and of all of it if it is short."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(size - _END_BYTES, 0))
            lines = opened.read().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines[1:] if size > _END_BYTES else lines:
        with suppress(ValueError):
            yield from _records([json.loads(line)])


def read_telemetry(attempt: AttemptPaths, node: str) -> Iterator[TelemetryRecord]:
    """Yield all records of a node in an attempt, the oldest first; raises OSError.

    Each segment begins with a `TelemetrySegment` and the devices of the node.
    """
    newest = list(read_segment(attempt.telemetry(node)))
    own = newest[0] if newest and isinstance(newest[0], TelemetrySegment) else None
    now_closed = own and attempt.telemetry_segment(node, own.start)
    for file in closed_segments(attempt, node):
        if file != now_closed:
            yield from read_segment(file)
    yield from newest


def _records(lines: Iterable[object]) -> Iterator[TelemetryRecord]:
    for line in lines:
        record = decode_telemetry(line) if isinstance(line, dict) else None
        if record is not None:
            yield record
