"""What a rank alone does at a step boundary, by what its agent has said."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from hpckit.model import messages
from hpckit.model.rank import RankInfo
from hpckit.runtime.channel.rank_pipe import AgentLink
from hpckit.runtime.environ import rank_info
from hpckit.runtime.rank.step_boundary import Agreement, StepBoundary


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, StepBoundary]]:
    """Return the agent's end of a line, and the boundaries of the rank at the other."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        info: RankInfo = rank_info({})
        yield ours, StepBoundary(info=info, link=AgentLink(theirs))


def test_pruned_rank_leaves_without_a_save(line: tuple[socket.socket, StepBoundary]) -> None:
    """A verdict is no notice: nothing is kept of what nobody goes on with."""
    agent, boundary = line
    assert boundary.agree_on_actions_before_step(3, save=False) == Agreement()
    agent.sendall(messages.encode_message(messages.Prune()) + b"\n")
    assert boundary.agree_on_actions_before_step(4, save=False) == Agreement(prune=True)


def test_notice_goes_before_a_verdict(line: tuple[socket.socket, StepBoundary]) -> None:
    """Who has to leave anyway saves, whatever the sweep says."""
    agent, boundary = line
    for message in (messages.Prune(), messages.Notice()):
        agent.sendall(messages.encode_message(message) + b"\n")
    assert boundary.agree_on_actions_before_step(4, save=False) == Agreement(
        save=True, leave=True, prune=True
    )


def test_steps_that_wait_put_off_saving_and_leaving_for_a_while(
    line: tuple[socket.socket, StepBoundary],
) -> None:
    """Ranks that were asked to leave do so without a save when their patience ends."""
    agent, boundary = line
    assert boundary.agree_on_actions_before_step(3, save=True, waits=True) == Agreement()
    agent.sendall(messages.encode_message(messages.Notice()) + b"\n")
    assert boundary.agree_on_actions_before_step(4, save=True, waits=True) == Agreement()
    assert boundary.agree_on_actions_before_step(5, save=True) == Agreement(save=True, leave=True)
    boundary.patience_s = 0.0
    assert boundary.agree_on_actions_before_step(6, save=True, waits=True) == Agreement(leave=True)
