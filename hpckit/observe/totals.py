"""All rows of a node in an attempt, as one row: what a reader needs without reading them all. Pure.

Counters of a total are how much they have grown since the first row, across resets of a driver.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hpckit.model.telemetry.vocabulary import (
    GpuCounter,
    HostCounter,
    TelemetryRow,
    TelemetryTotal,
    counter_increase,
)
from hpckit.observe.aggregate import merge_rows
from hpckit.record.telemetry import LatestTelemetry

_Name = TypeVar("_Name", GpuCounter, HostCounter)


@dataclass(slots=True)
class RunningTotal:
    """Adds rows to a total, in their order. `total` is what an earlier sampler had written.

    A counter counts from the first row that has it.
    """

    total: TelemetryTotal | None = None
    _hosts: dict[HostCounter, float] = field(default_factory=dict, init=False)
    _gpus: dict[str, dict[GpuCounter, float]] = field(default_factory=dict, init=False)

    @classmethod
    def after(cls, total: TelemetryTotal | None, before: TelemetryRow | None) -> RunningTotal:
        """Continue a total, whose last row was `before`."""
        running = cls(total)
        if before is not None:
            running._remember(before)
        return running

    def add(self, row: TelemetryRow) -> None:
        """Add the next row."""
        grown = self._grown(row)
        self._remember(row)
        added = TelemetryTotal(row=grown, measured_s=(row.end - row.start).total_seconds())
        self.total = added if self.total is None else merge_totals(self.total, added)

    def _grown(self, row: TelemetryRow) -> TelemetryRow:
        """Return the row with the increase of each counter since it was last known."""
        host = row.host and replace(row.host, counters=_increases(self._hosts, row.host.counters))
        gpus = [
            replace(gpu, counters=_increases(self._gpus.get(gpu.uuid, {}), gpu.counters))
            for gpu in row.gpus
        ]
        return replace(row, host=host, gpus=tuple(gpus))

    def _remember(self, row: TelemetryRow) -> None:
        if row.host is not None:
            self._hosts |= row.host.counters
        for gpu in row.gpus:
            self._gpus.setdefault(gpu.uuid, {}).update(gpu.counters)


def complete_total(latest: LatestTelemetry) -> TelemetryTotal | None:
    """Return the latest total with the rows after it, which a sampler did not come to add."""
    running = RunningTotal.after(latest.total, latest.before)
    for row in latest.rows:
        running.add(row)
    return running.total


def merge_totals(first: TelemetryTotal, second: TelemetryTotal) -> TelemetryTotal:
    """Return both totals as one: counters, which are increases, and lengths add up."""
    row = merge_rows(first.row, second.row, operator.add)
    return TelemetryTotal(row=row, measured_s=first.length_s + second.length_s)


def _increases(before: Mapping[_Name, float], now: Mapping[_Name, float]) -> dict[_Name, float]:
    return {name: counter_increase(before.get(name, value), value) for name, value in now.items()}
