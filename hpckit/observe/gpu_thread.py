"""Asks the GPUs in a thread of its own: a call of a driver may take seconds, or never return.

Whoever asks waits for a bounded time. While a call hangs, further questions are answered at once,
with nothing.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from hpckit.model.telemetry.vocabulary import GpuCounter, GpuDevice, GpuSample, TelemetryEvent
from hpckit.observe.amd import open_amd
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.observe.gpu_shares import GpuShares
from hpckit.observe.nvml.backend import open_nvml
from hpckit.values import dataclass, field, replace


class GpuBackend(Protocol):
    """The GPUs of a node through one vendor's library, whichever it is.

    Made by an `open_…` function, used by one thread at a time, closed once. None of its methods
    raises because of a GPU or a driver: what is wrong with them is part of what they return.
    """

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the GPUs as last found: after a `driver_reloaded` they may differ."""

    def sample(self, *, counters: bool) -> tuple[GpuSample, ...]:
        """Return a sample of each GPU that answers, or has a trouble; counters only if asked."""

    def events(self) -> tuple[TelemetryEvent, ...]:
        """Return what happened since the last call, the oldest first."""

    def close(self) -> None:
        """Let go of the library."""


GpuOpener = Callable[[], tuple[Sequence[GpuBackend], Sequence[str]]]
"""Opens what there is; returns the backends, and notes for people."""

_Opener = Callable[[], tuple[GpuBackend | None, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One answer: samples, what the GPUs are, and what happened since the answer before.

    An answer that comes too late has no samples.
    """

    samples: tuple[GpuSample, ...] = ()
    devices: tuple[GpuDevice, ...] = ()
    events: tuple[TelemetryEvent, ...] = ()
    notes: tuple[str, ...] = ()


def open_gpus(*, gpm: bool, choice: GpuChoice) -> tuple[tuple[GpuBackend, ...], tuple[str, ...]]:
    """Open every library of this node that has GPUs of the run; return backends, and notes."""
    if not choice:
        return (), ()
    openers: tuple[_Opener, ...] = (
        partial(open_nvml, gpm=gpm, choice=choice),
        partial(open_amd, choice),
    )
    opened = [_opened(opener) for opener in openers]
    backends = tuple(backend for backend, _ in opened if backend is not None)
    return backends, tuple(note for _, note in opened if note)


def _opened(opener: _Opener) -> tuple[GpuBackend | None, str]:
    try:
        return opener()
    except Exception as error:  # noqa: BLE001  # another vendor's library may still answer
        return None, f"a library of GPUs cannot be read: {error}"


@dataclass(slots=True)
class GpuThread:
    """Takes samples of all GPUs; `opener` is called in the thread, and `shares` used in it."""

    opener: GpuOpener
    shares: GpuShares
    _asked: queue.SimpleQueue[bool | None] = field(default_factory=queue.SimpleQueue, init=False)
    _answers: queue.SimpleQueue[GpuReading] = field(default_factory=queue.SimpleQueue, init=False)
    _waiting: bool = field(default=False, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def read(self, *, counters: bool, limit_s: float) -> GpuReading | None:
        """Return a sample, None if there is none within `limit_s`: a call hangs, or still opens."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
            self._thread.start()
        late = self._waiting
        if not late:
            self._asked.put(counters)
            self._waiting = True
        try:
            answer = self._answers.get(timeout=0.0 if late else limit_s)
        except queue.Empty:
            return None
        self._waiting = False
        return replace(answer, samples=()) if late else answer

    def close(self) -> None:
        """Let the thread close the libraries and end; does not wait for it."""
        self._asked.put(None)

    def _run(self) -> None:
        backends: Sequence[GpuBackend] = ()
        try:
            backends, notes = self.opener()
        except Exception as error:  # noqa: BLE001  # the thread has to answer
            notes = (f"no GPU is sampled: {error}",)
        while (counters := self._asked.get()) is not None:
            answer = _read(backends, counters=counters, notes=tuple(notes))
            own_s = self.shares.count(answer.devices, time.monotonic())
            self._answers.put(_with_own(answer, own_s) if counters else answer)
            notes = ()
        self.shares.close()
        for backend in backends:
            backend.close()


def _with_own(answer: GpuReading, own_s: Mapping[str, float]) -> GpuReading:
    """Return the answer with the own seconds of each GPU as a counter."""
    samples = (
        replace(sample, counters={**sample.counters, GpuCounter.own_s: own_s[sample.uuid]})
        if sample.uuid in own_s
        else sample
        for sample in answer.samples
    )
    return replace(answer, samples=tuple(samples))


def _read(backends: Sequence[GpuBackend], *, counters: bool, notes: tuple[str, ...]) -> GpuReading:
    samples: list[GpuSample] = []
    for backend in backends:
        try:
            samples += backend.sample(counters=counters)
        except Exception as error:  # noqa: BLE001  # the next sample may be better
            notes = (*notes, f"GPUs were not sampled: {error}")
    return GpuReading(
        samples=tuple(samples),
        devices=tuple(device for backend in backends for device in backend.devices()),
        events=tuple(event for backend in backends for event in backend.events()),
        notes=notes,
    )
