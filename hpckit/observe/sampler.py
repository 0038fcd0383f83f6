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
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.settings import Observe
from hpckit.model.telemetry.vocabulary import TelemetryEvent, TelemetryEventKind
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.observe.gpu_shares import GpuShares, notes_folder
from hpckit.observe.gpu_thread import GpuOpener, GpuThread, open_gpus
from hpckit.observe.host import HostReader
from hpckit.observe.node_samples import NodeSamples
from hpckit.observe.segments import SegmentWriter
from hpckit.record.layout import AttemptPaths
from hpckit.values import dataclass, field

STOP_S = 2.0
"""How long `stop` waits for the last row, by default."""


_MOST_STEPS = 20_000
"""Reports that are held while a file system does not answer; the oldest are dropped."""


@dataclass(slots=True, kw_only=True)
class NodeSampler:
    """Samples this node until it is stopped, as `settings` say; `interval_s` 0: never.

    `attempt` is where it writes, for the node of that name. `choice` says which GPUs are the run's;
    `on_this_machine`: no scheduler gave them, so other runs may have them, too.
    `earlier` are the run's earlier attempts: their telemetry of this node is made coarser as it
    ages. `on_event` is called in the sampler's thread with everything that happened to the node,
    within an interval; it must return at once. `opener` and `now` are for tests. `unwritten` counts
    what no file could take.
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
            self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
            self._thread.start()

    def stop(self, limit_s: float = STOP_S) -> bool:
        """Write the last row; return whether that was done within `limit_s` seconds."""
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def note_steps(self, steps: RankSteps) -> None:
        """Take what a rank of this node reports of its steps; may be called by any thread."""
        if self.settings.measure_steps and self.settings.interval_s > 0:
            self._steps.append(steps)

    def _run(self) -> None:
        settings = self.settings
        writer = SegmentWriter(
            attempt=self.attempt,
            node=self.node,
            row_s=settings.row_s,
            max_mb=settings.max_mb,
            earlier=self.earlier,
        )
        samples = self._samples(writer)
        try:
            while True:
                self._try(partial(samples.take, self.now()), writer)
                if self._stopping.wait(self._pause_s()):
                    break
        finally:
            self._try(partial(samples.finish, self.now()), writer)

    def _try(self, work: Callable[[], None], writer: SegmentWriter) -> None:
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
                self._try(partial(writer.append, note, now), writer)

    def _samples(self, writer: SegmentWriter) -> NodeSamples:
        settings = self.settings
        opener = self.opener or partial(open_gpus, gpm=settings.gpm, choice=self.choice)
        notes = notes_folder() if self.on_this_machine else None
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

    def _pause_s(self) -> float:
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


def event_words(event: TelemetryEvent, node: str) -> str | None:
    """Return what to warn of; None if it is no trouble."""
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
