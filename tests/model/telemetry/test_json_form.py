"""Promises of model.telemetry: the vocabulary and its JSON form."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.model.telemetry.json_form import decode_telemetry, encode_telemetry
from hpckit.model.telemetry.vocabulary import (
    ClockReason,
    GaugeSpread,
    GpuCounter,
    GpuDevice,
    GpuGauge,
    GpuRow,
    GpuTrouble,
    GpuVendor,
    HostCounter,
    HostGauge,
    HostRow,
    TelemetryEvent,
    TelemetryEventKind,
    TelemetryRecord,
    TelemetryRow,
    TelemetrySegment,
    counter_increase,
)

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROW = TelemetryRow(
    start=AT,
    end=AT + timedelta(seconds=30),
    host=HostRow(
        samples=6,
        gauges={HostGauge.cpu_share: GaugeSpread(min=0.1, mean=0.2, max=0.4, p95=0.4, count=6)},
        counters={HostCounter.job_cpu_s: 12.5},
    ),
    gpus=(
        GpuRow(
            uuid="GPU-1",
            samples=6,
            gauges={GpuGauge.power_w: GaugeSpread(min=70, mean=300, max=690, p95=690, count=6)},
            counters={GpuCounter.energy_j: 5120.5},
            reasons={ClockReason.power_cap: 0.5},
        ),
        GpuRow(
            uuid="GPU-2",
            samples=6,
            gauges={GpuGauge.power_w: GaugeSpread(min=71, mean=71, max=71, p95=71, count=6)},
            counters={GpuCounter.energy_j: 812.3, GpuCounter.xids: 1},
            troubles=frozenset({GpuTrouble.remap_pending}),
        ),
    ),
)
RECORDS: tuple[TelemetryRecord, ...] = (
    ROW,
    TelemetrySegment(node="node1", start=AT, row_s=30),
    GpuDevice(uuid="GPU-1", vendor=GpuVendor.nvidia, index=0, name="H100", supported=("power_w",)),
    TelemetryEvent(at=AT, kind=TelemetryEventKind.xid, uuid="GPU-1", code=79, count=2),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: type(one).__name__)
def test_records_survive_json(record: TelemetryRecord) -> None:
    """What is written is read again, from one line of JSON."""
    line = json.dumps(encode_telemetry(record))
    assert decode_telemetry(json.loads(line)) == record


def test_json_of_a_row_is_as_documented() -> None:
    """Names once for all GPUs, null where one lacks it, a bare number for what did not change."""
    plain = encode_telemetry(ROW)
    assert plain["gpus"] == {
        "uuids": ["GPU-1", "GPU-2"],
        "samples": [6, 6],
        "gauges": {"power_w": [[70, 300, 690, 690], 71]},
        "counters": {"energy_j": [5120.5, 812.3], "xids": [None, 1]},
        "reasons": {"power_cap": [0.5, 0]},
        "troubles": {"GPU-2": ["remap_pending"]},
    }


def test_names_of_a_newer_hpckit_are_passed_over() -> None:
    """An older hpckit reads what it knows of a newer one's rows."""
    plain = encode_telemetry(ROW)
    plain["gpus"]["gauges"]["warp_share"] = [0.5, 0.5]
    plain["gpus"]["troubles"]["GPU-2"].append("on_fire")
    plain["host"]["counters"]["smiles"] = 3
    assert decode_telemetry(plain) == ROW
    assert decode_telemetry({"v": 9, "kind": "poem"}) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["uuids", "samples", "gauges", "a"]), inner)
        ),
        max_leaves=8,
    )
)
@settings(max_examples=20)
def test_damaged_rows_are_passed_over(damage: Any) -> None:
    """No line, however damaged, makes a reader fail."""
    plain = {**encode_telemetry(ROW), "gpus": damage}
    assert decode_telemetry(plain) is None or damage in (None, []) or isinstance(damage, dict)


@given(st.floats(min_value=1e-6, max_value=1e13))
def test_gauges_keep_four_digits(value: float) -> None:
    """Rounding costs less than a thousandth."""
    spread = GaugeSpread(min=value, mean=value, max=value, p95=value)
    row = TelemetryRow(start=AT, end=AT, host=HostRow(samples=1, gauges={HostGauge.load: spread}))
    read = decode_telemetry(encode_telemetry(row))
    assert isinstance(read, TelemetryRow)
    assert read.host is not None
    assert read.host.gauges[HostGauge.load].mean == pytest.approx(value, rel=1e-3)


def test_a_counter_that_fell_began_anew() -> None:
    """The energy after a driver was reloaded is what it has counted since.

    A little less is no growth: a network card that goes takes its bytes, and iowait may fall.
    """
    assert counter_increase(10, 25) == 15
    assert counter_increase(25, 4) == 4
    assert counter_increase(5.001e12, 4.9e12) == 0
    assert counter_increase(1000.1, 1000.0) == 0
