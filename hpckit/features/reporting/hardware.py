"""Reads what runs did with GPUs and what their ranks waited for, from the telemetry of nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hpckit.features.reporting.document import GpuActivity, GpuLane, GpuUsed, RankUsed
from hpckit.model.run import RunView
from hpckit.model.telemetry.json_form import decode_telemetry
from hpckit.model.telemetry.usage import NodeUsage
from hpckit.model.telemetry.vocabulary import ClockReason, GpuDevice, GpuGauge, GpuRow, TelemetryRow
from hpckit.planning.diagnosis.usage import list_step_reports_of_ranks, summarize_gpu_use
from hpckit.record.attempts import list_attempt_numbers
from hpckit.record.launches import Launch
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import open_regular_file, parse_json_line
from hpckit.record.telemetry import NO_ROW, list_closed_segments, list_telemetry_nodes, read_lines_backwards
from hpckit.values import replace

COLUMNS = 240
"""Of the same length: what was measured over time is put into these."""

MOST_LANES = 64
_HOUR_S = 3600.0

_MOST_ROWS = 4000
"""Rows that are read for a chart: seconds, with eight GPUs a node."""

_SHOWN = frozenset({GpuGauge.busy_share, GpuGauge.graphics_share, GpuGauge.power_w, GpuGauge.temperature_c})


def list_gpu_usage_of_run(run: str, usages: Sequence[NodeUsage]) -> tuple[GpuUsed, ...]:
    """Return what a run used of each GPU."""
    devices = {device.uuid: device for usage in usages for device in usage.devices}
    return tuple(
        GpuUsed(
            run=run,
            node=use.node,
            gpu=format_gpu_number_on_node(use.uuid, devices.get(use.uuid)),
            name="" if use.uuid not in devices else devices[use.uuid].name,
            hours=use.seconds / _HOUR_S,
            utilization=use.utilization,
            memory_peak_bytes=use.memory_peak_bytes,
            memory_bytes=use.memory_bytes,
            power_w=use.power_w,
            heat_share=use.heat_share,
            power_share=use.power_share,
        )
        for use in summarize_gpu_use(usages)
    )


def list_step_times_of_ranks(view: RunView, usages: Sequence[NodeUsage]) -> tuple[RankUsed, ...]:
    """Return what the steps of each rank of a run went to."""
    slow = {(straggler.rank, straggler.node): straggler.slower_by for straggler in view.record.stragglers}
    ranks = sorted(list_step_reports_of_ranks(usages), key=lambda step: (step.rank, step.node))
    return tuple(
        RankUsed(run=view.record.id, steps=rank, slower_by=slow.get((rank.rank, rank.node)))
        for rank in ranks
        if rank.steps
    )


def format_gpu_number_on_node(uuid: str, device: GpuDevice | None) -> str:
    """Return the number of a GPU on its node, as nvidia-smi has it, or the end of its UUID."""
    if device is None:
        return uuid[-8:]
    return f"GPU {device.index}" if device.parent is None else f"MIG {uuid[-8:]}"


class _Reading(NamedTuple):
    """What a GPU (its node and name) did between two moments, in seconds since 1970.

    Its `values` are in the order of the numbers below; null is unknown.
    """

    gpu: tuple[str, str]
    begin_s: float
    end_s: float
    values: tuple[float | None, ...]


_BUSY, _POWER_W, _TEMPERATURE_C, _SLOWED = range(4)


def read_gpu_activity(runs: Iterable[tuple[Launch, RunView, Sequence[NodeUsage]]]) -> GpuActivity | None:
    """Return the GPUs of all runs over time; None if none was measured.

    Of many or long runs only some rows are read, evenly over time.
    """
    places = [
        place for launch, view, usages in runs for place in _list_nodes_with_telemetry(launch, view, usages)
    ]
    most = max(_MOST_ROWS // max(len(places), 1), 1)
    readings = [reading for place in places for reading in _read_gpu_readings(place, most)]
    if not readings:
        return None
    begin_s, end_s = (
        min(reading.begin_s for reading in readings),
        max(reading.end_s for reading in readings),
    )
    means = _compute_column_means(readings, begin_s, end_s)
    gpus = sorted({gpu for gpu, quantity in means if quantity in {_BUSY, _POWER_W}})
    return GpuActivity(
        begin=datetime.fromtimestamp(begin_s, UTC),
        end=datetime.fromtimestamp(end_s, UTC),
        lanes=tuple(
            GpuLane(
                node=gpu[0],
                gpu=gpu[1],
                busy=_round_columns(means.get((gpu, _BUSY)), 3) or (None,) * COLUMNS,
                temperature_c=_round_columns(means.get((gpu, _TEMPERATURE_C)), 0),
                slowed=_round_columns(means.get((gpu, _SLOWED)), 3),
            )
            for gpu in gpus[:MOST_LANES]
        ),
        power_w=_sum_means_by_column([row for (_, quantity), row in means.items() if quantity == _POWER_W]),
        left_out=max(len(gpus) - MOST_LANES, 0),
    )


def _compute_column_means(
    readings: Iterable[_Reading], begin_s: float, end_s: float
) -> dict[tuple[tuple[str, str], int], dict[int, float]]:
    """Return by GPU and number of the value the means in each of COLUMNS columns.

    Readings weigh by how much of the column they cover.
    """
    sums: dict[tuple[tuple[str, str], int], dict[int, tuple[float, float]]] = {}
    width = (end_s - begin_s) / COLUMNS
    for reading in readings:
        first = max(int((reading.begin_s - begin_s) / width), 0)
        last = min(int((reading.end_s - begin_s) / width), COLUMNS - 1)
        for column in range(first, last + 1):
            low = begin_s + column * width
            weight = min(reading.end_s, low + width) - max(reading.begin_s, low)
            for quantity, value in enumerate(reading.values):
                if value is not None and weight > 0:
                    row = sums.setdefault((reading.gpu, quantity), {})
                    total, of = row.get(column, (0.0, 0.0))
                    row[column] = (total + value * weight, of + weight)
    return {key: {column: total / of for column, (total, of) in row.items()} for key, row in sums.items()}


def _round_columns(means: Mapping[int, float] | None, digits: int) -> tuple[float | None, ...]:
    """Return the means by column, null where nothing was measured; empty if there is none."""
    if not means:
        return ()
    found = map(means.get, range(COLUMNS))
    return tuple(None if mean is None else round(mean, digits) for mean in found)


def _sum_means_by_column(rows: Iterable[Mapping[int, float]]) -> tuple[float | None, ...]:
    sums: dict[int, float] = {}
    for row in rows:
        for column, mean in row.items():
            sums[column] = sums.get(column, 0.0) + mean
    return _round_columns(sums, 1) or (None,) * COLUMNS


class _Place(NamedTuple):
    """A node in an attempt of a run, with what is known of its GPUs."""

    attempt: AttemptPaths
    node: str
    devices: Mapping[str, GpuDevice]


def _list_nodes_with_telemetry(
    launch: Launch, view: RunView, usages: Sequence[NodeUsage]
) -> Iterator[_Place]:
    run = launch.paths.run(view.record.index)
    devices = {usage.node: {device.uuid: device for device in usage.devices} for usage in usages}
    for number in list_attempt_numbers(run.attempts):
        attempt = run.attempt(number)
        with suppress(OSError):
            for node in list_telemetry_nodes(attempt):
                yield _Place(attempt, node, devices.get(node, {}))


def _read_gpu_readings(place: _Place, most: int) -> Iterator[_Reading]:
    parents = {device.parent for device in place.devices.values()}
    with suppress(OSError):
        for row in sample_telemetry_rows(place.attempt, place.node, _SHOWN, most=most):
            for gpu in row.gpus:
                if gpu.uuid not in parents and row.end > row.start:
                    yield _Reading(
                        (place.node, format_gpu_number_on_node(gpu.uuid, place.devices.get(gpu.uuid))),
                        row.start.timestamp(),
                        row.end.timestamp(),
                        (
                            _find_mean_of_first_gauge(gpu, GpuGauge.busy_share, GpuGauge.graphics_share),
                            _find_mean_of_first_gauge(gpu, GpuGauge.power_w),
                            _find_mean_of_first_gauge(gpu, GpuGauge.temperature_c),
                            _compute_throttled_share(gpu),
                        ),
                    )


_SLOWING = (
    ClockReason.hardware_slowdown,
    ClockReason.software_thermal,
    ClockReason.hardware_thermal,
    ClockReason.power_brake,
)


def _compute_throttled_share(gpu: GpuRow) -> float | None:
    """Return the share of the samples with lower clocks; several reasons often hold at once."""
    if GpuGauge.temperature_c not in gpu.gauges and not gpu.reasons:
        return None
    return max((gpu.reasons.get(reason, 0.0) for reason in _SLOWING), default=0.0)


def _find_mean_of_first_gauge(gpu: GpuRow, *names: GpuGauge) -> float | None:
    return next((gpu.gauges[name].mean for name in names if name in gpu.gauges), None)


_SHORTEST_ROW = 1000
"""Bytes. Files with fewer bytes for each row that is asked for are read whole."""

_LONGEST_ROW = 1_000_000

_LEAST = 2
"""Rows of a file: the first stands for all up to the last."""


def sample_telemetry_rows(
    attempt: AttemptPaths, node: str, gauges: frozenset[GpuGauge], *, most: int
) -> Iterator[TelemetryRow]:
    """Yield about `most` rows of a node in an attempt, the oldest first; raises OSError.

    They have GPUs only, with these gauges and the reasons of their clocks. Each lasts until the
    next one of its file begins, as it stands for those between them.
    """
    files = [*list_closed_segments(attempt, node), attempt.newest_telemetry_file(node)]
    step = -(-len(files) * _LEAST // max(most, _LEAST))
    chosen = files[::-1][::step][::-1]
    for file in chosen:
        yield from _stretch_rows_to_next(_read_rows_of_file(file, gauges, max(most // len(chosen), _LEAST)))


def _stretch_rows_to_next(rows: Iterator[TelemetryRow]) -> Iterator[TelemetryRow]:
    held: TelemetryRow | None = None
    for row in rows:
        if held is not None:
            # The first row of an attempt spans no time, and a clock may be set.
            until = row.start if held.start < held.end <= row.start else held.end
            yield replace(held, end=until)
        held = row
    if held is not None:
        yield held


def _read_rows_of_file(file: Path, gauges: frozenset[GpuGauge], most: int) -> Iterator[TelemetryRow]:
    with suppress(FileNotFoundError), open_regular_file(file) as opened:
        for line in _sample_evenly_spaced_lines(opened, most):
            row = _decode_telemetry_line(line, gauges)
            if row is not None:
                yield row


def _sample_evenly_spaced_lines(opened: BinaryIO, most: int) -> Iterator[bytes]:
    """Yield lines of rows: all of a short file, else those at places of equal distance."""
    size = opened.seek(0, os.SEEK_END)
    if size <= most * _SHORTEST_ROW:
        opened.seek(0)
        yield from filter(_may_be_telemetry_row, opened)
        return
    last = next(filter(_may_be_telemetry_row, read_lines_backwards(opened)), b"")
    reached = 0
    for number in range(most - 1):
        place = size * number // (most - 1)
        if place < reached:
            continue
        opened.seek(max(place - 1, 0))
        if place:
            opened.readline(_LONGEST_ROW)  # the rest of a line, or the end of the one before
        line = next(filter(_may_be_telemetry_row, iter(lambda: opened.readline(_LONGEST_ROW), b"")), b"")
        reached = opened.tell()
        if line.rstrip(b"\n") == last:
            break
        yield line
    yield last


def _may_be_telemetry_row(line: bytes) -> bool:
    return len(line) > 1 and not line.startswith(NO_ROW)


def _decode_telemetry_line(line: bytes, gauges: frozenset[GpuGauge]) -> TelemetryRow | None:
    plain = parse_json_line(line)
    if plain is None or plain.get("kind") != "row":
        return None
    ends = {name: plain.get(name) for name in ("kind", "start", "end")}
    record = decode_telemetry({**ends, "gpus": _keep_wanted_gauges(plain.get("gpus"), gauges)})
    return record if isinstance(record, TelemetryRow) else None


def _keep_wanted_gauges(gpus: object, gauges: frozenset[GpuGauge]) -> object:
    """Return the GPUs of a row with these gauges and no counters: decoding is most of the cost."""
    if not isinstance(gpus, dict) or not isinstance(gpus.get("gauges"), dict):
        return None
    kept = {name: values for name, values in gpus["gauges"].items() if name in gauges}
    return {**gpus, "gauges": kept, "counters": {}}
