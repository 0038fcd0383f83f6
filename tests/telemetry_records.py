"""Reads what a node has written of its telemetry."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.model.telemetry.vocabulary import TelemetryRecord, TelemetrySegment
from hpckit.record.layout import AttemptPaths
from hpckit.record.telemetry import list_closed_segments, read_telemetry_segment


def read_telemetry(attempt: AttemptPaths, node: str) -> Iterator[TelemetryRecord]:
    """Yield all records of a node in an attempt, the oldest first; raises OSError.

    Each segment begins with a `TelemetrySegment` and the devices of the node.
    """
    newest = list(read_telemetry_segment(attempt.newest_telemetry_file(node)))
    own = newest[0] if newest and isinstance(newest[0], TelemetrySegment) else None
    now_closed = own and attempt.older_telemetry_file(node, own.start)
    for file in list_closed_segments(attempt, node):
        if file != now_closed:
            yield from read_telemetry_segment(file)
    yield from newest
