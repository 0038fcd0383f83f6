"""From samples to rows, and from rows to coarser rows. Pure.

Merging is associative: minimum, maximum, mean (by counts) and the value of a counter at the end do
not depend on how rows are grouped. Only `p95` is a bound, the largest of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.vocabulary import (
    ClockReason,
    GaugeSpread,
    GpuRow,
    GpuSample,
    HostRow,
    HostSample,
    TelemetryEvent,
    TelemetryRow,
)

_QUANTILE = 0.95
_Name = TypeVar("_Name")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Number = TypeVar("_Number", int, float)


def spread_of(values: Sequence[float]) -> GaugeSpread:
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


def host_row(samples: Sequence[HostSample]) -> HostRow:
    """Return the row of at least one sample."""
    counters = dict(_latest(sample.counters for sample in samples))
    gauges = _spreads(sample.gauges for sample in samples)
    return HostRow(samples=len(samples), gauges=gauges, counters=counters)


def gpu_rows(samples: Iterable[GpuSample]) -> tuple[GpuRow, ...]:
    """Return the row of each GPU, in the order in which they first appear."""
    by_uuid: dict[str, list[GpuSample]] = {}
    for sample in samples:
        by_uuid.setdefault(sample.uuid, []).append(sample)
    return tuple(_gpu_row(uuid, found) for uuid, found in by_uuid.items())


def _gpu_row(uuid: str, samples: Sequence[GpuSample]) -> GpuRow:
    reasons = [reason for sample in samples for reason in sample.reasons]
    return GpuRow(
        uuid=uuid,
        samples=len(samples),
        gauges=_spreads(sample.gauges for sample in samples),
        counters=dict(_latest(sample.counters for sample in samples)),
        reasons={one: reasons.count(one) / len(samples) for one in ClockReason if one in reasons},
        troubles=frozenset(trouble for sample in samples for trouble in sample.troubles),
    )


def _latest(mappings: Iterable[Mapping[_Name, float]]) -> Iterator[tuple[_Name, float]]:
    return (item for mapping in mappings for item in mapping.items())


def _spreads(mappings: Iterable[Mapping[_Name, float]]) -> dict[_Name, GaugeSpread]:
    values: dict[_Name, list[float]] = {}
    for name, value in _latest(mappings):
        values.setdefault(name, []).append(value)
    return {name: spread_of(found) for name, found in values.items()}


def merge_rows(first: TelemetryRow, second: TelemetryRow) -> TelemetryRow:
    """Return one row for both; counters are those of `second` where it has them."""
    hosts = [row.host for row in (first, second) if row.host is not None]
    gpus = {gpu.uuid: gpu for gpu in first.gpus}
    for gpu in second.gpus:
        gpus[gpu.uuid] = _merged(gpus[gpu.uuid], gpu) if gpu.uuid in gpus else gpu
    return TelemetryRow(
        start=min(first.start, second.start),
        end=max(first.end, second.end),
        host=_merged_hosts(hosts),
        gpus=tuple(gpus.values()),
        ranks=merge_steps((*first.ranks, *second.ranks)),
    )


def merge_steps(reports: Iterable[RankSteps]) -> tuple[RankSteps, ...]:
    """Return one report for each rank, by rank: the sums of its reports.

    A time is unknown if one of its reports does not know it.
    """
    merged: dict[tuple[int, str], RankSteps] = {}
    for one in reports:
        key = (one.rank, one.group)
        merged[key] = _added(merged[key], one) if key in merged else one
    return tuple(merged[key] for key in sorted(merged))


def _added(first: RankSteps, second: RankSteps) -> RankSteps:
    names = dict.fromkeys((*first.phases, *second.phases))
    return RankSteps(
        rank=first.rank,
        node=second.node,
        gpu=second.gpu,
        group=first.group,
        first_step=min(first.first_step, second.first_step),
        steps=first.steps + second.steps,
        samples=_sum(first.samples, second.samples),
        seconds=first.seconds + second.seconds,
        data_s=_sum(first.data_s, second.data_s),
        checkpoint_s=_sum(first.checkpoint_s, second.checkpoint_s),
        waiting_s=_sum(first.waiting_s, second.waiting_s),
        own_s=_sum(first.own_s, second.own_s),
        phases={name: first.phases.get(name, 0) + second.phases.get(name, 0) for name in names},
    )


def _sum(first: _Number | None, second: _Number | None) -> _Number | None:
    return None if first is None or second is None else first + second


def _merged(first: GpuRow, second: GpuRow) -> GpuRow:
    samples = first.samples + second.samples
    shares = {
        reason: (
            first.reasons.get(reason, 0) * first.samples
            + second.reasons.get(reason, 0) * second.samples
        )
        / samples
        for reason in ClockReason
        if reason in first.reasons or reason in second.reasons
    }
    return GpuRow(
        uuid=first.uuid,
        samples=samples,
        gauges=_merged_gauges(first.gauges, second.gauges),
        counters={**first.counters, **second.counters},
        reasons=shares,
        troubles=first.troubles | second.troubles,
    )


def _merged_hosts(hosts: Sequence[HostRow]) -> HostRow | None:
    if len(hosts) < 2:  # noqa: PLR2004  # nothing to merge
        return hosts[0] if hosts else None
    first, second = hosts
    return HostRow(
        samples=first.samples + second.samples,
        gauges=_merged_gauges(first.gauges, second.gauges),
        counters={**first.counters, **second.counters},
    )


def _merged_gauges(
    first: Mapping[_Name, GaugeSpread], second: Mapping[_Name, GaugeSpread]
) -> dict[_Name, GaugeSpread]:
    merged = dict(first)
    for name, spread in second.items():
        merged[name] = merge_spreads(merged[name], spread) if name in merged else spread
    return merged


def bucket(at: datetime, span: timedelta) -> int:
    """Return the number of the span that a moment lies in: the same on all nodes."""
    return (at - _EPOCH) // span


def coarser_rows(rows: Iterable[TelemetryRow], span: timedelta) -> Iterator[TelemetryRow]:
    """Merge the rows of each span; a row belongs to the span of its middle.

    The first row of an attempt, which spans no time, is kept as it is.
    """
    held: TelemetryRow | None = None
    for row in rows:
        if held is not None and _together(held, row, span):
            held = merge_rows(held, row)
            continue
        if held is not None:
            yield held
        held = row
    if held is not None:
        yield held


def _together(first: TelemetryRow, second: TelemetryRow, span: timedelta) -> bool:
    spanning = first.start < first.end and second.start < second.end
    return spanning and _place(first, span) == _place(second, span)


def _place(row: TelemetryRow, span: timedelta) -> int:
    return bucket(row.start + (row.end - row.start) / 2, span)


def coarser_events(events: Iterable[TelemetryEvent], span: timedelta) -> Iterator[TelemetryEvent]:
    """Count equal events of each span as one, at the time of the first."""
    seen: dict[tuple[object, ...], TelemetryEvent] = {}
    for event in events:
        key = (bucket(event.at, span), event.kind, event.uuid, event.code, event.message)
        count = seen[key].count if key in seen else 0
        seen[key] = replace(seen.get(key, event), count=count + event.count)
    yield from seen.values()
