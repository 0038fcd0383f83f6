"""Promises of what is quoted of the agents' own words."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hpckit.model.failure import Cause, Failure
from hpckit.runtime.supervisor.agent_step import add_agents_output_to_failure

LOST = Failure(cause=Cause.node_lost, message="lost the agent of n2")
IDLE = "srun: cluster configuration lacks support for cpu binding\n"


def test_failure_quotes_no_words_that_every_step_prints(tmp_path: Path) -> None:
    """What says nothing is left out, and alone adds nothing."""
    log = tmp_path / "agents.log"
    log.write_text(IDLE)
    assert asyncio.run(add_agents_output_to_failure(LOST, log)) == LOST
    log.write_text(f"{IDLE}srun: error: n2: task 1: Killed\n")
    message = asyncio.run(add_agents_output_to_failure(LOST, log)).message
    assert message == "lost the agent of n2\nsrun: error: n2: task 1: Killed"


def test_failure_is_named_by_an_agent_that_cannot_read_its_folder(tmp_path: Path) -> None:
    """The agent on that node is the only one that knows."""
    log = tmp_path / "agents.log"
    log.write_text("hpckit: error: node n2 cannot read its frozen folder: no such file\n")
    assert asyncio.run(add_agents_output_to_failure(LOST, log)).cause is Cause.frozen_folder
