"""From samples to rows, from rows to coarser rows, and to the total of an attempt. Pure.

Merging is associative: minimum, maximum, mean (by counts) and the value of a counter at the end do
not depend on how rows are grouped. Only `p95` is a bound, the largest of its parts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.vocabulary import (
    ClockReason,
    GaugeSpread,
    GpuCounter,
    GpuRow,
    GpuSample,
    HostCounter,
    HostRow,
    HostSample,
    TelemetryEvent,
    TelemetryRow,
    TelemetryTotal,
    counter_increase,
)
from hpckit.record.telemetry import LatestTelemetry
from hpckit.values import dataclass, field, replace

_QUANTILE = 0.95
_Name = TypeVar("_Name")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Value = TypeVar("_Value")
_Row = TypeVar("_Row", GpuRow, HostRow)
_Counter = TypeVar("_Counter", GpuCounter, HostCounter)
_Merge = Callable[[float, float], float]


def compute_gauge_spread(values: Sequence[float]) -> GaugeSpread:
    """Return the spread of at least one value; `p95` is one of them (nearest rank)."""
    ordered = sorted(values)
    place = math.ceil(_QUANTILE * len(ordered)) - 1
    return GaugeSpread(
        min=ordered[0],
        mean=min(max(math.fsum(ordered) / len(ordered), ordered[0]), ordered[-1]),
        max=ordered[-1],
        p95=ordered[place],
        count=len(ordered),
    )


def merge_spreads(first: GaugeSpread, second: GaugeSpread) -> GaugeSpread:
    """Return the spread of both: exact but for `p95`, which is the larger one."""
    count = first.count + second.count
    return GaugeSpread(
        min=min(first.min, second.min),
        mean=(first.mean * first.count + second.mean * second.count) / count,
        max=max(first.max, second.max),
        p95=max(first.p95, second.p95),
        count=count,
    )


def build_host_row(samples: Sequence[HostSample]) -> HostRow:
    """Return the row of at least one sample."""
    counters = dict(_chain_items(sample.counters for sample in samples))
    gauges = _compute_gauge_spread_by_name(sample.gauges for sample in samples)
    return HostRow(samples=len(samples), gauges=gauges, counters=counters)


def build_gpu_rows(samples: Iterable[GpuSample]) -> tuple[GpuRow, ...]:
    """Return the row of each GPU, in the order in which they first appear."""
    by_uuid: dict[str, list[GpuSample]] = {}
    for sample in samples:
        by_uuid.setdefault(sample.uuid, []).append(sample)
    return tuple(_build_gpu_row(uuid, found) for uuid, found in by_uuid.items())


def _build_gpu_row(uuid: str, samples: Sequence[GpuSample]) -> GpuRow:
    reasons = [reason for sample in samples for reason in sample.reasons]
    return GpuRow(
        uuid=uuid,
        samples=len(samples),
        gauges=_compute_gauge_spread_by_name(sample.gauges for sample in samples),
        counters=dict(_chain_items(sample.counters for sample in samples)),
        reasons={reason: reasons.count(reason) / len(samples) for reason in ClockReason if reason in reasons},
        troubles=frozenset(trouble for sample in samples for trouble in sample.troubles),
    )


def _chain_items(mappings: Iterable[Mapping[_Name, float]]) -> Iterator[tuple[_Name, float]]:
    return (item for mapping in mappings for item in mapping.items())


def _compute_gauge_spread_by_name(mappings: Iterable[Mapping[_Name, float]]) -> dict[_Name, GaugeSpread]:
    values: dict[_Name, list[float]] = {}
    for name, value in _chain_items(mappings):
        values.setdefault(name, []).append(value)
    return {name: compute_gauge_spread(found) for name, found in values.items()}


def merge_rows(
    first: TelemetryRow, second: TelemetryRow, merge_counter: _Merge = lambda _, latest: latest
) -> TelemetryRow:
    """Return one row for both; `merge_counter` makes one value of a counter that both have."""
    before, after = ({gpu.uuid: gpu for gpu in row.gpus} for row in (first, second))
    gpus = _merge_values(before, after, lambda one, other: _merge_gpu_rows(one, other, merge_counter))
    return TelemetryRow(
        start=min(first.start, second.start),
        end=max(first.end, second.end),
        host=_merge_row_values(first.host, second.host, merge_counter)
        if first.host is not None and second.host is not None
        else first.host or second.host,
        gpus=tuple(gpus.values()),
        ranks=sum_step_reports_by_rank((*first.ranks, *second.ranks)),
    )


def sum_step_reports_by_rank(reports: Iterable[RankSteps]) -> tuple[RankSteps, ...]:
    """Return one report for each rank, by rank: the sums of its reports.

    A time is unknown if one of its reports does not know it.
    """
    merged: dict[tuple[int, str], RankSteps] = {}
    for report in reports:
        key = (report.rank, report.group)
        merged[key] = merged[key] + report if key in merged else report
    return tuple(merged[key] for key in sorted(merged))


def _merge_gpu_rows(first: GpuRow, second: GpuRow, merge_counter: _Merge) -> GpuRow:
    samples = first.samples + second.samples
    shares = {
        reason: (
            first.reasons.get(reason, 0) * first.samples + second.reasons.get(reason, 0) * second.samples
        )
        / samples
        for reason in ClockReason
        if reason in first.reasons or reason in second.reasons
    }
    troubles = first.troubles | second.troubles
    return replace(_merge_row_values(first, second, merge_counter), reasons=shares, troubles=troubles)


def _merge_row_values(first: _Row, second: _Row, merge_counter: _Merge) -> _Row:
    return replace(
        first,
        samples=first.samples + second.samples,
        gauges=_merge_values(first.gauges, second.gauges, merge_spreads),
        counters=_merge_values(first.counters, second.counters, merge_counter),
    )


def _merge_values(
    first: Mapping[_Name, _Value], second: Mapping[_Name, _Value], merge: Callable[[_Value, _Value], _Value]
) -> dict[_Name, _Value]:
    """Return the values of both; of a name that both have, what `merge` makes of its values."""
    both = {name: merge(value, second[name]) for name, value in first.items() if name in second}
    return {**first, **second, **both}


def time_span_number(at: datetime, span: timedelta) -> int:
    """Return the number of the span that a moment lies in: the same on all nodes."""
    return (at - _EPOCH) // span


def coarsen_rows(rows: Iterable[TelemetryRow], span: timedelta) -> Iterator[TelemetryRow]:
    """Merge the rows of each span; a row belongs to the span of its middle.

    The first row of an attempt, which spans no time, is kept as it is.
    """
    held: TelemetryRow | None = None
    for row in rows:
        if held is not None and _are_in_same_span(held, row, span):
            held = merge_rows(held, row)
            continue
        if held is not None:
            yield held
        held = row
    if held is not None:
        yield held


def _are_in_same_span(first: TelemetryRow, second: TelemetryRow, span: timedelta) -> bool:
    spanning = first.start < first.end and second.start < second.end
    return spanning and _find_span_of_row(first, span) == _find_span_of_row(second, span)


def _find_span_of_row(row: TelemetryRow, span: timedelta) -> int:
    return time_span_number(row.start + (row.end - row.start) / 2, span)


def merge_repeated_events(events: Iterable[TelemetryEvent], span: timedelta) -> Iterator[TelemetryEvent]:
    """Count equal events of each span as one, at the time of the first."""
    seen: dict[tuple[object, ...], TelemetryEvent] = {}
    for event in events:
        key = (time_span_number(event.at, span), event.kind, event.uuid, event.code, event.message)
        count = seen[key].count if key in seen else 0
        seen[key] = replace(seen.get(key, event), count=count + event.count)
    yield from seen.values()


@dataclass(slots=True)
class RunningTotal:
    """Adds rows to a total, in their order. `total` is what an earlier sampler had written.

    A counter counts from the first row that has it: that of a total is how much it has grown since,
    across resets of a driver.
    """

    total: TelemetryTotal | None = None
    _hosts: dict[HostCounter, float] = field(default_factory=dict, init=False)
    _gpus: dict[str, dict[GpuCounter, float]] = field(default_factory=dict, init=False)

    @classmethod
    def continue_from(cls, total: TelemetryTotal | None, before: TelemetryRow | None) -> RunningTotal:
        """Continue a total, whose last row was `before`."""
        running = cls(total)
        if before is not None:
            running._remember_counters(before)
        return running

    def add_row(self, row: TelemetryRow) -> None:
        """Add the next row."""
        grown = self._replace_counters_by_growth(row)
        self._remember_counters(row)
        added = TelemetryTotal(row=grown, measured_s=(row.end - row.start).total_seconds())
        self.total = added if self.total is None else merge_totals(self.total, added)

    def _replace_counters_by_growth(self, row: TelemetryRow) -> TelemetryRow:
        host = row.host and replace(
            row.host, counters=_compute_counter_increases(self._hosts, row.host.counters)
        )
        gpus = [
            replace(gpu, counters=_compute_counter_increases(self._gpus.get(gpu.uuid, {}), gpu.counters))
            for gpu in row.gpus
        ]
        return replace(row, host=host, gpus=tuple(gpus))

    def _remember_counters(self, row: TelemetryRow) -> None:
        if row.host is not None:
            self._hosts |= row.host.counters
        for gpu in row.gpus:
            self._gpus.setdefault(gpu.uuid, {}).update(gpu.counters)


def add_later_rows_to_total(latest: LatestTelemetry) -> TelemetryTotal | None:
    """Return the latest total with the rows after it, which a sampler did not come to add."""
    running = RunningTotal.continue_from(latest.total, latest.before)
    for row in latest.rows:
        running.add_row(row)
    return running.total


def merge_totals(first: TelemetryTotal, second: TelemetryTotal) -> TelemetryTotal:
    """Return both totals as one: counters, which are increases, and lengths add up."""
    row = merge_rows(first.row, second.row, operator.add)
    return TelemetryTotal(row=row, measured_s=first.measured_or_span_s + second.measured_or_span_s)


def _compute_counter_increases(
    before: Mapping[_Counter, float], now: Mapping[_Counter, float]
) -> dict[_Counter, float]:
    return {name: counter_increase(before.get(name, value), value) for name, value in now.items()}
