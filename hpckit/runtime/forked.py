"""Processes that are forks of one that has imported what they need: a start costs next to nothing.

Responsible for starting such a process, for signalling it, and for its exit code; it must not know
what it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

from hpckit.record.process import start_mark
from hpckit.runtime.environ import become
from hpckit.runtime.signals import NOTICES

Program = Callable[[Sequence[str]], int]
"""Takes its words and returns its exit code; a function of a module."""

_POLL_S = 1.0
_UNSEEN = 255


@dataclass(slots=True, eq=False)
class Forked:
    """A process that was forked, to be dealt with as with one of asyncio's."""

    process: BaseProcess
    _mark: str | None = field(init=False)
    _ended: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _watched: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._mark = start_mark(self.process.pid or 0)

    def send_signal(self, number: int) -> None:
        """Send it a signal; raises ProcessLookupError where it has left."""
        if self.process.pid is None or not self._lives():
            raise ProcessLookupError
        os.kill(self.process.pid, number)

    async def wait(self) -> int:
        """Return its exit code, as `subprocess` has it; 255 where nobody saw its end."""
        if not self._watched:
            self._watched = True
            asyncio.get_running_loop().add_reader(self.process.sentinel, self._see_end)
        await self._ended.wait()
        self.process.join()
        # Where the process that forks was killed, this one lives on unobserved.
        while self._lives():  # noqa: ASYNC110  # nobody is told of it
            await asyncio.sleep(_POLL_S)
        return _UNSEEN if self.process.exitcode is None else self.process.exitcode

    def _see_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self.process.sentinel)
        self._ended.set()

    def _lives(self) -> bool:
        """Whether that very process is there; its pid may be somebody else's by now."""
        return self._mark is not None and start_mark(self.process.pid or 0) == self._mark


def fork(
    program: Program,
    words: Sequence[str],
    environ: Mapping[str, str],
    *,
    cpus: Sequence[int] = (),
    imports: Sequence[str] = (),
) -> Forked:
    """Start a program with this environment, bound to these CPUs; raises OSError.

    It is forked from a process that has imported these modules, which the first call starts and
    waits for. Nothing of the caller's threads and loops gets into it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([program.__module__, *imports])
    arguments = (program, tuple(words), dict(environ), tuple(cpus))
    process = context.Process(target=_begin, args=arguments)
    # It unblocks signals when it starts, and would do so below.
    resource_tracker.ensure_running()
    # What the whole job is told would end the process that forks, which inherits this.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    try:
        process.start()
    except EOFError as error:
        raise OSError("the process that forks others has ended") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Forked(process)


def _begin(
    program: Program, words: Sequence[str], environ: Mapping[str, str], cpus: Sequence[int]
) -> None:
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)
    become(environ)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)
    sys.exit(program(words))
