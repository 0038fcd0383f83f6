"""Waits and tasks of asyncio that lose neither a cancellation nor an error."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Coroutine
from typing import Any


async def done_within(limit_s: float, work: Awaitable[object]) -> bool:
    """Wait for the work, but not longer than this; return whether it was done.

    `asyncio.wait_for` drops a cancellation that comes when the work is done (Python 3.11), so that
    a loop that waits goes on for ever.
    """
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        return False
    return True


def start_vital(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start work without which this process is of no use: an error of it ends the event loop.

    Nothing else would tell: asyncio keeps an error until somebody asks, and a run whose agent no
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
