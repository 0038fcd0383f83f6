"""Asking after drained nodes: slowly, less often in bad times, and told once."""

from __future__ import annotations

import asyncio

import pytest

from hpckit.runtime.supervisor.drain_poll import Drained, poll_draining_nodes, polling_pause_s


def test_pause_is_about_the_interval() -> None:
    """Runs that began together do not ask together."""
    assert (polling_pause_s(300, 0, 0), polling_pause_s(300, 0, 0.5), polling_pause_s(300, 0, 1)) == (
        225,
        300,
        375,
    )
    assert polling_pause_s(0.001, 0, 0.5) == 1, "no interval makes it a flood"


def test_pause_grows_with_every_bad_answer_within_bounds() -> None:
    """Where Slurm is away or slow it is asked half as often each time, but at least hourly."""
    assert [polling_pause_s(300, bad, 0.5) for bad in (1, 2, 10, 999)] == [600, 1200, 3600, 3600]
    assert polling_pause_s(7200, 3, 0.5) == 7200


def test_poll_survives_silence_and_hands_on_an_answer() -> None:
    """No answer is no error, and the next one is heard."""
    answers: list[Drained | None] = [None, {"n2": "fan 3"}]
    heard = asyncio.run(poll(answers, wanted=True))
    assert heard == [{"n2": "fan 3"}]


def test_poll_asks_nothing_where_nobody_could_act_on_it() -> None:
    """While no step is done the controller is left alone; with interval 0, always."""
    answers: list[Drained | None] = [{"n2": ""}]
    with pytest.raises(TimeoutError):
        asyncio.run(poll(answers, wanted=False))
    assert asyncio.run(poll(answers, wanted=True, interval_s=0)) == []
    assert len(answers) == 1


async def poll(answers: list[Drained | None], *, wanted: bool, interval_s: float = 1) -> list[Drained]:
    """Poll until something is heard, or the poll ends by itself; returns what was heard."""
    async with asyncio.timeout(30 if wanted else 2):
        async for found in poll_draining_nodes(interval_s, lambda: answers.pop(0), lambda: wanted):
            return [found]
    return []
