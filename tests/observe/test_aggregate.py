"""Promises of observe.aggregate: what rows and coarser rows keep of samples."""

from __future__ import annotations

import statistics
from datetime import UTC, datetime, timedelta
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.model.telemetry.vocabulary import (
    ClockReason,
    GpuCounter,
    GpuGauge,
    GpuSample,
    GpuTrouble,
    HostCounter,
    HostGauge,
    HostSample,
    TelemetryEvent,
    TelemetryEventKind,
    TelemetryRow,
)
from hpckit.observe.aggregate import (
    build_gpu_rows,
    build_host_row,
    coarsen_rows,
    compute_gauge_spread,
    merge_repeated_events,
    merge_rows,
    merge_spreads,
)

START = datetime(2026, 1, 2, tzinfo=UTC)
VALUES = st.lists(st.integers(0, 1000), min_size=1, max_size=30)

GPU_SAMPLES = st.builds(
    GpuSample,
    uuid=st.sampled_from(["GPU-1", "GPU-2"]),
    gauges=st.dictionaries(st.sampled_from(list(GpuGauge)[:3]), st.integers(0, 100), max_size=2),
    counters=st.dictionaries(st.sampled_from(list(GpuCounter)[:3]), st.integers(0, 100), max_size=2),
    reasons=st.frozensets(st.sampled_from(list(ClockReason)[:3])),
    troubles=st.frozensets(st.sampled_from(list(GpuTrouble)[:3]), max_size=1),
)
HOST_SAMPLES = st.builds(
    HostSample,
    gauges=st.dictionaries(st.sampled_from(list(HostGauge)[:3]), st.integers(0, 100), max_size=2),
    counters=st.dictionaries(st.sampled_from(list(HostCounter)[:3]), st.integers(0, 100), max_size=2),
)


def row_of(number: int, gpus: list[GpuSample], hosts: list[HostSample]) -> TelemetryRow:
    """Return row `number` of 30 s each."""
    return TelemetryRow(
        start=START + timedelta(seconds=30 * number),
        end=START + timedelta(seconds=30 * (number + 1)),
        host=build_host_row(hosts) if hosts else None,
        gpus=build_gpu_rows(gpus),
    )


@st.composite
def rows(draw: st.DrawFn, count: int) -> list[TelemetryRow]:
    """Draw rows that follow each other."""
    lists = (st.lists(GPU_SAMPLES, max_size=4), st.lists(HOST_SAMPLES, max_size=2))
    return [row_of(number, draw(lists[0]), draw(lists[1])) for number in range(count)]


def same(first: TelemetryRow, second: TelemetryRow) -> None:
    """Compare two rows, but for the last digits of means and shares."""
    assert (first.start, first.end, len(first.gpus)) == (second.start, second.end, len(second.gpus))
    assert (first.host is None) == (second.host is None)
    for one, other in zip(first.gpus, second.gpus, strict=True):
        assert (one.uuid, one.samples, one.counters) == (other.uuid, other.samples, other.counters)
        assert one.troubles == other.troubles
        assert one.reasons == pytest.approx(other.reasons)
        assert set(one.gauges) == set(other.gauges)
        for name, spread in one.gauges.items():
            found = other.gauges[name]
            assert (spread.min, spread.max, spread.p95, spread.count) == (
                found.min,
                found.max,
                found.p95,
                found.count,
            )
            assert spread.mean == pytest.approx(found.mean)


@given(VALUES)
def test_a_spread_is_that_of_its_samples(values: list[int]) -> None:
    """Minimum, mean and maximum are exact; at least 95% of the samples are not above `p95`."""
    spread = compute_gauge_spread(values)
    assert (spread.min, spread.max, spread.count) == (min(values), max(values), len(values))
    assert spread.mean == pytest.approx(statistics.fmean(values))
    assert sum(value <= spread.p95 for value in values) >= 0.95 * len(values)


@given(VALUES, VALUES)
def test_a_merged_spread_is_that_of_all_samples(first: list[int], second: list[int]) -> None:
    """Merging loses nothing but the exact 95th percentile, of which it keeps a bound."""
    merged, whole = (
        merge_spreads(compute_gauge_spread(first), compute_gauge_spread(second)),
        compute_gauge_spread(first + second),
    )
    assert (merged.min, merged.max, merged.count) == (whole.min, whole.max, whole.count)
    assert merged.mean == pytest.approx(whole.mean)
    assert merged.p95 >= whole.p95


@given(rows(3))
@settings(max_examples=40)
def test_merging_does_not_depend_on_grouping(parts: list[TelemetryRow]) -> None:
    """Rows of 5 minutes made of rows of 30 s, or of those of a minute, are the same."""
    first, second, third = parts
    same(merge_rows(merge_rows(first, second), third), merge_rows(first, merge_rows(second, third)))


@given(rows(12))
@settings(max_examples=15)
def test_coarser_rows_cover_the_same_time_and_counters(parts: list[TelemetryRow]) -> None:
    """Nothing is lost at the edges: time, samples, and what counters stood at in the end."""
    coarse = list(coarsen_rows(parts, timedelta(minutes=2)))
    assert len(coarse) == 3
    assert [one.start for one in coarse[1:]] == [one.end for one in coarse[:-1]]
    assert (coarse[0].start, coarse[-1].end) == (parts[0].start, parts[-1].end)
    same(reduce(merge_rows, coarse), reduce(merge_rows, parts))


def test_the_first_row_stays_as_it_is() -> None:
    """What later counters are compared with is not merged into them."""
    sample = GpuSample(uuid="GPU-1", counters={GpuCounter.energy_j: 5})
    first = TelemetryRow(start=START, end=START, gpus=build_gpu_rows([sample]))
    later = row_of(0, [sample], [])
    assert list(coarsen_rows([first, later], timedelta(hours=1))) == [first, later]


def test_reasons_are_shares_of_samples() -> None:
    """A reason that held in one of four samples has a quarter."""
    reasons = [frozenset({ClockReason.power_cap}), *[frozenset[ClockReason]()] * 3]
    (row,) = build_gpu_rows([GpuSample(uuid="GPU-1", reasons=reason) for reason in reasons])
    assert row.reasons == {ClockReason.power_cap: 0.25}


def test_equal_events_are_counted() -> None:
    """A storm of one XID becomes a line for each span; another XID stays apart."""
    storm = [
        TelemetryEvent(
            at=START + timedelta(seconds=5 * number),
            kind=TelemetryEventKind.xid,
            uuid="GPU-1",
            code=48 if number == 7 else 13,
        )
        for number in range(120)
    ]
    coarse = list(merge_repeated_events(storm, timedelta(minutes=5)))
    assert [(one.code, one.count) for one in coarse] == [(13, 59), (48, 1), (13, 60)]
