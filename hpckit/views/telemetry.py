"""What a run used of its nodes, put together from all attempts: from the ends of their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from hpckit.errors import FrozenFolderError
from hpckit.model.telemetry.usage import NodeUsage, RunUsage
from hpckit.model.telemetry.vocabulary import (
    GpuDevice,
    GpuRow,
    TelemetryRow,
    TelemetryTotal,
    nameless_gpu,
)
from hpckit.observe.totals import merge_totals
from hpckit.planning.diagnosis.nccl_log import NcclTransport, read_nccl_log
from hpckit.record.attempts import attempt_numbers, latest_attempt
from hpckit.record.launches import Launch
from hpckit.record.layout import AttemptPaths
from hpckit.record.logs import rounds
from hpckit.record.store import open_plain
from hpckit.record.telemetry import LatestTelemetry, latest_telemetry, telemetry_nodes

_NCCL_BYTES = 1_000_000
"""NCCL says which network it uses while it begins."""


def run_usage(launch: Launch, index: int) -> RunUsage:
    """Return what a run used of each node, by name; nothing of what cannot be read."""
    run, seconds = launch.paths.run(index), 0.0
    totals: dict[str, list[TelemetryTotal]] = {}
    devices: dict[str, dict[str, GpuDevice]] = {}
    for number in attempt_numbers(run.attempts):
        attempt, rows = run.attempt(number), list[TelemetryRow]()
        for node, latest in _latest(attempt):
            if latest.total is not None:
                totals.setdefault(node, []).append(latest.total)
                rows.append(latest.total.row)
                found = {one.uuid: one for one in latest.devices}
                devices.setdefault(node, {}).update(found)
        seconds += _span_s(rows)
    nodes = (_usage(node, totals[node], tuple(devices[node].values())) for node in sorted(totals))
    return RunUsage(nodes=tuple(nodes), seconds=seconds)


def _latest(attempt: AttemptPaths) -> Iterator[tuple[str, LatestTelemetry]]:
    """Yield the latest of each node of an attempt that can be read."""
    with suppress(OSError):
        for node in telemetry_nodes(attempt):
            with suppress(OSError):
                yield node, latest_telemetry(attempt, node)


def _span_s(rows: Sequence[TelemetryRow]) -> float:
    """Return the time from the first beginning to the last end, in seconds."""
    if not rows:
        return 0.0
    return (max(row.end for row in rows) - min(row.start for row in rows)).total_seconds()


def nccl_transport(launch: Launch, index: int) -> NcclTransport | None:
    """Return what NCCL says of its network in a run's latest round; None if it says nothing."""
    run = launch.paths.run(index)
    with suppress(OSError, FrozenFolderError):
        number = latest_attempt(run.attempts)
        newest = max(rounds(launch, index, number), default=0)
        with open_plain(run.attempt(number).round(newest).nccl_log) as opened:
            text = opened.read(_NCCL_BYTES).decode(errors="replace")
            return read_nccl_log(text.splitlines())
    return None


def _usage(node: str, totals: list[TelemetryTotal], devices: tuple[GpuDevice, ...]) -> NodeUsage:
    seconds = sum((one.row.end - one.row.start).total_seconds() for one in totals)
    merged = totals[0]
    for one in totals[1:]:
        merged = merge_totals(merged, one)
    row = replace(merged.row, gpus=tuple(_by_uuid(merged.row.gpus, devices)))
    return NodeUsage(node=node, seconds=seconds, row=row, devices=devices)


def _by_uuid(gpus: Sequence[GpuRow], devices: Sequence[GpuDevice]) -> Iterator[GpuRow]:
    """Yield GPUs once: one that was lost before it told its UUID had its number for a name."""
    names = {nameless_gpu(one.index): one.uuid for one in devices if one.parent is None}
    measured = {gpu.uuid for gpu in gpus}
    again = {names[gpu.uuid]: gpu for gpu in gpus if names.get(gpu.uuid) in measured}
    for gpu in gpus:
        if gpu.uuid in again:
            yield replace(gpu, troubles=gpu.troubles | again[gpu.uuid].troubles)
        elif names.get(gpu.uuid) not in measured:
            yield gpu
