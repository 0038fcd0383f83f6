"""How long a thread waited for something else than other ranks: slept, read files, asked a server.

A rank that waits in a collective of gloo sleeps in a futex, as it does for a lock. In any other
system call it waits for something of its own. Linux says which one a thread sleeps in; a sample of
it costs some 10 microseconds. Where it is not said, nothing is counted.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from contextlib import suppress

from hpckit.values import dataclass, field

_FUTEX = {"x86_64": 202, "aarch64": 98, "ppc64le": 221}
_PAUSES_S = (0.017, 0.023, 0.02)
"""Times between samples; they differ, so that no step keeps pace with them."""


@dataclass(slots=True)
class OwnWaits:
    """What the thread that makes it has waited for on its own since then, in `seconds`."""

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
            threading.Thread(target=_watch, args=words, name="own-waits", daemon=True).start()

    def stop(self) -> None:
        """Count no longer."""
        self._over.set()


def _watch(waits: OwnWaits, file: int, futex: int, over: threading.Event) -> None:
    """Sample until told to stop, or the thread has ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with suppress(OSError):
        before, turn = time.perf_counter(), 0
        while not over.wait(_PAUSES_S[turn % len(_PAUSES_S)]):
            call, now = os.pread(file, 20, 0).split(), time.perf_counter()
            if call and call[0].isdigit() and int(call[0]) != futex:
                waits.seconds += now - before
            before, turn = now, turn + 1
    os.close(file)
