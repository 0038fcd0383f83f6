"""Requests for stacks: seen by the size of a file, answered once each, also if a node is silent."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from hpckit.model import messages
from hpckit.model.failure import RankStack, StacksAnswer
from hpckit.model.launch import LaunchConfig, Resources
from hpckit.planning.rounds.round_state import Phase, create_round_state
from hpckit.planning.rounds.round_turns import Heard
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import append_json_lines
from hpckit.runtime.mailbox import latest_request_number, poll_and_answer_requests, read_stacks_answer
from hpckit.runtime.supervisor import round as round_module
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.round import Round, answer_stacks_request
from hpckit.values import replace

ASKED = {"at": "2026-01-01T00:00:00Z", "host": "here"}
STACK = RankStack(rank=0, node="n1", state="S", step=1, text="x")


class HalfSilentAgents:
    """The agents of two nodes, one of which never answers; `asked` counts."""

    asked = 0
    round: Round

    async def broadcast_message(self, order: messages.SaveStacks) -> None:
        """Answer for one node."""
        self.asked += 1
        request = order.request
        for sender, message in (
            (0, messages.StackSaved(round=3, stack=STACK, request=request)),
            (0, messages.StacksSaved(round=3, request=request)),
            (1, messages.StacksSaved(round=3, request=request - 1)),
        ):
            await self.round.take_turn(Heard(sender, message))


def half_silent_round(paths: AttemptPaths) -> Round:
    """Return a round that is being watched."""
    settings = LaunchConfig(resources=Resources(nodes=2, tasks_per_node=1))
    state = create_round_state(3, {0: "n1", 1: "n2"}, settings, 0.0)
    agents = HalfSilentAgents()
    agents.round = Round(
        state=replace(state, phase=Phase.watching),
        agents=agents,  # type: ignore[arg-type]
        journal=Journal(paths=paths),
        noticed=asyncio.Event(),
        pass_on=lambda *_: asyncio.sleep(0),
        pruner=None,
    )
    return agents.round


async def answered(paths: AttemptPaths, round_: Round | None, request: int) -> StacksAnswer:
    """Poll until this request is answered."""
    journal = Journal(paths=paths)

    async def answer_to(_: int, latest: int) -> None:
        await answer_stacks_request(journal, round_, latest)

    task = asyncio.create_task(poll_and_answer_requests({paths.stacks_requests: answer_to}, 0.01))
    try:
        async with asyncio.timeout(10):
            while (answer := read_stacks_answer(paths, request)) is None:  # noqa: ASYNC110  # a file
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return answer


def test_request_is_answered_once_with_the_silent_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a request nothing is asked; the size of the file is the number of the request."""
    monkeypatch.setattr(round_module, "_COLLECT_S", 0.1)
    paths = AttemptPaths(tmp_path)
    round_ = half_silent_round(paths)
    assert latest_request_number(paths.stacks_requests) == 0
    assert paths.stacks_requests.exists(), "made by the supervisor: over NFS, absence is cached"
    first = append_json_lines(paths.stacks_requests, ASKED)
    second = append_json_lines(paths.stacks_requests, ASKED)
    assert 0 < first < second == latest_request_number(paths.stacks_requests)
    answer = asyncio.run(answered(paths, round_, second))
    assert (answer.request, answer.round, answer.stacks) == (second, 3, (STACK,))
    assert answer.silent == ("n2",)
    assert round_.agents.asked == 1  # type: ignore[attr-defined]
    assert read_stacks_answer(paths, first) == answer, "it answers both"
    assert read_stacks_answer(paths, second + 1) is None


def test_request_between_two_rounds_is_answered_too(tmp_path: Path) -> None:
    """Nobody waits for the time-out to learn that there are no ranks."""
    paths = AttemptPaths(tmp_path)
    request = append_json_lines(paths.stacks_requests, ASKED)
    assert asyncio.run(answered(paths, None, request)).round is None


def test_damaged_answer_is_none(tmp_path: Path) -> None:
    """It may be half of a file of another version."""
    paths = AttemptPaths(tmp_path)
    for text in ("", "{}", "[1]", '{"request": "x"}'):
        paths.stacks_answer.write_text(text)
        assert read_stacks_answer(paths, 1) is None
