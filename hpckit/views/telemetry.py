"""What a run used of its nodes, put together from all attempts: from the ends of their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from hpckit.errors import FrozenFolderError
from hpckit.model.telemetry.usage import NodeUsage, RunUsage
from hpckit.model.telemetry.vocabulary import GpuDevice, GpuRow, TelemetryTotal, build_placeholder_uuid
from hpckit.observe.aggregate import add_later_rows_to_total, merge_totals
from hpckit.planning.diagnosis.evidence import NcclTransport, parse_nccl_log
from hpckit.record.attempts import latest_attempt_number, list_attempt_numbers
from hpckit.record.launches import Launch
from hpckit.record.layout import AttemptPaths
from hpckit.record.logs import list_attempt_rounds
from hpckit.record.store import open_regular_file
from hpckit.record.telemetry import LatestTelemetry, list_telemetry_nodes, read_latest_telemetry
from hpckit.values import replace

_CLOCK_SET_S = 1.0

_NCCL_BYTES = 1_000_000
"""NCCL says which network it uses while it begins."""


def read_resource_usage_of_run(launch: Launch, index: int) -> RunUsage:
    """Return what a run used of each node, by name; nothing of what cannot be read."""
    run, seconds = launch.paths.run(index), 0.0
    totals: dict[str, list[TelemetryTotal]] = {}
    devices: dict[str, dict[str, GpuDevice]] = {}
    attempts: dict[int, tuple[NodeUsage, ...]] = {}
    for number in list_attempt_numbers(run.attempts):
        attempt, of_nodes, used = run.attempt(number), list[TelemetryTotal](), list[NodeUsage]()
        for node, latest in _read_latest_telemetry_of_nodes(attempt):
            total = add_later_rows_to_total(latest)
            if total is not None:
                totals.setdefault(node, []).append(total)
                of_nodes.append(total)
                found = {device.uuid: device for device in latest.devices}
                devices.setdefault(node, {}).update(found)
                used.append(_merge_node_usage(node, [total], latest.devices))
        seconds += _compute_measured_seconds(of_nodes)
        attempts[number] = tuple(used)
    nodes = (_merge_node_usage(node, totals[node], tuple(devices[node].values())) for node in sorted(totals))
    return RunUsage(nodes=tuple(nodes), attempts=attempts, seconds=seconds)


def _read_latest_telemetry_of_nodes(attempt: AttemptPaths) -> Iterator[tuple[str, LatestTelemetry]]:
    with suppress(OSError):
        for node in list_telemetry_nodes(attempt):
            with suppress(OSError):
                yield node, read_latest_telemetry(attempt, node)


def _compute_measured_seconds(totals: Sequence[TelemetryTotal]) -> float:
    """Return how long at least one node was measured in an attempt, in seconds.

    That is from the first beginning to the last end, but for nodes with gaps, or with a clock that was set.
    """
    whole = [total.row for total in totals if abs(total.span_s - total.measured_or_span_s) <= _CLOCK_SET_S]
    starts, ends = [row.start for row in whole], [row.end for row in whole]
    span_s = (max(ends) - min(starts)).total_seconds() if whole else 0.0
    return max(span_s, *(total.measured_or_span_s for total in totals), 0.0)


def read_nccl_transport(launch: Launch, index: int) -> NcclTransport | None:
    """Return what NCCL says of its network in a run's latest round; None if it says nothing."""
    run = launch.paths.run(index)
    with suppress(OSError, FrozenFolderError):
        number = latest_attempt_number(run.attempts)
        newest = max(list_attempt_rounds(launch, index, number), default=0)
        with open_regular_file(run.attempt(number).round(newest).nccl_log) as opened:
            text = opened.read(_NCCL_BYTES).decode(errors="replace")
            return parse_nccl_log(text.splitlines())
    return None


def _merge_node_usage(node: str, totals: list[TelemetryTotal], devices: tuple[GpuDevice, ...]) -> NodeUsage:
    seconds = sum(total.measured_or_span_s for total in totals)
    names = _map_placeholder_uuids(devices)
    of_gpus: dict[str, float] = {}
    for total in totals:
        for uuid in {names.get(gpu.uuid, gpu.uuid) for gpu in total.row.gpus}:
            of_gpus[uuid] = of_gpus.get(uuid, 0.0) + total.measured_or_span_s
    merged = totals[0]
    for total in totals[1:]:
        merged = merge_totals(merged, total)
    row = replace(merged.row, gpus=tuple(_merge_placeholder_gpus(merged.row.gpus, devices)))
    return NodeUsage(node=node, seconds=seconds, row=row, devices=devices, gpu_seconds=of_gpus)


def _map_placeholder_uuids(devices: Sequence[GpuDevice]) -> dict[str, str]:
    """Return the UUIDs of GPUs by the placeholder names of GPUs that did not report one."""
    return {build_placeholder_uuid(device.index): device.uuid for device in devices if device.parent is None}


def _merge_placeholder_gpus(gpus: Sequence[GpuRow], devices: Sequence[GpuDevice]) -> Iterator[GpuRow]:
    """Yield GPUs once: one that was lost before it told its UUID had its number for a name."""
    names = _map_placeholder_uuids(devices)
    measured = {gpu.uuid for gpu in gpus}
    again = {names[gpu.uuid]: gpu for gpu in gpus if names.get(gpu.uuid) in measured}
    for gpu in gpus:
        if gpu.uuid in again:
            yield replace(gpu, troubles=gpu.troubles | again[gpu.uuid].troubles)
        elif names.get(gpu.uuid) not in measured:
            yield gpu
