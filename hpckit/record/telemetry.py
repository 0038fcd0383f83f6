"""Reads what nodes measured: `telemetry-NODE.jsonl` and the older segments of an attempt.

A segment may be closed (renamed) or replaced by a coarser one while it is read: every record is
then read once, from either of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from hpckit.model.telemetry.json_form import decode_telemetry
from hpckit.model.telemetry.vocabulary import TelemetryRecord, TelemetrySegment
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import read_lines


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
