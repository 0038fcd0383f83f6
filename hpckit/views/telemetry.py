"""What a run used of its nodes, put together from all attempts: from the ends of their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from hpckit.errors import FrozenFolderError
from hpckit.model.telemetry.usage import NodeUsage, RunUsage
from hpckit.model.telemetry.vocabulary import GpuDevice, GpuRow, TelemetryTotal, nameless_gpu
from hpckit.observe.aggregate import complete_total, merge_totals
from hpckit.planning.diagnosis.evidence import NcclTransport, read_nccl_log
from hpckit.record.attempts import attempt_numbers, latest_attempt
from hpckit.record.launches import Launch
from hpckit.record.layout import AttemptPaths
from hpckit.record.logs import rounds
from hpckit.record.store import open_plain
from hpckit.record.telemetry import LatestTelemetry, latest_telemetry, telemetry_nodes
from hpckit.values import replace

_CLOCK_SET_S = 1.0

_NCCL_BYTES = 1_000_000
"""NCCL says which network it uses while it begins."""


def run_usage(launch: Launch, index: int) -> RunUsage:
    """Return what a run used of each node, by name; nothing of what cannot be read."""
    run, seconds = launch.paths.run(index), 0.0
    totals: dict[str, list[TelemetryTotal]] = {}
    devices: dict[str, dict[str, GpuDevice]] = {}
    attempts: dict[int, tuple[NodeUsage, ...]] = {}
    for number in attempt_numbers(run.attempts):
        attempt, of_nodes, used = run.attempt(number), list[TelemetryTotal](), list[NodeUsage]()
        for node, latest in _latest(attempt):
            total = complete_total(latest)
            if total is not None:
                totals.setdefault(node, []).append(total)
                of_nodes.append(total)
                found = {device.uuid: device for device in latest.devices}
                devices.setdefault(node, {}).update(found)
                used.append(_usage(node, [total], latest.devices))
        seconds += _measured_s(of_nodes)
        attempts[number] = tuple(used)
    nodes = (_usage(node, totals[node], tuple(devices[node].values())) for node in sorted(totals))
    return RunUsage(nodes=tuple(nodes), attempts=attempts, seconds=seconds)


def _latest(attempt: AttemptPaths) -> Iterator[tuple[str, LatestTelemetry]]:
    """Yield the latest of each node of an attempt that can be read."""
    with suppress(OSError):
        for node in telemetry_nodes(attempt):
            with suppress(OSError):
                yield node, latest_telemetry(attempt, node)


def _measured_s(totals: Sequence[TelemetryTotal]) -> float:
    """Return how long at least one node was measured in an attempt, in seconds.

    That is from the first beginning to the last end, but for nodes with gaps, or with a clock that
    was set.
    """
    whole = [total.row for total in totals if abs(total.span_s - total.length_s) <= _CLOCK_SET_S]
    starts, ends = [row.start for row in whole], [row.end for row in whole]
    span_s = (max(ends) - min(starts)).total_seconds() if whole else 0.0
    return max(span_s, *(total.length_s for total in totals), 0.0)


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
    seconds = sum(total.length_s for total in totals)
    names = _names(devices)
    of_gpus: dict[str, float] = {}
    for total in totals:
        for uuid in {names.get(gpu.uuid, gpu.uuid) for gpu in total.row.gpus}:
            of_gpus[uuid] = of_gpus.get(uuid, 0.0) + total.length_s
    merged = totals[0]
    for total in totals[1:]:
        merged = merge_totals(merged, total)
    row = replace(merged.row, gpus=tuple(_by_uuid(merged.row.gpus, devices)))
    return NodeUsage(node=node, seconds=seconds, row=row, devices=devices, gpu_seconds=of_gpus)


def _names(devices: Sequence[GpuDevice]) -> dict[str, str]:
    """Return the UUIDs of GPUs by the names that those have which did not tell it."""
    return {nameless_gpu(device.index): device.uuid for device in devices if device.parent is None}


def _by_uuid(gpus: Sequence[GpuRow], devices: Sequence[GpuDevice]) -> Iterator[GpuRow]:
    """Yield GPUs once: one that was lost before it told its UUID had its number for a name."""
    names = _names(devices)
    measured = {gpu.uuid for gpu in gpus}
    again = {names[gpu.uuid]: gpu for gpu in gpus if names.get(gpu.uuid) in measured}
    for gpu in gpus:
        if gpu.uuid in again:
            yield replace(gpu, troubles=gpu.troubles | again[gpu.uuid].troubles)
        elif names.get(gpu.uuid) not in measured:
            yield gpu
