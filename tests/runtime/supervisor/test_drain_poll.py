"""Asking after drained nodes: slowly, less often in bad times, and told once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from hpckit.model.events import Event, NodeDraining, Warned
from hpckit.model.failure import Cause, Failure
from hpckit.planning.recovery.round_view import NewRound, Stay
from hpckit.runtime.supervisor.drain_poll import Drained, DrainNews, pause_s, poll_drained

BECAUSE = Failure(cause=Cause.drained, message="")
STAY = Stay(because="no spare")
MOVE = NewRound(because=BECAUSE, nodes=("n1", "n3"))


def test_pause_is_about_the_interval() -> None:
    """Runs that began together do not ask together."""
    assert (pause_s(300, 0, 0), pause_s(300, 0, 0.5), pause_s(300, 0, 1)) == (225, 300, 375)
    assert pause_s(0.001, 0, 0.5) == 1, "no interval makes it a flood"


def test_pause_grows_with_every_bad_answer_within_bounds() -> None:
    """Where Slurm is away or slow it is asked half as often each time, but at least hourly."""
    assert [pause_s(300, bad, 0.5) for bad in (1, 2, 10, 999)] == [600, 1200, 3600, 3600]
    assert pause_s(7200, 3, 0.5) == 7200


def kinds(events: Iterator[Event]) -> list[tuple[str, str]]:
    """Return what was said of which node; a warning by its words."""
    return [
        (event.node, event.action) if isinstance(event, NodeDraining) else ("", event.message)
        for event in events
        if isinstance(event, NodeDraining | Warned)
    ]


def test_drain_is_told_once_and_again_when_it_changes() -> None:
    """A node is news when its drain is, when something else is done about it, and after a while."""
    drains = DrainNews()
    drains.take({"n2": "fan 3", "n4": ""})
    said = kinds(drains.news(("n1", "n2"), STAY))
    assert said == [
        ("n2", "stay"),
        ("", "n2 is being drained (fan 3); the run continues there: no spare"),
    ]
    assert not kinds(drains.news(("n1", "n2"), STAY))
    assert kinds(drains.news(("n1", "n2"), MOVE)) == [("n2", "move")]
    drains.take({})
    drains.take({"n2": ""})
    assert kinds(drains.news(("n1", "n2"), MOVE)) == [("n2", "move")]


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


async def poll(
    answers: list[Drained | None], *, wanted: bool, interval_s: float = 1
) -> list[Drained]:
    """Poll until something is heard, or the poll ends by itself; returns what was heard."""
    heard: list[Drained] = []
    done = asyncio.Event()

    async def hear(found: Drained) -> None:
        heard.append(found)
        done.set()

    poll = poll_drained(interval_s, lambda: answers.pop(0), lambda: wanted, hear)
    running = asyncio.create_task(poll)
    waiting = asyncio.create_task(done.wait())
    tasks = {running, waiting}
    ended, left = await asyncio.wait(
        tasks, timeout=2 if not wanted else 30, return_when=asyncio.FIRST_COMPLETED
    )
    for task in left:
        task.cancel()
    if not ended:
        raise TimeoutError
    return heard
