"""Writes a node's telemetry: appends rows, closes segments, replaces old ones by coarser ones.

A closed segment is replaced by renaming a whole new file over it, so that a reader, or a crash at
any moment, finds either of the two. Only the agent of a node writes the files of that node.

Rows stay as they were measured for half a day, then become rows of five minutes, after a week of
half an hour. Where that is not enough for the limit, the oldest are made coarser sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from hpckit.model.telemetry.json_form import encode_telemetry
from hpckit.model.telemetry.vocabulary import (
    GpuDevice,
    TelemetryEvent,
    TelemetryRecord,
    TelemetryRow,
    TelemetrySegment,
    TelemetryTotal,
)
from hpckit.observe.aggregate import (
    add_later_rows_to_total,
    coarsen_rows,
    merge_repeated_events,
    time_span_number,
)
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import (
    append_json_lines,
    encode_json_line,
    make_private_folder,
    write_text_atomically,
)
from hpckit.record.telemetry import (
    list_closed_segments,
    list_later_segments,
    read_latest_telemetry,
    read_latest_telemetry_of_segment,
    read_segment_header,
    read_telemetry_segment,
)
from hpckit.values import dataclass, field, replace

SEGMENT = timedelta(hours=6)
"""What one file holds at most."""

STEPS: tuple[tuple[timedelta, float], ...] = ((timedelta(hours=12), 300.0), (timedelta(days=7), 1800.0))
"""From which age on rows are how long, in seconds; the age is that of the segment's end."""

COARSEST_S = 7200.0
"""Rows are never longer than this, however little room there is."""

_LENGTHS = (*(row_s for _, row_s in STEPS), COARSEST_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """A closed file of `size` bytes with rows of `row_s` seconds, from `start`."""

    file: Path
    start: datetime
    row_s: float
    size: int


def find_segments_to_coarsen(
    segments: Iterable[ClosedSegment], *, now: datetime, most_bytes: float
) -> dict[ClosedSegment, float]:
    """Return the segments to replace, each with the seconds of its new rows."""
    ordered = sorted(segments, key=lambda segment: segment.start)
    lengths = {
        segment: max(
            segment.row_s, *(row_s for age, row_s in STEPS if now - segment.start - SEGMENT >= age), 0.0
        )
        for segment in ordered
    }
    for length in _LENGTHS:
        for one in ordered:
            if estimate_coarsened_bytes(lengths) <= most_bytes:
                break
            lengths[one] = max(lengths[one], length)
    return {one: row_s for one, row_s in lengths.items() if row_s > one.row_s}


def estimate_coarsened_bytes(lengths: Mapping[ClosedSegment, float]) -> float:
    """Return about how large segments become with rows of these lengths."""
    return sum(one.size * one.row_s / row_s for one, row_s in lengths.items())


_MB = 1_000_000


@dataclass(slots=True, kw_only=True)
class SegmentWriter:
    """Writes the telemetry of `node` in an attempt, with rows of `row_s` seconds.

    `earlier` are attempts of the same run whose files it makes coarser as they age: together they
    stay below `max_mb` megabytes, but for the newest segment. `total` is that of all rows so far,
    with which the next segment begins. All methods raise OSError.
    """

    attempt: AttemptPaths
    node: str
    row_s: float
    max_mb: float
    earlier: tuple[AttemptPaths, ...] = ()
    devices: tuple[GpuDevice, ...] = ()
    _start: datetime | None = field(default=None, init=False)
    total: TelemetryTotal | None = field(default=None, init=False)
    _named_late: bool = field(default=False, init=False)
    _due: list[tuple[Path, float]] = field(default_factory=list, init=False)

    def append_record(self, record: TelemetryRecord, at: datetime) -> None:
        """Append a record; begin a new segment when one is due."""
        self._begin_segment_if_due(at)
        append_json_lines(self.attempt.newest_telemetry_file(self.node), encode_telemetry(record))

    def append_total(self, total: TelemetryTotal, at: datetime) -> None:
        """Append a total.

        Devices that the segment does not begin with stand again before each total, where readers look.
        """
        self.total = total
        if not self._begin_segment_if_due(at) and self._named_late:
            for device in self.devices:
                self.append_record(device, at)
        self.append_record(total, at)

    def read_total_of_earlier_sampler(self) -> TelemetryTotal | None:
        """Return the total of what an earlier sampler of this node in this attempt has written."""
        with suppress(OSError):
            return add_later_rows_to_total(read_latest_telemetry(self.attempt, self.node))
        return None

    def write_devices(self, devices: tuple[GpuDevice, ...], at: datetime) -> None:
        """Write the devices of the node; each later segment begins with them."""
        self.devices = devices
        if not self._begin_segment_if_due(at):
            self._named_late = True
            for device in devices:
                self.append_record(device, at)

    def _begin_segment_if_due(self, at: datetime) -> bool:
        """Begin a new segment, with its header and the devices; return whether one was due."""
        if self._start is not None and time_span_number(self._start, SEGMENT) == time_span_number(
            at, SEGMENT
        ):
            return False
        first = self._start is None
        for attempt in (*(self.earlier if first else ()), self.attempt):
            close_segment(attempt, self.node)
        start, file = (
            self._choose_segment_start(at.replace(microsecond=0)),
            self.attempt.newest_telemetry_file(self.node),
        )
        header = TelemetrySegment(node=self.node, start=start, row_s=self.row_s)
        append_json_lines(file, encode_telemetry(header))
        # Only now has it begun: without its header, all of it would be put aside later.
        self._start, self._named_late = at, True
        totals = () if self.total is None else (self.total,)
        for record in (*self.devices, *totals):
            append_json_lines(file, encode_telemetry(record))
        self._named_late = False
        return True

    def _choose_segment_start(self, at: datetime) -> datetime:
        """Return when a segment begins: after the one before, though the clock was set back.

        Segments are named by it, and read in the order of their names.
        """
        headers = map(read_segment_header, list_closed_segments(self.attempt, self.node)[-1:])
        starts = [header.start + timedelta(seconds=1) for header in headers if header is not None]
        return max([at, *starts])

    def find_segments_due_to_coarsen(self, now: datetime) -> None:
        """Find the closed segments that are due to become coarser, for `coarsen_next_segment`."""
        found = [
            segment
            for attempt in (*self.earlier, self.attempt)
            for segment in _describe_segments(list_closed_segments(attempt, self.node))
        ]
        due = find_segments_to_coarsen(found, now=now, most_bytes=self.max_mb * _MB)
        self._due = [(segment.file, row_s) for segment, row_s in due.items()]

    def coarsen_next_segment(self) -> bool:
        """Replace one segment that is due; return whether there was one.

        One takes about a second, so a sampler does one at a time between its samples.
        """
        if not self._due:
            return False
        coarsen_segment(*self._due.pop())
        return True


def close_segment(attempt: AttemptPaths, node: str) -> None:
    """Rename the newest file of a node as a closed segment; do nothing without one."""
    newest = attempt.newest_telemetry_file(node)
    header = read_segment_header(newest)
    if header is None:
        with suppress(FileNotFoundError):
            newest.replace(newest.with_suffix(".damaged"))
        return
    closed = attempt.older_telemetry_file(node, header.start)
    make_private_folder(closed.parent)
    newest.replace(closed)


def _describe_segments(files: Iterable[Path]) -> Iterator[ClosedSegment]:
    for file in files:
        header = read_segment_header(file)
        if header is not None:
            size = file.stat().st_size
            yield ClosedSegment(file=file, start=header.start, row_s=header.row_s, size=size)


def coarsen_segment(file: Path, row_s: float) -> None:
    """Replace a closed segment by one with rows of `row_s` seconds; raises OSError.

    Its last total stays, with the rows behind it, if no later segment has one: it may be all that
    is known of an attempt.
    """
    last = all(read_latest_telemetry_of_segment(later).total is None for later in list_later_segments(file))
    total = add_later_rows_to_total(read_latest_telemetry_of_segment(file)) if last else None
    records = coarsen_records(lambda: read_telemetry_segment(file), row_s, total=total)
    text = b"".join(encode_json_line(encode_telemetry(record)) for record in records)
    write_text_atomically(file, text.decode(), lasting=False)


def coarsen_records(
    read: Callable[[], Iterator[TelemetryRecord]], row_s: float, *, total: TelemetryTotal | None
) -> Iterator[TelemetryRecord]:
    """Yield a segment's records with coarser rows: the header, devices, events, then rows.

    A `total` comes last. `read` reads the segment. It is called twice, as a
    segment's rows are too many to be held.
    """
    span = timedelta(seconds=row_s)
    others = [record for record in read() if not isinstance(record, TelemetryRow)]
    for record in others:
        if isinstance(record, TelemetrySegment):
            yield replace(record, row_s=row_s)
    yield from dict.fromkeys(record for record in others if isinstance(record, GpuDevice))
    yield from merge_repeated_events((other for other in others if isinstance(other, TelemetryEvent)), span)
    yield from coarsen_rows((row for row in read() if isinstance(row, TelemetryRow)), span)
    if total is not None:
        yield total
