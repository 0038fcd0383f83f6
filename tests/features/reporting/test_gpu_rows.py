"""Promises of build_gpu_rows: a chart of a month costs as much as one of a day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hpckit.features.reporting import hardware
from hpckit.features.reporting.hardware import sample_telemetry_rows
from hpckit.model.telemetry.json_form import decode_telemetry
from hpckit.model.telemetry.vocabulary import (
    GaugeSpread,
    GpuCounter,
    GpuGauge,
    GpuRow,
    HostCounter,
    HostRow,
    TelemetryEvent,
    TelemetryEventKind,
    TelemetryRow,
    TelemetryTotal,
)
from hpckit.observe.segments import SegmentWriter
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import make_private_folder

START = datetime(2026, 1, 2, tzinfo=UTC)
ROW = timedelta(minutes=5)
NODE = "n1"
SHOWN = frozenset({GpuGauge.power_w})


def row_of(number: int, gpus: int = 8) -> TelemetryRow:
    """Return the row with this number, with as many watts."""
    power = GaugeSpread(min=number, mean=number, max=number + 1, p95=number, count=5)
    gauges = dict.fromkeys(GpuGauge, power)
    counters = dict.fromkeys(GpuCounter, 1234567.0 + number)
    start = START + ROW * number
    return TelemetryRow(
        start=start,
        end=start + ROW,
        host=HostRow(samples=5, counters=dict.fromkeys(HostCounter, 7.0)),
        gpus=tuple(
            GpuRow(uuid=f"GPU-{gpu}", samples=5, gauges=gauges, counters=counters) for gpu in range(gpus)
        ),
    )


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    """Return the folder of an attempt."""
    return AttemptPaths(make_private_folder(tmp_path / "001"))


def write(attempt: AttemptPaths, rows: int) -> None:
    """Write rows as a sampler does: in segments of six hours, with totals and events."""
    writer = SegmentWriter(attempt=attempt, node=NODE, row_s=ROW.total_seconds(), max_mb=60)
    for number in range(rows):
        row = row_of(number)
        writer.append_record(row, row.end)
        if number % 10 == 0:
            writer.append_total(TelemetryTotal(row=row), row.end)
            event = TelemetryEvent(at=row.end, kind=TelemetryEventKind.xid, code=31)
            writer.append_record(event, row.end)


def test_few_rows_are_all_read(attempt: AttemptPaths) -> None:
    """With what a chart shows, and nothing else."""
    write(attempt, 30)
    found = list(sample_telemetry_rows(attempt, NODE, SHOWN, most=10000))
    assert [(row.start, row.end) for row in found] == [
        (row_of(number).start, row_of(number).end) for number in range(30)
    ]
    gpu = found[7].gpus[3]
    assert gpu.uuid == "GPU-3"
    assert set(gpu.gauges) == {GpuGauge.power_w}
    assert not gpu.counters
    assert gpu.gauges[GpuGauge.power_w].mean == 7
    assert found[7].host is None


@pytest.mark.parametrize("most", [1, 20, 100])
@pytest.mark.parametrize("rows", [1, 60, 600])
def test_some_rows_stand_for_all(
    attempt: AttemptPaths, monkeypatch: pytest.MonkeyPatch, rows: int, most: int
) -> None:
    """No more are decoded than asked for; the newest is among them, and none stands twice."""
    write(attempt, rows)
    decoded: list[str] = []

    def decoding(line: Any) -> Any:
        decoded.append(line["kind"])
        return decode_telemetry(line)

    monkeypatch.setattr(hardware, "decode_telemetry", decoding)
    found = list(sample_telemetry_rows(attempt, NODE, SHOWN, most=most))
    assert decoded == ["row"] * len(decoded)
    assert len(decoded) <= max(most, 2)
    assert found[-1].end == row_of(rows - 1).end
    assert all(first.end <= second.start for first, second in pairwise(found))
    if most == 100:
        measured = sum((row.end - row.start for row in found), timedelta())
        assert measured >= ROW * rows * 0.95, "what lies between is covered"


def test_a_node_without_telemetry_has_no_rows(attempt: AttemptPaths) -> None:
    """As one with a file that is no telemetry has none."""
    assert list(sample_telemetry_rows(attempt, NODE, SHOWN, most=5)) == []
    attempt.newest_telemetry_file(NODE).write_bytes(b"nonsense\n" * 10000)
    assert list(sample_telemetry_rows(attempt, NODE, SHOWN, most=5)) == []
