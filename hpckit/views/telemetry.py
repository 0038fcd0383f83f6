"""What a run used of its nodes, put together from all attempts: from the ends of their files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from hpckit.model.telemetry.usage import NodeUsage
from hpckit.model.telemetry.vocabulary import GpuDevice, TelemetryTotal
from hpckit.observe.totals import merge_totals
from hpckit.record.launches import Launch, attempt_numbers
from hpckit.record.telemetry import last_total, telemetry_devices, telemetry_nodes


def node_usages(launch: Launch, index: int) -> tuple[NodeUsage, ...]:
    """Return what a run used of each node, by name; nothing of what cannot be read."""
    run = launch.paths.run(index)
    totals: dict[str, list[TelemetryTotal]] = {}
    devices: dict[str, dict[str, GpuDevice]] = {}
    for number in attempt_numbers(run.attempts):
        attempt = run.attempt(number)
        with suppress(OSError):
            for node in telemetry_nodes(attempt):
                total = last_total(attempt, node)
                if total is None:
                    continue
                totals.setdefault(node, []).append(total)
                found = {one.uuid: one for one in telemetry_devices(attempt, node)}
                devices.setdefault(node, {}).update(found)
    return tuple(
        _usage(node, totals[node], tuple(devices[node].values())) for node in sorted(totals)
    )


def _usage(node: str, totals: list[TelemetryTotal], devices: tuple[GpuDevice, ...]) -> NodeUsage:
    seconds = sum((one.row.end - one.row.start).total_seconds() for one in totals)
    merged = totals[0]
    for one in totals[1:]:
        merged = merge_totals(merged, one)
    return NodeUsage(node=node, seconds=seconds, row=replace(merged.row), devices=devices)
