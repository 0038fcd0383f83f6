"""Promises of `aside`: blocking work that neither holds up the loop nor its end."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from hpckit.runtime.threads import run_in_thread


def test_aside_returns_and_raises_what_the_work_does() -> None:
    """Results and errors arrive where the work is awaited."""

    async def both() -> int:
        with pytest.raises(ZeroDivisionError):
            await run_in_thread(lambda: 1 // 0)
        return await run_in_thread(lambda: 7)

    assert asyncio.run(both()) == 7


def test_aside_does_not_keep_the_loop_from_ending() -> None:
    """Work that nobody waits for any more is left behind."""
    release = threading.Event()

    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_in_thread(release.wait), 0.05)

    begun = time.monotonic()
    asyncio.run(impatient())
    waiting = [one for one in threading.enumerate() if one.name == "aside"]
    assert waiting, "the work goes on"
    assert time.monotonic() - begun < 60
    release.set()
    for one in waiting:
        one.join(10)
        assert not one.is_alive()
