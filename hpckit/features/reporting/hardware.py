"""Reads what runs did with GPUs and what their ranks waited for, from the telemetry of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from hpckit.features.reporting.document import GpuActivity, GpuLane, GpuUsed, RankUsed
from hpckit.features.reporting.gpu_columns import GpuStretch, TimeColumns
from hpckit.features.reporting.gpu_rows import some_gpu_rows
from hpckit.model.run import RunView
from hpckit.model.telemetry.usage import NodeUsage
from hpckit.model.telemetry.vocabulary import (
    ClockReason,
    GpuDevice,
    GpuGauge,
    GpuRow,
    TelemetryRow,
)
from hpckit.planning.diagnosis.usage import gpu_uses, rank_steps
from hpckit.record.attempts import attempt_numbers
from hpckit.record.launches import Launch
from hpckit.record.layout import AttemptPaths
from hpckit.record.telemetry import telemetry_nodes
from hpckit.values import dataclass

MOST_LANES = 64
_HOUR_S = 3600.0

_MOST_ROWS = 4000
"""Rows that are read for a chart: seconds, with eight GPUs a node."""

_SHOWN = frozenset(
    {GpuGauge.busy_share, GpuGauge.graphics_share, GpuGauge.power_w, GpuGauge.temperature_c}
)


def used_gpus(run: str, usages: Sequence[NodeUsage]) -> tuple[GpuUsed, ...]:
    """Return what a run used of each GPU."""
    devices = {device.uuid: device for usage in usages for device in usage.devices}
    return tuple(
        GpuUsed(
            run=run,
            node=one.node,
            gpu=gpu_name(one.uuid, devices.get(one.uuid)),
            name="" if one.uuid not in devices else devices[one.uuid].name,
            hours=one.seconds / _HOUR_S,
            utilization=one.utilization,
            memory_peak_bytes=one.memory_peak_bytes,
            memory_bytes=one.memory_bytes,
            power_w=one.power_w,
            heat_share=one.heat_share,
            power_share=one.power_share,
        )
        for one in gpu_uses(usages)
    )


def used_ranks(view: RunView, usages: Sequence[NodeUsage]) -> tuple[RankUsed, ...]:
    """Return what the steps of each rank of a run went to."""
    slow = {(one.rank, one.node): one.slower_by for one in view.record.stragglers}
    ranks = sorted(rank_steps(usages), key=lambda one: (one.rank, one.node))
    return tuple(
        RankUsed(run=view.record.id, steps=one, slower_by=slow.get((one.rank, one.node)))
        for one in ranks
        if one.steps
    )


def gpu_name(uuid: str, device: GpuDevice | None) -> str:
    """Return the number of a GPU on its node, as nvidia-smi has it, or the end of its UUID."""
    if device is None:
        return uuid[-8:]
    return f"GPU {device.index}" if device.parent is None else f"MIG {uuid[-8:]}"


def gpu_activity(
    runs: Iterable[tuple[Launch, RunView, Sequence[NodeUsage]]],
) -> GpuActivity | None:
    """Return the GPUs of all runs over time; None if none was measured.

    Of many or long runs only some rows are read, evenly over time.
    """
    places = [one for launch, view, usages in runs for one in _places(launch, view, usages)]
    most = max(_MOST_ROWS // max(len(places), 1), 1)
    readings = [reading for place in places for reading in _readings(place, most)]
    if not readings:
        return None
    columns = TimeColumns(
        begin_s=min(one.begin_s for one in readings), end_s=max(one.end_s for one in readings)
    )
    for one in readings:
        columns.add(one)
    gpus = columns.gpus
    return GpuActivity(
        begin=datetime.fromtimestamp(columns.begin_s, UTC),
        end=datetime.fromtimestamp(columns.end_s, UTC),
        lanes=tuple(
            GpuLane(
                node=node,
                gpu=gpu,
                busy=columns.busy((node, gpu)),
                temperature_c=columns.temperature_c((node, gpu)),
                slowed=columns.slowed((node, gpu)),
            )
            for node, gpu in gpus[:MOST_LANES]
        ),
        power_w=columns.power_w(),
        left_out=max(len(gpus) - MOST_LANES, 0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A node in an attempt of a run, with what is known of its GPUs."""

    attempt: AttemptPaths
    node: str
    devices: Mapping[str, GpuDevice]


def _places(launch: Launch, view: RunView, usages: Sequence[NodeUsage]) -> Iterator[_Place]:
    run = launch.paths.run(view.record.index)
    devices = {usage.node: {one.uuid: one for one in usage.devices} for usage in usages}
    for number in attempt_numbers(run.attempts):
        attempt = run.attempt(number)
        with suppress(OSError):
            for node in telemetry_nodes(attempt):
                yield _Place(attempt=attempt, node=node, devices=devices.get(node, {}))


def _readings(place: _Place, most: int) -> Iterator[GpuStretch]:
    with suppress(OSError):
        for row in some_gpu_rows(place.attempt, place.node, _SHOWN, most=most):
            yield from _of_row(place.node, row, place.devices)


def _of_row(node: str, row: TelemetryRow, devices: Mapping[str, GpuDevice]) -> Iterator[GpuStretch]:
    parents = {one.parent for one in devices.values()}
    for gpu in row.gpus:
        if gpu.uuid not in parents and row.end > row.start:
            yield GpuStretch(
                node=node,
                gpu=gpu_name(gpu.uuid, devices.get(gpu.uuid)),
                begin_s=row.start.timestamp(),
                end_s=row.end.timestamp(),
                busy=_mean(gpu, GpuGauge.busy_share, GpuGauge.graphics_share),
                power_w=_mean(gpu, GpuGauge.power_w),
                temperature_c=_mean(gpu, GpuGauge.temperature_c),
                slowed=_slowed(gpu),
            )


_SLOWING = (
    ClockReason.hardware_slowdown,
    ClockReason.software_thermal,
    ClockReason.hardware_thermal,
    ClockReason.power_brake,
)


def _slowed(gpu: GpuRow) -> float | None:
    """Return the share of the samples with lower clocks; several reasons often hold at once."""
    if GpuGauge.temperature_c not in gpu.gauges and not gpu.reasons:
        return None
    return max((gpu.reasons.get(one, 0.0) for one in _SLOWING), default=0.0)


def _mean(gpu: GpuRow, *names: GpuGauge) -> float | None:
    return next((gpu.gauges[name].mean for name in names if name in gpu.gauges), None)
