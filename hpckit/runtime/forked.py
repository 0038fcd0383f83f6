"""Processes forked from one that has already imported what they need, so that a start is cheap.

Starts and signals such a process, and reads its exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

from hpckit.record.process import read_process_start_id
from hpckit.runtime.environ import replace_environment
from hpckit.runtime.signals import NOTICES
from hpckit.values import dataclass, field

Program = Callable[[Sequence[str]], int]
"""Takes its words and returns its exit code; a function of a module."""

_POLL_S = 1.0
_UNSEEN = 255


@dataclass(slots=True, eq=False)
class Forked:
    """A forked process with the interface of asyncio's processes."""

    process: BaseProcess
    _mark: str | None = field(init=False)
    _ended: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _watched: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._mark = read_process_start_id(self.process.pid or 0)

    def send_signal(self, number: int) -> None:
        """Send it a signal; raises ProcessLookupError if it has left."""
        if self.process.pid is None or not self._is_alive():
            raise ProcessLookupError
        os.kill(self.process.pid, number)

    async def wait(self) -> int:
        """Return its exit code, in the form of `subprocess`; 255 if no process saw its end."""
        if not self._watched:
            self._watched = True
            asyncio.get_running_loop().add_reader(self.process.sentinel, self._mark_ended)
        await self._ended.wait()
        self.process.join()
        # If the forking process was killed, this one lives on unobserved.
        while self._is_alive():  # noqa: ASYNC110  # nothing reports its end
            await asyncio.sleep(_POLL_S)
        return _UNSEEN if self.process.exitcode is None else self.process.exitcode

    def _mark_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self.process.sentinel)
        self._ended.set()

    def _is_alive(self) -> bool:
        """Return whether this process is alive; its pid may belong to another process by now."""
        return self._mark is not None and read_process_start_id(self.process.pid or 0) == self._mark


def fork_program(
    program: Program,
    words: Sequence[str],
    environ: Mapping[str, str],
    *,
    cpus: Sequence[int] = (),
    imports: Sequence[str] = (),
) -> Forked:
    """Start a program with this environment, bound to these CPUs; raises OSError.

    It is forked from a process that has imported these modules, which the first call starts and
    waits for. It inherits none of the caller's threads and loops.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([program.__module__, *imports])
    arguments = (program, tuple(words), dict(environ), tuple(cpus))
    process = context.Process(target=_run_forked_program, args=arguments)
    # The tracker unblocks signals when it starts, and would do so below.
    resource_tracker.ensure_running()
    # The forking process inherits this mask; signals to the whole job would end it otherwise.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    try:
        process.start()
    except EOFError as error:
        raise OSError("the process that forks others has ended") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Forked(process)


def _run_forked_program(
    program: Program, words: Sequence[str], environ: Mapping[str, str], cpus: Sequence[int]
) -> None:
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)
    replace_environment(environ)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)
    sys.exit(program(words))
