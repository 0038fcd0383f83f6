"""Asks the GPUs in a thread of its own: a call of a driver may take seconds, or never return.

Whoever asks waits for a bounded time. While a call hangs, further questions are answered at once,
with nothing.
"""

from __future__ import annotations

import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from hpckit.model.telemetry.vocabulary import GpuCounter, GpuDevice, GpuSample, TelemetryEvent
from hpckit.observe.amd import open_amd_backend
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.observe.nvml.backend import open_nvml_backend
from hpckit.record.process import is_process_alive, read_process_start_id, this_host
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


def open_gpu_backends(*, gpm: bool, choice: GpuChoice) -> tuple[tuple[GpuBackend, ...], tuple[str, ...]]:
    """Open every library of this node that has GPUs of the run; return backends, and notes."""
    if not choice:
        return (), ()
    openers: tuple[_Opener, ...] = (
        partial(open_nvml_backend, gpm=gpm, choice=choice),
        partial(open_amd_backend, choice),
    )
    opened = [_open_backend_safely(opener) for opener in openers]
    backends = tuple(backend for backend, _ in opened if backend is not None)
    return backends, tuple(note for _, note in opened if note)


def _open_backend_safely(opener: _Opener) -> tuple[GpuBackend | None, str]:
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

    def read_sample(self, *, counters: bool, limit_s: float) -> GpuReading | None:
        """Return a sample, None if there is none within `limit_s`: a call hangs, or still opens."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve_samples, name="gpus", daemon=True)
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

    def _serve_samples(self) -> None:
        backends: Sequence[GpuBackend] = ()
        try:
            backends, notes = self.opener()
        except Exception as error:  # noqa: BLE001  # the thread has to answer
            notes = (f"no GPU is sampled: {error}",)
        while (counters := self._asked.get()) is not None:
            answer = _read_backends(backends, counters=counters, notes=tuple(notes))
            own_s = self.shares.count_gpu_seconds_of_run(answer.devices, time.monotonic())
            self._answers.put(_add_gpu_seconds_of_run(answer, own_s) if counters else answer)
            notes = ()
        self.shares.remove_gpu_use_notes()
        for backend in backends:
            backend.close()


def _add_gpu_seconds_of_run(answer: GpuReading, own_s: Mapping[str, float]) -> GpuReading:
    samples = (
        replace(sample, counters={**sample.counters, GpuCounter.own_s: own_s[sample.uuid]})
        if sample.uuid in own_s
        else sample
        for sample in answer.samples
    )
    return replace(answer, samples=tuple(samples))


def _read_backends(backends: Sequence[GpuBackend], *, counters: bool, notes: tuple[str, ...]) -> GpuReading:
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


def gpu_use_notes_folder(root: Path = Path("/dev/shm")) -> Path:  # noqa: S108  # who owns it is checked
    """Return the folder of this user on this machine: gone when it is booted, and never shared."""
    return root / f"hpckit-gpus-{os.geteuid()}"


@dataclass(slots=True, kw_only=True)
class GpuShares:
    """Counts seconds of GPUs that are a run's own: runs divide their energy and their price.

    Nothing of a machine of one's own allocates GPUs, so runs of different launches may have one
    together: each notes itself in `notes`, a folder that only its user can write. Null where a
    scheduler gives GPUs to one job only. Runs of other users are not known. `by_parts`: the run has
    some MIG devices of a GPU alone, so its share of the GPU is that of their slices.
    """

    notes: Path | None
    by_parts: bool = False
    _own_s: dict[str, float] = field(default_factory=dict, init=False)
    _shares: dict[str, float] = field(default_factory=dict, init=False)
    _counted_at: float | None = field(default=None, init=False)

    def count_gpu_seconds_of_run(self, devices: Iterable[GpuDevice], at: float) -> Mapping[str, float]:
        """Return each whole GPU's own seconds until now, by UUID; empty if all are the run's.

        `at` is a time of a monotonic clock.
        """
        if self.notes is None and not self.by_parts:
            return {}
        passed, self._counted_at = at - (self._counted_at or at), at
        some = list(devices)
        for whole in (gpu for gpu in some if gpu.parent is None):
            parts = [gpu for gpu in some if gpu.parent == whole.uuid and self.by_parts]
            share = _compute_mig_slice_share(whole, parts) / self._count_sharing_runs(
                (parts or [whole])[0].uuid
            )
            # Others come and go between two samples: on average in the middle.
            mean = (self._shares.get(whole.uuid, share) + share) / 2
            self._own_s[whole.uuid] = self._own_s.get(whole.uuid, 0.0) + passed * mean
            self._shares[whole.uuid] = share
        return self._own_s

    def remove_gpu_use_notes(self) -> None:
        """Note that this run has no GPU any more."""
        for uuid in self._own_s if self.notes is not None else ():
            with suppress(OSError):
                self._gpu_use_note_file(uuid).unlink()

    def _count_sharing_runs(self, uuid: str) -> int:
        """Return how many runs of this user have a GPU; note this one, and forget ended ones."""
        if self.notes is None:
            return 1
        try:
            own = self._gpu_use_note_file(uuid)
            own.touch(mode=0o600)
            found = {own, *own.parent.glob(f"{uuid}.*.*")}
        except OSError:
            return 1
        ended = {claim for claim in found - {own} if not _is_note_owner_alive(claim.name)}
        for claim in ended:
            with suppress(OSError):
                claim.unlink()
        return len(found - ended)

    def _gpu_use_note_file(self, uuid: str) -> Path:
        assert self.notes is not None, "asked only where runs are noted"  # noqa: S101
        self.notes.mkdir(mode=0o700, exist_ok=True)
        found = self.notes.lstat()
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if not private or found.st_uid != os.geteuid():
            raise PermissionError(f"{self.notes} is not this user's alone")
        return self.notes / f"{uuid}.{os.getpid()}.{read_process_start_id(os.getpid())}"


def _compute_mig_slice_share(whole: GpuDevice, parts: Sequence[GpuDevice]) -> float:
    own = sum(part.slices or 0 for part in parts)
    return min(own / whole.slices, 1.0) if own and whole.slices else 1.0


def _is_note_owner_alive(name: str) -> bool:
    _, pid, mark = name.rsplit(".", 2)
    return pid.isdecimal() and is_process_alive(this_host(), int(pid), mark) is True
