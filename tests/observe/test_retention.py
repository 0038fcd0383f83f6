"""Promises of observe.segments: small files, never a half one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_records import read_telemetry

from hpckit.model.settings import Observe
from hpckit.model.telemetry.json_form import encode_telemetry
from hpckit.model.telemetry.vocabulary import (
    ClockReason,
    GpuCounter,
    GpuDevice,
    GpuGauge,
    GpuSample,
    GpuVendor,
    HostCounter,
    HostGauge,
    HostSample,
    TelemetryEvent,
    TelemetryEventKind,
    TelemetryRow,
    TelemetrySegment,
)
from hpckit.observe import segments
from hpckit.observe.aggregate import build_gpu_rows, build_host_row
from hpckit.observe.sampler import ROWS_A_TOTAL
from hpckit.observe.segments import (
    COARSEST_S,
    SEGMENT,
    STEPS,
    ClosedSegment,
    SegmentWriter,
    close_segment,
    estimate_coarsened_bytes,
    find_segments_to_coarsen,
)
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import encode_json_line
from hpckit.record.telemetry import list_closed_segments, list_telemetry_nodes, read_segment_header

START = datetime(2026, 1, 2, tzinfo=UTC)
MONTH = timedelta(days=31)
NODE = "gpu-node-017.cluster"


def _size(name: str) -> float:
    """Return a large value that a gauge of this name can have."""
    return 8.123456e10 if name.endswith("bytes") else 0.7123


def full_row(number: int, row_s: float, gpus: int = 8) -> TelemetryRow:
    """Return a row as large as rows get: every gauge varies, every counter is long."""
    hosts = [
        HostSample(
            gauges={name: _size(name) / (part + 1) for name in HostGauge},
            counters=dict.fromkeys(HostCounter, 123456789000.0 + number),
        )
        for part in range(6)
    ]
    samples = [
        GpuSample(
            uuid=f"GPU-00000000-0000-0000-0000-{gpu:012d}",
            gauges={name: _size(name) / (part + 1) for name in GpuGauge},
            counters=dict.fromkeys(GpuCounter, 123456700000.0 + 7919 * number + gpu),
            reasons=frozenset({ClockReason.power_cap} if part else {ClockReason.idle}),
        )
        for part, gpu in itertools.product(range(6), range(gpus))
    ]
    start = START + timedelta(seconds=row_s * number)
    end = start + timedelta(seconds=row_s)
    return TelemetryRow(start=start, end=end, host=build_host_row(hosts), gpus=build_gpu_rows(samples))


def bytes_after(span: timedelta, *, row_bytes: float, row_s: float) -> float:
    """Return about how much a node has written after `span`, with rows of `row_bytes`.

    A segment stays in its step until all of it is old enough, so each step lasts one longer.
    """
    total, since = 0.0, timedelta(0)
    for until, length in zip(
        [*(age + 2 * SEGMENT for age, _ in STEPS), span],
        [row_s, *(length for _, length in STEPS), COARSEST_S],
        strict=False,
    ):
        lasting = max(min(until, span) - since, timedelta(0))
        total += lasting.total_seconds() / max(length, row_s) * row_bytes
        since = max(since, min(until, span))
    return total


def test_a_month_of_eight_gpus_stays_below_sixty_megabytes() -> None:
    """With the default settings, and rows as large as rows get, on a node that runs all along."""
    row_bytes = len(encode_json_line(encode_telemetry(full_row(1, 30))))
    row_s = Observe().row_s
    totals = row_bytes * timedelta(days=1).total_seconds() / row_s / ROWS_A_TOTAL
    largest = bytes_after(MONTH, row_bytes=row_bytes, row_s=row_s) + totals
    assert largest < 60e6, f"{row_bytes} bytes a row, {largest / 1e6:.1f} MB a month"


def month(row_s: float, row_bytes: float, days: int) -> Iterator[tuple[ClosedSegment, datetime]]:
    """Yield the segments of a node as they are closed, with the time."""
    for number in range(days * 4):
        start = START + SEGMENT * number
        size = round(SEGMENT.total_seconds() / row_s * row_bytes)
        file = Path(str(number))
        yield ClosedSegment(file=file, start=start, row_s=row_s, size=size), start + SEGMENT


@given(
    row_s=st.sampled_from([10.0, 30.0, 300.0]), row_bytes=st.integers(500, 60_000), limit=st.integers(1, 60)
)
@settings(max_examples=15)
def test_retention_keeps_the_limit(row_s: float, row_bytes: int, limit: int) -> None:
    """Whatever a row weighs, closed files stay below the limit, or are all at their coarsest."""
    kept: list[ClosedSegment] = []
    for segment, now in month(row_s, row_bytes, days=12):
        kept.append(segment)
        due = find_segments_to_coarsen(kept, now=now, most_bytes=limit * 1e6)
        assert all(length > one.row_s for one, length in due.items())
        kept = [_coarsened(one, due.get(one, one.row_s)) for one in kept]
    size = estimate_coarsened_bytes({one: one.row_s for one in kept})
    assert size <= limit * 1.01e6 or all(one.row_s == COARSEST_S for one in kept)


def _coarsened(one: ClosedSegment, row_s: float) -> ClosedSegment:
    size = round(one.size * one.row_s / row_s)
    return ClosedSegment(file=one.file, start=one.start, row_s=row_s, size=size)


def test_the_estimate_agrees_with_the_files() -> None:
    """What the arithmetic says of a month is what the segments of that month come to."""
    kept: list[ClosedSegment] = []
    for segment, now in month(30, 8000, days=31):
        kept.append(segment)
        due = find_segments_to_coarsen(kept, now=now, most_bytes=1e12)
        kept = [_coarsened(one, due.get(one, one.row_s)) for one in kept]
    assert sum(one.size for one in kept) <= bytes_after(MONTH, row_bytes=8000, row_s=30)


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    """Return the folder of an attempt."""
    return AttemptPaths(tmp_path)


def writer_of(attempt: AttemptPaths, row_s: float = 600) -> SegmentWriter:
    """Return a writer with large rows, of which few fill a segment."""
    return SegmentWriter(attempt=attempt, node=NODE, row_s=row_s, max_mb=60)


def fill(writer: SegmentWriter, rows: int) -> None:
    """Write rows, with their times, as a sampler does."""
    device = GpuDevice(uuid="GPU-1", vendor=GpuVendor.nvidia, index=0, name="H100")
    writer.write_devices((device,), START)
    event = TelemetryEvent(at=START, kind=TelemetryEventKind.xid, uuid="GPU-1", code=79)
    writer.append_record(event, START)
    for number in range(rows):
        row = full_row(number, writer.row_s, gpus=1)
        writer.append_record(row, row.start)


def age(writer: SegmentWriter, now: datetime) -> None:
    """Make coarser what is due, one segment after the other, as a sampler does."""
    writer.find_segments_due_to_coarsen(now)
    while writer.coarsen_next_segment():
        pass


def test_segments_are_closed_every_six_hours(attempt: AttemptPaths) -> None:
    """Each begins with what it is and with the devices, so that any of them is read alone."""
    fill(writer_of(attempt), 80)
    files = list_closed_segments(attempt, NODE)
    assert [file.name for file in files] == ["20260102T000000Z.jsonl", "20260102T060000Z.jsonl"]
    for file in (*files, attempt.newest_telemetry_file(NODE)):
        header = read_segment_header(file)
        assert header is not None
        assert (header.node, header.row_s) == (NODE, 600)
        assert '"kind":"device"' in file.read_text().splitlines()[1]
    assert list_telemetry_nodes(attempt) == [NODE]


def test_reading_yields_every_row_once(attempt: AttemptPaths) -> None:
    """Closed segments first, then the newest one."""
    fill(writer_of(attempt), 80)
    rows = [one for one in read_telemetry(attempt, NODE) if isinstance(one, TelemetryRow)]
    assert [row.start for row in rows] == [full_row(n, 600, gpus=0).start for n in range(80)]


def test_old_segments_become_coarser(attempt: AttemptPaths) -> None:
    """Rows are merged, counters at the end and events are kept, the file's name stays."""
    writer = writer_of(attempt)
    fill(writer, 80)
    before = list_closed_segments(attempt, NODE)
    sizes = [file.stat().st_size for file in before]
    age(writer, START + timedelta(days=8))
    assert list_closed_segments(attempt, NODE) == before
    assert [file.stat().st_size < size for file, size in zip(before, sizes, strict=True)] == [True, True]
    records = list(read_telemetry(attempt, NODE))
    rows = [record for record in records if isinstance(record, TelemetryRow)]
    assert len(rows) == 12 + 12 + 8
    last = full_row(35, 600, gpus=1)
    assert rows[11].end == last.end
    assert rows[11].gpus[0].counters == pytest.approx(last.gpus[0].counters)
    assert [record.code for record in records if isinstance(record, TelemetryEvent)] == [79]
    headers = [record.row_s for record in records if isinstance(record, TelemetrySegment)]
    assert headers == [1800, 1800, 600]


def test_a_second_start_closes_what_was_open(attempt: AttemptPaths) -> None:
    """An agent that starts again appends to no file of its predecessor."""
    fill(writer_of(attempt), 3)
    later = writer_of(attempt)
    later.append_record(full_row(4, 600, gpus=1), START + timedelta(seconds=2400))
    assert len(list_closed_segments(attempt, NODE)) == 1
    assert len([r for r in read_telemetry(attempt, NODE) if isinstance(r, TelemetryRow)]) == 4


def test_earlier_attempts_age_too(tmp_path: Path) -> None:
    """A run of many attempts stays as small as one of a single attempt."""
    first, second = AttemptPaths(tmp_path / "001"), AttemptPaths(tmp_path / "002")
    for paths in (first, second):
        paths.folder.mkdir()
    fill(writer_of(first), 20)
    later = START + timedelta(days=9)
    writer = SegmentWriter(attempt=second, node=NODE, row_s=600, max_mb=60, earlier=(first,))
    writer.append_record(full_row(0, 600, gpus=1), later)
    age(writer, later)
    assert not first.newest_telemetry_file(NODE).exists()
    (file,) = list_closed_segments(first, NODE)
    header = read_segment_header(file)
    assert header is not None
    assert header.row_s == 1800


def test_a_torn_line_costs_one_row(attempt: AttemptPaths) -> None:
    """What a crash left half written is passed over, and what follows it is read."""
    fill(writer_of(attempt), 2)
    with attempt.newest_telemetry_file(NODE).open("a") as file:
        file.write('{"v":1,"kind":"row","start":"2026')
    writer = writer_of(attempt)
    writer.append_record(full_row(3, 600, gpus=1), START + timedelta(seconds=1800))
    assert len([r for r in read_telemetry(attempt, NODE) if isinstance(r, TelemetryRow)]) == 3


def test_a_segment_begins_with_its_header_once_there_is_room(
    attempt: AttemptPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at its beginning costs no row that is written later."""
    writer = writer_of(attempt)
    with monkeypatch.context() as full:
        full.setattr(segments, "append_json_lines", _no_room)
        with pytest.raises(OSError, match="no room"):
            writer.append_record(full_row(0, 600, gpus=1), START)
    for number in (1, 2):
        row = full_row(number, 600, gpus=1)
        writer.append_record(row, row.start)
    writer_of(attempt).append_record(full_row(3, 600, gpus=1), START + timedelta(hours=7))
    assert len([r for r in read_telemetry(attempt, NODE) if isinstance(r, TelemetryRow)]) == 3


def _no_room(path: Path, record: object) -> NoReturn:
    raise OSError(f"no room for {record} in {path}")


def test_a_file_without_a_beginning_is_put_aside(attempt: AttemptPaths) -> None:
    """A damaged file stops no sampler."""
    attempt.newest_telemetry_file(NODE).write_text("nonsense\n")
    close_segment(attempt, NODE)
    assert not attempt.newest_telemetry_file(NODE).exists()
    fill(writer_of(attempt), 1)
    assert list_telemetry_nodes(attempt) == [NODE]
