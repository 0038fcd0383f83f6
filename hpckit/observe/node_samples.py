"""Takes samples of a node, one after the other, and makes rows of them. Time is a parameter.

Rows end at multiples of their length (UTC), so that those of all nodes lie side by side. Counters
are read with the last sample of a row only, as nothing else of them is written.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.vocabulary import (
    GpuSample,
    HostGauge,
    HostSample,
    TelemetryEvent,
    TelemetryEventKind,
    TelemetryRow,
)
from hpckit.observe.aggregate import RunningTotal, bucket, gpu_rows, host_row, merge_steps
from hpckit.observe.gpu_thread import GpuReading, GpuThread
from hpckit.observe.host import HostReader
from hpckit.observe.segments import SEGMENT, SegmentWriter
from hpckit.values import dataclass, field, replace

MOST_WAIT_S = 2.0
"""Longest wait for the GPUs in a sample; half an interval if that is shorter."""

STALLED = timedelta(seconds=30)
"""GPUs that have not answered for so long are said to be stalled; opening a driver takes less."""

LAST_WAIT_S = 0.5
"""Longest wait for the GPUs in the last sample."""

CLOCK_SET = timedelta(seconds=1)
"""A clock that differs by more from one that nobody sets has been set while a row was under way."""

ROWS_A_TOTAL = 10
"""A total is written after this many rows; after the first ones more often."""

_EventKey = tuple[TelemetryEventKind, str | None, int | None, str]


@dataclass(slots=True, kw_only=True)
class NodeSamples:
    """The samples of the row under way, and what is known of the node's GPUs.

    All methods raise OSError if a file cannot be written; the row is lost then, and no later one.
    """

    writer: SegmentWriter
    interval: timedelta
    host: HostReader | None
    gpus: GpuThread | None
    on_event: Callable[[TelemetryEvent], None] | None = None
    monotonic: Callable[[], float] | None = None
    """A clock that nobody sets, to measure how long a row is; without it `take` says that alone."""
    paused_s: Callable[[float], float] = lambda _: 0.0
    """How many of the last seconds this node was suspended: they are no part of a row."""
    steps: deque[RankSteps] = field(default_factory=deque)
    """What the ranks of the node have reported since the last row; other threads append to it."""
    _total: RunningTotal = field(init=False)
    _rows: int = field(default=0, init=False)
    _looked: datetime | None = field(default=None, init=False)
    _begun: datetime | None = field(default=None, init=False)
    _begun_s: float = field(default=0.0, init=False)
    _hosts: list[HostSample] = field(default_factory=list, init=False)
    _samples: list[GpuSample] = field(default_factory=list, init=False)
    _answered: datetime | None = field(default=None, init=False)
    _stalled: bool = field(default=False, init=False)
    _repeated: dict[_EventKey, TelemetryEvent] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._total = RunningTotal(self.writer.last_total())

    def take(self, at: datetime) -> None:
        """Take a sample, and write a row if it is the last of one.

        The first sample of all is a row of its own, and so is the first that GPUs answer: what they
        count later is compared with these.
        """
        row = timedelta(seconds=self.writer.row_s)
        last = self._begun is None or bucket(at + self.interval, row) != bucket(at, row)
        unknown = self.gpus is not None and not self.writer.devices
        wait_s = min(MOST_WAIT_S, self.interval.total_seconds() / 2)
        self._sample(at, counters=last or unknown, limit_s=wait_s)
        if last or (unknown and self.writer.devices):
            self._close_row(at)
            self._grow_old(at)

    def finish(self, at: datetime) -> None:
        """Take the last sample, write the last row, and let go of the GPUs."""
        try:
            self._sample(at, counters=True, limit_s=LAST_WAIT_S)
            self._close_row(at, last=True)
        finally:
            if self.gpus is not None:
                self.gpus.close()

    def _sample(self, at: datetime, *, counters: bool, limit_s: float) -> None:
        started = time.perf_counter()
        reading = None
        if self.gpus is not None:
            reading = self.gpus.read(counters=counters, limit_s=limit_s)
            self._samples += () if reading is None else reading.samples
        if self.host is not None:
            sample = self.host.read()
            gauges = {**sample.gauges, HostGauge.sampler_s: time.perf_counter() - started}
            self._hosts.append(replace(sample, gauges=gauges))
        if self.gpus is not None:
            self._hear(reading, at)

    def _close_row(self, at: datetime, *, last: bool = False) -> None:
        row = TelemetryRow(
            start=self._start_of_row(at),
            end=at,
            host=host_row(self._hosts) if self._hosts else None,
            gpus=gpu_rows(self._samples),
            ranks=merge_steps(self._reported()),
        )
        repeated = [event for event in self._repeated.values() if event.count]
        self._hosts, self._samples, self._repeated = [], [], {}
        for event in repeated:
            self.writer.append(event, at)
        self._total.add(row)
        self.writer.append(row, at)
        self.writer.total = self._total.total
        self._rows += 1
        due = self._rows % ROWS_A_TOTAL == 0 or self._rows & (self._rows - 1) == 0
        if (last or due) and self._total.total is not None:
            self.writer.append_total(self._total.total, at)

    def _start_of_row(self, at: datetime) -> datetime:
        """Return when the row began that ends now, by the clock as it is now: it may have been set.

        The next one begins.
        """
        start, self._begun = self._begun or at, at
        if self.monotonic is None:
            return start
        begun_s, self._begun_s = self._begun_s, self.monotonic()
        passed_s = self._begun_s - begun_s
        passed = timedelta(seconds=max(passed_s - self.paused_s(passed_s), 0.0))
        return start if start == at or abs(at - start - passed) <= CLOCK_SET else at - passed

    def _reported(self) -> Iterator[RankSteps]:
        """Yield what ranks have reported, and forget it."""
        while self.steps:
            yield replace(self.steps.popleft(), node="")

    def _grow_old(self, at: datetime) -> None:
        """Make one old segment coarser, if any is due: looked for once in the time of a segment."""
        if self._looked is None or bucket(self._looked, SEGMENT) != bucket(at, SEGMENT):
            self._looked = at
            self.writer.look_for_old(at)
        self.writer.coarsen_next()

    def _hear(self, reading: GpuReading | None, at: datetime) -> None:
        if reading is None:
            self._answered = self._answered or at
            if not self._stalled and at - self._answered >= STALLED:
                self._stalled = True
                self._tell(TelemetryEvent(at=at, kind=TelemetryEventKind.gpus_stalled), at)
            return
        if self._stalled:
            self._stalled = False
            self._tell(TelemetryEvent(at=at, kind=TelemetryEventKind.gpus_answered), at)
        self._answered = at
        if reading.devices and set(reading.devices) != set(self.writer.devices):
            self.writer.name_devices(reading.devices, at)
        for note in reading.notes:
            self._tell(TelemetryEvent(at=at, kind=TelemetryEventKind.note, message=note), at)
        for event in reading.events:
            self._tell(event, at)

    def _tell(self, event: TelemetryEvent, at: datetime) -> None:
        """Write an event; of equal ones in a row only the first at once, the others as a count."""
        key = (event.kind, event.uuid, event.code, event.message)
        if key in self._repeated:
            count = self._repeated[key].count + event.count
            self._repeated[key] = replace(event, at=self._repeated[key].at, count=count)
            return
        self._repeated[key] = replace(event, count=0)
        if self.on_event is not None:
            self.on_event(event)
        self.writer.append(event, at)
