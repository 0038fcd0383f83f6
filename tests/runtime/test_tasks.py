"""Waits and tasks of the supervisor and its agents: no cancellation is lost, and no error."""

from __future__ import annotations

import asyncio

import pytest

from hpckit.runtime.threads import await_with_limit, start_task_fatal_on_error


def test_cancellation_that_comes_as_the_work_ends_is_not_lost() -> None:
    """A loop that waits for news ends when it is cancelled in the very moment the news comes."""

    async def main() -> bool:
        news = asyncio.Event()

        async def watch() -> None:
            while True:
                await await_with_limit(10, news.wait())
                news.clear()

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        news.set()
        await asyncio.sleep(0)  # the news is taken, and who waits for it is not told yet
        watching.cancel()
        await asyncio.wait({watching}, timeout=5)
        return watching.cancelled()

    assert asyncio.run(main())


def test_what_takes_too_long_is_said_and_ends() -> None:
    """The work is cancelled at its limit; what is done in time is waited for."""

    async def main() -> tuple[bool, bool]:
        return await await_with_limit(0.01, asyncio.sleep(60)), await await_with_limit(
            60, asyncio.sleep(0.01)
        )

    assert asyncio.run(main()) == (False, True)


def test_error_of_vital_work_ends_the_process_and_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """An agent that can no longer watch its ranks must not wait for a word that never comes."""

    async def broken() -> None:
        raise ValueError("the board is gone")

    async def main() -> None:
        task = start_task_fatal_on_error(broken())
        await asyncio.Event().wait()
        await task

    with pytest.raises(RuntimeError, match="stopped"):
        asyncio.run(asyncio.wait_for(main(), 30))
    assert "ValueError: the board is gone" in capsys.readouterr().err


def test_end_of_vital_work_that_was_cancelled_is_no_error() -> None:
    """A round that is over cancels what it started."""

    async def main() -> bool:
        task = start_task_fatal_on_error(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0.05)
        return task.cancelled()

    assert asyncio.run(main())
