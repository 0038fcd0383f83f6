"""Reads what nodes measured: `telemetry-NODE.jsonl` and the older segments of an attempt.

A segment may be closed (renamed) or replaced by a coarser one while it is read: every record is
then read once, from either of the two.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from hpckit.model.telemetry.json_form import decode_telemetry
from hpckit.model.telemetry.vocabulary import (
    GpuDevice,
    TelemetryRecord,
    TelemetryRow,
    TelemetrySegment,
    TelemetryTotal,
)
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import open_regular_file, parse_json_line, read_json_lines
from hpckit.values import dataclass, replace

_CLOSED = "[0-9]*.jsonl"
"""What closed segments of a node are called: by when they begin."""

_HEAD_BYTES = 200_000
"""Devices are named at the beginning of a file, or as soon as the driver answers. Devices that are
named later stand again before each total."""

_BLOCK_BYTES = 100_000
_MOST_END_BYTES = 4_000_000
"""Rows of ten minutes of a node with 16 GPUs and as many ranks, and a total, are a tenth of it."""

_MOST_ROWS = 100
"""Rows behind the last total that are read: a sampler writes a total every ten."""

_ROW = b'{"v":1,"kind":"row",'
_EVENT, _SEGMENT = b'{"v":1,"kind":"event",', b'{"v":1,"kind":"segment",'
_PASSED = (_ROW, _EVENT, _SEGMENT)
"""How lines begin that are neither totals nor devices, as this version writes them."""

NO_ROW = (_EVENT, _SEGMENT, b'{"v":1,"kind":"total",', b'{"v":1,"kind":"device",')
"""How lines begin that are no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestTelemetry:
    """The latest total of a node in an attempt, None if it has none yet, and its GPUs.

    `rows` were written after that total, the oldest first: it has yet to be told of them, or its
    sampler was killed. `before` is the row before these, from which their counters count.
    """

    total: TelemetryTotal | None
    devices: tuple[GpuDevice, ...]
    rows: tuple[TelemetryRow, ...] = ()
    before: TelemetryRow | None = None


def list_telemetry_nodes(attempt: AttemptPaths) -> list[str]:
    """Return the nodes that measured something in an attempt, sorted; raises OSError."""
    pattern = attempt.newest_telemetry_file("*").name
    before, behind = pattern.split("*")
    newest = attempt.folder.glob(pattern)
    names = {file.name.removeprefix(before).removesuffix(behind) for file in newest}
    older = attempt.old_telemetry
    names |= {folder.name for folder in older.iterdir()} if older.is_dir() else set()
    return sorted(names)


def list_closed_segments(attempt: AttemptPaths, node: str) -> list[Path]:
    """Return the files of a node's older telemetry, the oldest first."""
    return sorted((attempt.old_telemetry / node).glob(_CLOSED))


def list_later_segments(file: Path) -> list[Path]:
    """Return the closed files that follow one of the same node and attempt, the newest first."""
    return sorted((path for path in file.parent.glob(_CLOSED) if path.name > file.name), reverse=True)


def read_telemetry_segment(file: Path) -> Iterator[TelemetryRecord]:
    """Yield the records of one file, without what this version cannot read; raises OSError."""
    return (record for record in map(decode_telemetry, read_json_lines(file)) if record is not None)


def read_segment_header(file: Path) -> TelemetrySegment | None:
    """Return what a file says of itself, None if it is missing or damaged."""
    try:
        first = next(read_telemetry_segment(file), None)
    except OSError:
        return None
    return first if isinstance(first, TelemetrySegment) else None


def read_latest_telemetry(attempt: AttemptPaths, node: str) -> LatestTelemetry:
    """Return the latest total of a node in an attempt, and the node's GPUs; raises OSError.

    Usually they are in the newest file. If that has no total, as it has just begun or was closed by
    a later attempt, they are looked for in the closed ones. No file is read whole.
    """
    found, devices = LatestTelemetry(total=None, devices=()), dict[str, GpuDevice]()
    for file in _list_telemetry_newest_first(attempt, node):
        end = read_latest_telemetry_of_segment(file)
        if found.total is None:
            found = replace(end, rows=(*end.rows, *found.rows))
        devices = {device.uuid: device for device in end.devices} | devices
        if found.total is not None and (devices or not found.total.row.gpus):
            break
    return replace(found, devices=tuple(devices.values()))


def _list_telemetry_newest_first(attempt: AttemptPaths, node: str) -> Iterator[Path]:
    yield attempt.newest_telemetry_file(node)
    yield from reversed(list_closed_segments(attempt, node))


def read_latest_telemetry_of_segment(file: Path) -> LatestTelemetry:
    """Return the end of one file, with the devices at its beginning as well; raises OSError."""
    with suppress(FileNotFoundError), open_regular_file(file) as opened:
        end = _parse_latest_telemetry(read_lines_backwards(opened))
        first, devices = _read_devices_and_carried_total(opened)
        devices |= {device.uuid: device for device in end.devices}
        return replace(end, total=end.total or first, devices=tuple(devices.values()))
    return LatestTelemetry(total=None, devices=())


def _parse_latest_telemetry(lines: Iterable[bytes]) -> LatestTelemetry:
    """Return what comes before the total that is first in lines from the end, and around it."""
    total: TelemetryTotal | None = None
    before: TelemetryRow | None = None
    devices, rows = dict[str, GpuDevice](), list[TelemetryRow]()
    for line in lines:
        if line.startswith(_ROW):
            if total is not None:
                before = _parse_telemetry_row(line) if rows else None
                break
            row = _parse_telemetry_row(line) if len(rows) < _MOST_ROWS else None
            rows += [] if row is None else [row]
            continue
        record = _parse_total_or_device(line)
        if isinstance(record, GpuDevice):
            devices.setdefault(record.uuid, record)
        elif total is None and isinstance(record, TelemetryTotal):
            total = record
    return LatestTelemetry(
        total=total, devices=tuple(devices.values()), rows=tuple(rows[::-1]), before=before
    )


def _parse_telemetry_row(line: bytes) -> TelemetryRow | None:
    plain = parse_json_line(line)
    record = None if plain is None else decode_telemetry(plain)
    return record if isinstance(record, TelemetryRow) else None


def _read_devices_and_carried_total(opened: BinaryIO) -> tuple[TelemetryTotal | None, dict[str, GpuDevice]]:
    """Return what a file begins with: its devices, and the latest total of the file before."""
    total, devices = None, dict[str, GpuDevice]()
    opened.seek(0)
    while opened.tell() < _HEAD_BYTES and (line := opened.readline(_HEAD_BYTES)):
        record = _parse_total_or_device(line)
        if isinstance(record, GpuDevice):
            devices[record.uuid] = record
        elif isinstance(record, TelemetryTotal):
            total = record
        elif devices and line.startswith(_ROW):
            break
    return total, devices


def read_lines_backwards(opened: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file from its end; of a long file the last megabytes."""
    size = end = opened.seek(0, os.SEEK_END)
    rest = b""
    while end > max(size - _MOST_END_BYTES, 0):
        begin = max(end - _BLOCK_BYTES, 0)
        opened.seek(begin)
        first, *lines = (opened.read(end - begin) + rest).split(b"\n")
        yield from reversed(lines)
        rest, end = first, begin
    if not end:
        yield rest


def _parse_total_or_device(line: bytes) -> TelemetryRecord | None:
    plain = None if line.startswith(_PASSED) else parse_json_line(line)
    return None if plain is None else decode_telemetry(plain)
