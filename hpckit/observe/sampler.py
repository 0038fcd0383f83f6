"""The sampler of a node: one for each node and attempt, started by its agent, never by a rank.

    sampler = NodeSampler(settings=settings.observe, attempt=paths, node=node)
    sampler.start()
    …
    sampler.stop()

Its thread takes samples, makes rows and writes files. Nothing that it does holds up whoever starts
or stops it: not a driver that hangs, not a file system that does not answer.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

from hpckit.model.settings import Observe
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.vocabulary import (
    GpuSample,
    HostGauge,
    HostSample,
    TelemetryEvent,
    TelemetryEventKind,
    TelemetryRow,
)
from hpckit.observe.aggregate import (
    RunningTotal,
    build_gpu_rows,
    build_host_row,
    sum_step_reports_by_rank,
    time_span_number,
)
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.observe.gpu_thread import (
    GpuOpener,
    GpuReading,
    GpuShares,
    GpuThread,
    gpu_use_notes_folder,
    open_gpu_backends,
)
from hpckit.observe.host import HostReader
from hpckit.observe.segments import SEGMENT, SegmentWriter
from hpckit.record.layout import AttemptPaths
from hpckit.values import dataclass, field, replace

STOP_S = 2.0
"""How long `stop` waits for the last row, by default."""


_MOST_STEPS = 20_000
"""Reports that are held while a file system does not answer; the oldest are dropped."""


@dataclass(slots=True, kw_only=True)
class NodeSampler:
    """Samples this node until it is stopped, as `settings` say; `interval_s` 0: never.

    `attempt` is where it writes, for the node of that name. `choice` says which GPUs are the run's;
    `on_this_machine`: no scheduler gave them, so other runs may have them, too. `earlier` are the run's
    earlier attempts: their telemetry of this node is made coarser as it ages. `on_event` is called in the
    sampler's thread with everything that happened to the node, within an interval; it must return at once.
    `opener` and `now` are for tests. `unwritten` counts what no file could take.
    """

    settings: Observe
    attempt: AttemptPaths
    node: str
    earlier: tuple[AttemptPaths, ...] = ()
    choice: GpuChoice = field(default_factory=GpuChoice)
    on_this_machine: bool = False
    on_event: Callable[[TelemetryEvent], None] | None = None
    paused_s: Callable[[float], float] = lambda _: 0.0
    opener: GpuOpener | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    unwritten: int = field(default=0, init=False)
    _steps: deque[RankSteps] = field(default_factory=lambda: deque(maxlen=_MOST_STEPS), init=False)
    _noted: set[str] = field(default_factory=set, init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin, and return at once; do nothing if the settings say so, or if it has begun."""
        if self.settings.interval_s > 0 and self._thread is None:
            self._thread = threading.Thread(target=self._run_sampling_loop, name="telemetry", daemon=True)
            self._thread.start()

    def stop(self, limit_s: float = STOP_S) -> bool:
        """Write the last row; return whether that was done within `limit_s` seconds."""
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def record_rank_steps(self, steps: RankSteps) -> None:
        """Take what a rank of this node reports of its steps; may be called by any thread."""
        if self.settings.measure_steps and self.settings.interval_s > 0:
            self._steps.append(steps)

    def _run_sampling_loop(self) -> None:
        settings = self.settings
        writer = SegmentWriter(
            attempt=self.attempt,
            node=self.node,
            row_s=settings.row_s,
            max_mb=settings.max_mb,
            earlier=self.earlier,
        )
        samples = self._build_samples(writer)
        try:
            while True:
                self._run_and_note_errors(partial(samples.take_sample, self.now()), writer)
                if self._stopping.wait(self._seconds_to_next_sample()):
                    break
        finally:
            self._run_and_note_errors(partial(samples.finish_sampling, self.now()), writer)

    def _run_and_note_errors(self, work: Callable[[], None], writer: SegmentWriter) -> None:
        """Do work that must not end the sampler if it fails: a full disk passes.

        What else goes wrong is noted, once.
        """
        try:
            work()
        except OSError:
            self.unwritten += 1
        except Exception as error:  # noqa: BLE001  # later samples may be better
            message = f"a sample failed: {type(error).__name__}: {error}"
            if message not in self._noted:
                self._noted.add(message)
                now = self.now()
                note = TelemetryEvent(at=now, kind=TelemetryEventKind.note, message=message)
                self._run_and_note_errors(partial(writer.append_record, note, now), writer)

    def _build_samples(self, writer: SegmentWriter) -> NodeSamples:
        settings = self.settings
        opener = self.opener or partial(open_gpu_backends, gpm=settings.gpm, choice=self.choice)
        notes = gpu_use_notes_folder() if self.on_this_machine else None
        shares = GpuShares(notes=notes, by_parts=bool(self.choice.parts))
        return NodeSamples(
            writer=writer,
            interval=timedelta(seconds=settings.interval_s),
            host=HostReader() if settings.measure_host else None,
            gpus=GpuThread(opener, shares) if settings.measure_gpus else None,
            on_event=self.on_event,
            monotonic=time.monotonic,
            paused_s=self.paused_s,
            steps=self._steps,
        )

    def _seconds_to_next_sample(self) -> float:
        """Return the seconds until the next sample.

        Nodes take samples at different moments of an interval, so that not all write at once; rows
        end at the same times everywhere.
        """
        interval_s = self.settings.interval_s
        phase_s = zlib.crc32(self.node.encode()) % 1000 / 1000 * interval_s
        since_s = (self.now().timestamp() - phase_s) % interval_s
        return interval_s - since_s


_XIDS = {
    13: "an exception of a kernel, mostly an access out of bounds",
    31: "a memory page fault, mostly of the program",
    43: "the GPU stopped processing, mostly because of the program",
    45: "the program was ended on the GPU",
    48: "an uncorrectable memory error",
    61: "an error of its microcontroller",
    62: "an error of its microcontroller",
    63: "a memory row will be replaced at the next reset",
    64: "a memory row could not be replaced",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "an uncorrectable memory error, contained in one program",
    95: "an uncorrectable memory error that may concern every program",
    109: "the program did not let go of the GPU in time",
    119: "its system processor does not answer",
    120: "its system processor failed",
}
"""NVIDIA's documentation of XID errors, in few words."""

_WORDS = {
    TelemetryEventKind.gpu_lost: "the GPU no longer answers",
    TelemetryEventKind.driver_lost: "the driver of the GPUs no longer answers",
    TelemetryEventKind.gpus_stalled: "a call of the GPUs' driver does not return",
}


def format_event_warning(event: TelemetryEvent, node: str) -> str | None:
    """Return the text of a warning; None if the event is not a problem."""
    place = node if event.uuid is None else f"{event.uuid} on {node}"
    if event.kind is TelemetryEventKind.note:
        return f"{node}: {event.message}"
    if event.kind is TelemetryEventKind.xid:
        meaning = _XIDS.get(event.code or 0, "see NVIDIA's list of XID errors")
        return f"{place}: XID {event.code}: {meaning}"
    words = _WORDS.get(event.kind)
    if words is None:
        return None
    return f"{place}: {words}" + ("" if event.code is None else f" (NVML error {event.code})")


MOST_WAIT_S = 2.0
"""Longest wait for the GPUs in a sample; half an interval if that is shorter."""

STALLED = timedelta(seconds=30)
"""GPUs that have not answered for so long are said to be stalled; opening a driver takes less."""

LAST_WAIT_S = 0.5
"""Longest wait for the GPUs in the last sample."""

CLOCK_SET = timedelta(seconds=1)
"""If the clock differs by more from a monotonic one, it was set while a row was under way."""

ROWS_A_TOTAL = 10
"""A total is written after this many rows; after the first ones more often."""

_EventKey = tuple[TelemetryEventKind, str | None, int | None, str]


@dataclass(slots=True, kw_only=True)
class NodeSamples:
    """The samples of the row under way, and what is known of the node's GPUs.

    Rows end at multiples of their length (UTC), so that those of all nodes lie side by side.
    Counters are read with the last sample of a row only, as nothing else of them is written.

    All methods raise OSError if a file cannot be written; the row is lost then, and no later one.
    """

    writer: SegmentWriter
    interval: timedelta
    host: HostReader | None
    gpus: GpuThread | None
    on_event: Callable[[TelemetryEvent], None] | None = None
    monotonic: Callable[[], float] | None = None
    """A monotonic clock, to measure how long a row is; without it `take` says that alone."""
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
        self._total = RunningTotal(self.writer.read_total_of_earlier_sampler())

    def take_sample(self, at: datetime) -> None:
        """Take a sample, and write a row if it is the last of one.

        The first sample of all is a row of its own, and so is the first that GPUs answer: what they
        count later is compared with these.
        """
        row = timedelta(seconds=self.writer.row_s)
        last = self._begun is None or time_span_number(at + self.interval, row) != time_span_number(at, row)
        unknown = self.gpus is not None and not self.writer.devices
        wait_s = min(MOST_WAIT_S, self.interval.total_seconds() / 2)
        self._read_host_and_gpu_sample(at, counters=last or unknown, limit_s=wait_s)
        if last or (unknown and self.writer.devices):
            self._write_row(at)
            self._coarsen_old_segment(at)

    def finish_sampling(self, at: datetime) -> None:
        """Take the last sample, write the last row, and let go of the GPUs."""
        try:
            self._read_host_and_gpu_sample(at, counters=True, limit_s=LAST_WAIT_S)
            self._write_row(at, last=True)
        finally:
            if self.gpus is not None:
                self.gpus.close()

    def _read_host_and_gpu_sample(self, at: datetime, *, counters: bool, limit_s: float) -> None:
        started = time.perf_counter()
        reading = None
        if self.gpus is not None:
            reading = self.gpus.read_sample(counters=counters, limit_s=limit_s)
            self._samples += () if reading is None else reading.samples
        if self.host is not None:
            sample = self.host.read_sample()
            gauges = {**sample.gauges, HostGauge.sampler_s: time.perf_counter() - started}
            self._hosts.append(replace(sample, gauges=gauges))
        if self.gpus is not None:
            self._write_gpu_events_and_devices(reading, at)

    def _write_row(self, at: datetime, *, last: bool = False) -> None:
        row = TelemetryRow(
            start=self._find_row_start(at),
            end=at,
            host=build_host_row(self._hosts) if self._hosts else None,
            gpus=build_gpu_rows(self._samples),
            ranks=sum_step_reports_by_rank(self._pop_reported_rank_steps()),
        )
        repeated = [event for event in self._repeated.values() if event.count]
        self._hosts, self._samples, self._repeated = [], [], {}
        for event in repeated:
            self.writer.append_record(event, at)
        self._total.add_row(row)
        self.writer.append_record(row, at)
        self.writer.total = self._total.total
        self._rows += 1
        due = self._rows % ROWS_A_TOTAL == 0 or self._rows & (self._rows - 1) == 0
        if (last or due) and self._total.total is not None:
            self.writer.append_total(self._total.total, at)

    def _find_row_start(self, at: datetime) -> datetime:
        """Return the start of the row that ends now, by the present clock, which may have been set.

        The next one begins.
        """
        start, self._begun = self._begun or at, at
        if self.monotonic is None:
            return start
        begun_s, self._begun_s = self._begun_s, self.monotonic()
        passed_s = self._begun_s - begun_s
        passed = timedelta(seconds=max(passed_s - self.paused_s(passed_s), 0.0))
        return start if start == at or abs(at - start - passed) <= CLOCK_SET else at - passed

    def _pop_reported_rank_steps(self) -> Iterator[RankSteps]:
        while self.steps:
            yield replace(self.steps.popleft(), node="")

    def _coarsen_old_segment(self, at: datetime) -> None:
        """Make one old segment coarser, if one is due; this is checked once per segment."""
        if self._looked is None or time_span_number(self._looked, SEGMENT) != time_span_number(at, SEGMENT):
            self._looked = at
            self.writer.find_segments_due_to_coarsen(at)
        self.writer.coarsen_next_segment()

    def _write_gpu_events_and_devices(self, reading: GpuReading | None, at: datetime) -> None:
        if reading is None:
            self._answered = self._answered or at
            if not self._stalled and at - self._answered >= STALLED:
                self._stalled = True
                self._write_event_or_count_repeat(
                    TelemetryEvent(at=at, kind=TelemetryEventKind.gpus_stalled), at
                )
            return
        if self._stalled:
            self._stalled = False
            self._write_event_or_count_repeat(
                TelemetryEvent(at=at, kind=TelemetryEventKind.gpus_answered), at
            )
        self._answered = at
        if reading.devices and set(reading.devices) != set(self.writer.devices):
            self.writer.write_devices(reading.devices, at)
        for note in reading.notes:
            self._write_event_or_count_repeat(
                TelemetryEvent(at=at, kind=TelemetryEventKind.note, message=note), at
            )
        for event in reading.events:
            self._write_event_or_count_repeat(event, at)

    def _write_event_or_count_repeat(self, event: TelemetryEvent, at: datetime) -> None:
        """Write an event; of equal ones in a row only the first at once, the others as a count."""
        key = (event.kind, event.uuid, event.code, event.message)
        if key in self._repeated:
            count = self._repeated[key].count + event.count
            self._repeated[key] = replace(event, at=self._repeated[key].at, count=count)
            return
        self._repeated[key] = replace(event, count=0)
        if self.on_event is not None:
            self.on_event(event)
        self.writer.append_record(event, at)
