"""Faults inside a rank, planned with the config key `chaos`: at a step boundary, once.

Carries out a planned fault in its rank and writes the marks that keep a restarted rank from
repeating it. Imports no torch. Without planned faults, a step costs one dictionary look-up.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from hpckit.model.fault import Fault, FaultKind
from hpckit.planning.faults import parse_planned_faults
from hpckit.record.store import PRIVATE_FILE, make_private_folder
from hpckit.runtime.clock import now
from hpckit.values import dataclass, field

FILL_FILE = "hpckit-chaos-fill"
"""Name of the file that fills a disk."""

_FOR_EVER_S = 10 * 365 * 86400.0
_MB = 1 << 20
_LEAK_MB = 16


class InjectedFaultError(RuntimeError):
    """The exception of a `raise` fault; to hpckit it looks like one of the user's code."""


@dataclass(slots=True, kw_only=True)
class FaultInjector:
    """The planned faults of one rank. `poisoned` means that metrics should come out as NaN."""

    marks: Path
    due: Mapping[int, tuple[tuple[int, Fault], ...]]
    poisoned: bool = False
    _leak_mb: int = 0
    _leaked: list[mmap.mmap] = field(default_factory=list)

    def inject_due_faults(self, step: int) -> None:
        """Run what is planned before this step; may not return, and may raise anything."""
        if self._leak_mb:
            self._leaked.append(_allocate_real_memory(self._leak_mb * _MB))
        for number, fault in self.due.get(step, ()):
            if self._claim_occurrence(number, fault):
                sys.stderr.write(f"hpckit: chaos: {fault.text}\n")
                sys.stderr.flush()
                self._inject_fault(fault)

    def _claim_occurrence(self, number: int, fault: Fault) -> bool:
        """Use up one of the times a fault may happen.

        If a mark cannot be written (full disk), skip the fault: otherwise it would repeat without end.
        """
        if fault.times is None:
            return True
        name = f"{number:03d}-{fault.kind}-rank-{fault.rank}"
        try:
            make_private_folder(self.marks)
            marks = (self.marks / f"{name}.{time_}.json" for time_ in range(fault.times))
            return any(_write_mark_if_new(mark, fault) for mark in marks)
        except OSError as error:
            sys.stderr.write(f"hpckit: chaos: left out {fault.text}: {error}\n")
            return False

    def _inject_fault(self, fault: Fault) -> None:
        if fault.kind is FaultKind.nan:
            self.poisoned = True
        elif fault.kind is FaultKind.leak:
            self._leak_mb = fault.mb_per_step or _LEAK_MB
        else:
            _ACTS[fault.kind](fault)


def make_fault_injector(words: Iterable[str], marks: Path, rank: int) -> FaultInjector:
    """Return the injector of a rank; `marks` is the folder of its run's marks.

    Raises ConfigError for words that are no planned fault.
    """
    due: dict[int, tuple[tuple[int, Fault], ...]] = {}
    for number, fault in enumerate(parse_planned_faults(words)):
        if fault.rank == rank and fault.step is not None:
            due[fault.step] = (*due.get(fault.step, ()), (number, fault))
    return FaultInjector(marks=marks, due=due)


def _write_mark_if_new(path: Path, fault: Fault) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    except FileExistsError:
        return False
    at = now().isoformat(timespec="milliseconds")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps({"at": at, "fault": fault.text, "pid": os.getpid()}) + "\n")
    return True


def _hang_in_python(fault: Fault) -> None:
    """Wait in Python: the GIL is free, other threads and signal handlers run."""
    deadline = time.monotonic() + _fault_duration_s(fault)
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 3600.0))


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _hang_holding_gil(fault: Fault) -> None:
    """Wait in C with the GIL held: no thread and no Python handler runs, nothing interrupts it.

    Locks a mutex twice from the same thread; on Linux, 64 zero bytes are an unlocked mutex.
    """
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    whole, part = divmod(time.time() + _fault_duration_s(fault), 1.0)
    until = _Timespec(int(whole), int(part * 1e9))
    libc.pthread_mutex_timedlock(mutex, ctypes.byref(until))


def _raise_fault(fault: Fault) -> NoReturn:
    raise InjectedFaultError(f"chaos: {fault.text}")


def _exit_with_code(fault: Fault) -> NoReturn:
    raise SystemExit(1 if fault.code is None else fault.code)


def _run_out_of_memory(fault: Fault) -> NoReturn:
    """Allocate until the kernel kills this process or, with a limit, until Python refuses."""
    if fault.limit_mb is None:
        # If the whole host runs out of memory, the kernel should kill this process.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        _allocate_until_refused()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * mmap.PAGESIZE + fault.limit_mb * _MB
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        _allocate_until_refused()
    finally:
        # Recording this end needs memory.
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _allocate_until_refused() -> NoReturn:
    held = []
    try:
        while True:
            held.append(_allocate_real_memory(_LEAK_MB * _MB))
    except OSError as error:
        held.clear()
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError("chaos: out of memory, as planned") from None


def _allocate_real_memory(size: int) -> mmap.mmap:
    """Return memory that is really allocated: one byte of every page is written. Raises OSError."""
    memory = mmap.mmap(-1, size)
    for at in range(0, size, mmap.PAGESIZE):
        memory[at] = 1
    return memory


def _fill_disk(fault: Fault) -> None:
    """Take all space of a file system, or `limit_mb` of it; give it back after `seconds`."""
    assert fault.folder is not None, "the grammar asks for a folder"  # noqa: S101
    path = Path(fault.folder).expanduser() / f"{FILL_FILE}-{os.getpid()}"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE)
    try:
        _grow_file(handle, None if fault.limit_mb is None else fault.limit_mb * _MB)
    finally:
        os.close(handle)
    if fault.seconds is not None:
        timer = threading.Timer(fault.seconds, path.unlink, kwargs={"missing_ok": True})
        timer.daemon = True
        timer.start()


def _grow_file(handle: int, limit: int | None) -> None:
    taken, piece = 0, 64 * _MB
    while piece >= mmap.PAGESIZE and (limit is None or taken < limit):
        size = piece if limit is None else min(piece, limit - taken)
        try:
            os.posix_fallocate(handle, taken, size)
            taken += size
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise
            piece //= 2


def _fault_duration_s(fault: Fault) -> float:
    return _FOR_EVER_S if fault.seconds is None else fault.seconds


_ACTS: Mapping[FaultKind, Callable[[Fault], object]] = {
    FaultKind.kill: lambda _fault: os.kill(os.getpid(), signal.SIGKILL),
    FaultKind.stop: lambda _fault: os.kill(os.getpid(), signal.SIGSTOP),
    FaultKind.hang: _hang_in_python,
    FaultKind.hang_gil: _hang_holding_gil,
    FaultKind.segfault: lambda _fault: ctypes.string_at(0),
    FaultKind.abort: lambda _fault: os.abort(),
    FaultKind.raise_: _raise_fault,
    FaultKind.exit: _exit_with_code,
    FaultKind.oom: _run_out_of_memory,
    FaultKind.fill_disk: _fill_disk,
}
