"""Threads that the process need not wait for: blocking work, and the writer of a checkpoint.

asyncio joins the threads of its own executor when the loop ends, but a query to a scheduler that
does not answer must not keep an attempt from ending. Here are also waits and tasks of asyncio that
lose neither a cancellation nor an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, final

T = TypeVar("T")


def _start_daemon_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="aside", daemon=True).start()


async def run_in_thread(
    work: Callable[[], T], begin: Callable[[Callable[[], None]], object] = _start_daemon_thread
) -> T:
    """Return what the work returns, or raise what it raises; if cancelled, it continues alone.

    `begin` runs it in a thread: its own, or one that does such work in turn.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def give(put: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            put(value)

    def run() -> None:
        put: Callable[[Any], None] = future.set_result
        try:
            value: Any = work()
        except BaseException as error:  # noqa: BLE001  # raised again by the await
            put, value = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(give, put, value)

    begin(run)
    return await future


async def run_in_thread_within(limit_s: float, work: Callable[[], T], otherwise: T) -> T:
    """Return what the work returns, or `otherwise` if that takes longer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            return await run_in_thread(work)
    return otherwise


@final
class WriterThread(threading.Thread):
    """Writes one checkpoint; a daemon, so that a rank can end without its peers."""


def await_checkpoint_writers(timeout_s: float) -> bool:
    """Return whether every checkpoint's thread has ended, after at most `timeout_s` seconds.

    A process group must not be torn down under a thread that uses it: that aborts the process.
    """
    until = time.monotonic() + timeout_s
    writers = [thread for thread in threading.enumerate() if isinstance(thread, WriterThread)]
    for writer in writers:
        writer.join(max(0.0, until - time.monotonic()))
    return not any(writer.is_alive() for writer in writers)


async def await_with_limit(limit_s: float, work: Awaitable[object]) -> bool:
    """Wait for the work, but not longer than this; return whether it was done.

    `asyncio.wait_for` drops a cancellation that comes when the work is done (Python 3.11), so that
    a loop that waits never ends.
    """
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        return False
    return True


def start_task_fatal_on_error(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start work without which this process is of no use: an error of it ends the event loop.

    Nothing else would report it: asyncio keeps an error until it is read, and a run whose agent no
    longer watches its ranks would wait until the job's time is over.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(_end_loop_if_failed)
    return task


def _end_loop_if_failed(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        traceback.print_exception(error)
        asyncio.get_running_loop().stop()
