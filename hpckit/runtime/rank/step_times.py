"""Where the time of this rank's steps goes: measured in the rank, reported every few seconds.

It reads clocks, and knows neither files nor the agent. It costs a few microseconds a step.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager, suppress
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from hpckit.errors import UsageError
from hpckit.model.rank import RankInfo
from hpckit.model.telemetry.rank_steps import DATA_PHASE, RankSteps
from hpckit.values import dataclass, field

REPORT_S = 2.0
"""Least time between two reports of a rank."""

_MOST_PHASES = 16
_LONGEST_NAME = 40
_FUTEX = {"x86_64": 202, "aarch64": 98, "ppc64le": 221}
_PAUSES_S = (0.017, 0.023, 0.02)
"""Times between samples; they differ, so that no step keeps pace with them."""

Batch = TypeVar("Batch")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(slots=True)
class OwnWaits:
    """What the thread that makes it has waited for on its own since then, in `seconds`.

    It slept, read files, asked a server. A rank that waits in a collective of gloo sleeps in a futex, as it
    does for a lock; in any other system call it waits for something of its own. Linux says which one a thread
    sleeps in; a sample of it costs some 10 microseconds. Where it is not said, nothing is counted.
    """

    seconds: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        futex = _FUTEX.get(platform.machine())
        if futex is None:
            return
        with suppress(OSError, RuntimeError):  # not readable, or no more threads
            path = f"/proc/self/task/{threading.get_native_id()}/syscall"
            file = os.open(path, os.O_RDONLY)
            words = (self, file, futex, self._over)
            threading.Thread(
                target=_count_waits_besides_futex, args=words, name="own-waits", daemon=True
            ).start()

    def stop_counting(self) -> None:
        """Count no longer."""
        self._over.set()


def _count_waits_besides_futex(waits: OwnWaits, file: int, futex: int, over: threading.Event) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with suppress(OSError):
        before, turn = time.perf_counter(), 0
        while not over.wait(_PAUSES_S[turn % len(_PAUSES_S)]):
            call, now = os.pread(file, 20, 0).split(), time.perf_counter()
            if call and call[0].isdigit() and int(call[0]) != futex:
                waits.seconds += now - before
            before, turn = now, turn + 1
    os.close(file)


class ThreadWork:
    """Own work of a rank on CPUs: its thread ran, or waited for a CPU that was taken from it.

    With others in its group (`alone` is False) it is also what it waited for on its own, such as a
    file. It is right for gloo, whose collectives sleep while they wait for other ranks. Use it in
    the thread of the steps only.
    """

    def __init__(self, *, alone: bool = True) -> None:
        self._waits = None if alone else OwnWaits()
        self._schedule: int | None = None
        with suppress(OSError):
            self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def __del__(self) -> None:
        if self._waits is not None:
            self._waits.stop_counting()
        if self._schedule is not None:
            with suppress(OSError):
                os.close(self._schedule)

    def own_work_seconds(self) -> float:
        """Return the seconds in which this thread ran, or was kept from it but by other ranks."""
        waited_s = 0.0 if self._waits is None else self._waits.seconds
        return time.thread_time() + self._seconds_waiting_for_cpu() + waited_s

    def _seconds_waiting_for_cpu(self) -> float:
        if self._schedule is None:
            return 0.0
        try:
            return int(os.pread(self._schedule, 100, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0


class _Apart(Enum):
    """Time within a step that is told apart from the rank's computing."""

    data = auto()
    checkpoint = auto()
    boundary = auto()
    left_out = auto()


@dataclass(slots=True)
class _Sums:
    """The sums of the report under way; `apart_own_s` is own work in what is told apart."""

    first_step: int
    begun_at: float
    own_at: float | None
    steps: int = 0
    apart_s: dict[_Apart, float] = field(default_factory=lambda: dict.fromkeys(_Apart, 0.0))
    apart_own_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class StepTimes:
    """The times of the steps of `rank`; `send` gets a report every `REPORT_S` seconds.

    `own` measures its own work, None if that cannot be told from waiting; `alone` says that there
    is no other rank to wait for. `samples_per_step` are those of all ranks, 0 if unknown. The first
    step of a loop is left out: it compiles and fills caches. Without `send`, nothing is measured.
    """

    rank: int = 0
    send: Callable[[RankSteps], None] | None = None
    gpu: str | None = None
    alone: bool = False
    own: Callable[[], float | None] | None = None
    samples_per_step: int = 0
    clock: Callable[[], float] = time.perf_counter
    warn: Callable[[str], object] = logging.getLogger("hpckit.rank").warning
    _sums: _Sums | None = field(default=None, init=False)
    _begun: bool = field(default=False, init=False)
    _thread: int = field(default=0, init=False)
    _inside: bool = field(default=False, init=False)
    _names: set[str] = field(default_factory=set, init=False)
    _full: bool = field(default=False, init=False)
    _missed_once: bool = field(default=False, init=False)

    def begin_step(self, step: int) -> None:
        """Note that a step begins, and that the one before has ended."""
        if self.send is None:
            return
        if not self._begun:
            self._begun, self._thread = True, threading.get_ident()
        elif self._sums is None:
            self._restart_sums(step)
        else:
            self._sums.steps += 1
            if self.clock() - self._sums.begun_at >= REPORT_S:
                self._send_report()
                self._restart_sums(step)

    def end_last_step(self) -> None:
        """Note that the last step has ended, and report what has not been reported."""
        if self._sums is not None:
            self._sums.steps += 1
            self._send_report()
        self.forget_unreported()

    def forget_unreported(self) -> None:
        """Forget what has not been reported: a loop was left within a step, or a new one begins."""
        self._sums, self._begun = None, False

    def _restart_sums(self, step: int) -> None:
        self._sums = _Sums(first_step=step, begun_at=self.clock(), own_at=self._measure_own_work())

    def _measure_own_work(self) -> float | None:
        return None if self.own is None else self.own()

    def _send_report(self) -> None:
        sums = self._sums
        if sums is None or self.send is None:
            return
        seconds = self.clock() - sums.begun_at - sums.apart_s[_Apart.left_out]
        if seconds <= 0:
            return
        checkpoint_s = sums.apart_s[_Apart.checkpoint]
        own_s = self._own_work_s(sums, most_s=max(seconds - checkpoint_s, 0.0))
        report = RankSteps(
            rank=self.rank,
            gpu=self.gpu,
            first_step=sums.first_step,
            steps=sums.steps,
            samples=sums.steps * self.samples_per_step or None,
            seconds=seconds,
            data_s=sums.apart_s[_Apart.data],
            checkpoint_s=checkpoint_s,
            waiting_s=None if own_s is None else max(seconds - checkpoint_s - own_s, 0.0),
            own_s=own_s,
            phases=sums.phases,
        )
        self.send(report)

    def _own_work_s(self, sums: _Sums, *, most_s: float) -> float | None:
        """Return the own work of the report under way; waiting for data counts as own."""
        if self.alone:
            return most_s
        now = self._measure_own_work()
        if now is None or sums.own_at is None:
            return None
        computing_s = max(now - sums.own_at - sums.apart_own_s, 0.0)
        return min(computing_s + sums.apart_s[_Apart.data], most_s)

    def measure_phase(self, name: str) -> PhaseMeasurement:
        """Count what is done within as this phase; `data` is waiting for data.

        Of more than 16 different names only the first 16 are counted, and a warning says so; so does one if
        the phase is never entered, as its `with` is missing. Raises UsageError for a name that is none.
        """
        if name == DATA_PHASE:
            return PhaseMeasurement(
                partial(self._count_time_as, _Apart.data), partial(self._warn_unused_phase, name)
            )
        self._check_phase_name(name)
        return PhaseMeasurement(partial(self._count_phase, name), partial(self._warn_unused_phase, name))

    def _warn_unused_phase(self, name: str) -> None:
        if not self._missed_once:
            self._missed_once = True
            self.warn(
                f"run.timed({name!r}) measures nothing without `with`: write `with run.timed({name!r}):`"
            )

    @contextmanager
    def _count_phase(self, name: str) -> Iterator[None]:
        began = self.clock()
        try:
            yield
        finally:
            if self._sums is not None and name in self._names:
                took = min(self.clock() - began, self.clock() - self._sums.begun_at)
                self._sums.phases[name] = self._sums.phases.get(name, 0.0) + took

    def count_as_saving(self) -> AbstractContextManager[None]:
        """Count what is done within as standing still for a save."""
        return self._count_time_as(_Apart.checkpoint)

    def count_as_waiting(self) -> AbstractContextManager[None]:
        """Count what is done within as waiting for the other ranks at a boundary."""
        return self._count_time_as(_Apart.boundary)

    def leave_time_out(self) -> AbstractContextManager[None]:
        """Count what is done within as no part of a step, such as an evaluation."""
        return self._count_time_as(_Apart.left_out)

    @contextmanager
    def _count_time_as(self, kind: _Apart) -> Iterator[None]:
        """Count time as this kind. Within another kind, or in another thread, it is not counted."""
        if self._sums is None or self._inside or threading.get_ident() != self._thread:
            yield
            return
        began, own_began = self.clock(), self._measure_own_work()
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            if self._sums is not None:
                self._sums.apart_s[kind] += self.clock() - began
                own = self._measure_own_work()
                if own is not None and own_began is not None:
                    self._sums.apart_own_s += own - own_began

    def _check_phase_name(self, name: str) -> None:
        if name in self._names:
            return
        if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME:
            raise UsageError(
                f"run.timed({name!r}): the name of a phase must be a text of 1 to {_LONGEST_NAME} characters",
                hint='write `with run.timed("forward"):`',
            )
        if len(self._names) < _MOST_PHASES:
            self._names.add(name)
        elif not self._full:
            self._full = True
            self.warn(
                f"run.timed({name!r}): only the first {_MOST_PHASES} phases of a run are counted "
                f"({', '.join(sorted(self._names))}); name phases, not steps or batches"
            )


class PhaseMeasurement(ContextDecorator):
    """A phase to be measured, once or as often as a function is called that it decorates.

    `missed` is called if it goes away without having been used.
    """

    def __init__(
        self, begin: Callable[[], AbstractContextManager[None]], missed: Callable[[], object]
    ) -> None:
        self._begin, self._missed = begin, missed
        self._under_way: list[AbstractContextManager[None]] = []
        self._used = False

    def __call__(self, function: Function) -> Function:
        """Return the function, each call of which is the phase."""
        self._used = True
        return super().__call__(function)

    def __enter__(self) -> None:
        self._used = True
        entered = self._begin()
        entered.__enter__()
        self._under_way.append(entered)

    def __exit__(self, *error: object) -> None:
        self._under_way.pop().__exit__(*error)  # type: ignore[arg-type]

    def __del__(self) -> None:
        if not self._used:
            self._missed()


@dataclass(frozen=True, slots=True)
class TimedBatches(Generic[Batch]):
    """An iterable whose batches are waited for within `timed("data")`, as of a Run."""

    batches: Iterable[Batch]
    timed: Callable[[str], AbstractContextManager[None]]

    def __post_init__(self) -> None:
        if not hasattr(self.batches, "__iter__") and not hasattr(self.batches, "__getitem__"):
            raise UsageError(
                f"run.timed_batches({self.batches!r}): this cannot be looped over",
                hint="pass the loader itself: `for batch in run.timed_batches(loader):`",
            )

    def __iter__(self) -> Iterator[Batch]:
        with self.timed(DATA_PHASE):
            rest = iter(self.batches)
        while True:
            with self.timed(DATA_PHASE):
                try:
                    batch = next(rest)
                except StopIteration:
                    return
            yield batch

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]  # raises TypeError as the iterable does


def make_step_times(
    info: RankInfo, device: torch.device, send: Callable[[RankSteps], None], *, samples_per_step: int
) -> StepTimes:
    """Return what measures the steps of a rank on this device, in the thread of its loop."""
    on_cpu, alone = device.type == "cpu", info.world_size == 1
    on_gpu = device.type == "cuda"
    return StepTimes(
        rank=info.rank,
        send=send,
        gpu=f"GPU-{torch.cuda.get_device_properties(device).uuid}" if on_gpu else None,
        alone=alone,
        own=ThreadWork(alone=alone).own_work_seconds if on_cpu else None,
        samples_per_step=samples_per_step,
    )
