"""Promises of what is quoted of the agents' own words."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpckit.model.failure import Cause, Failure
from hpckit.runtime.assignment import AgentCommand
from hpckit.runtime.supervisor.agent_step import AgentSteps

LOST = Failure(cause=Cause.node_lost, message="lost the agent of n2")
IDLE = "srun: cluster configuration lacks support for cpu binding\n"


def steps(log: Path) -> AgentSteps:
    """Return the steps of an attempt with this log."""
    attempt: Any = SimpleNamespace(paths=SimpleNamespace(agents_log=log))
    return AgentSteps(command=AgentCommand(prefix=(), environ={}), attempt=attempt)


def quoted(log: Path) -> Failure:
    """Return what the failure becomes with this log."""
    return asyncio.run(steps(log).add_output_to_failure(LOST))


def test_failure_quotes_no_words_that_every_step_prints(tmp_path: Path) -> None:
    """What says nothing is left out, and alone adds nothing."""
    log = tmp_path / "agents.log"
    log.write_text(IDLE)
    assert quoted(log) == LOST
    log.write_text(f"{IDLE}srun: error: n2: task 1: Killed\n")
    message = quoted(log).message
    assert message == "lost the agent of n2\nsrun: error: n2: task 1: Killed"


def test_failure_is_named_by_an_agent_that_cannot_read_its_folder(tmp_path: Path) -> None:
    """The agent on that node is the only one that knows."""
    log = tmp_path / "agents.log"
    log.write_text("hpckit: error: node n2 cannot read its frozen folder: no such file\n")
    assert quoted(log).cause is Cause.frozen_folder


@pytest.mark.parametrize(
    "said",
    [
        "slurmstepd-n1: error: StepId=2.0 exceeded memory limit (986869760 > 643825664), being killed",
        "slurmstepd: error: Detected 2 oom_kill events in StepId=2.0. Some of the step tasks have been OOM …",
    ],
)
def test_step_that_slurm_ends_for_its_memory_is_out_of_memory_once(tmp_path: Path, said: str) -> None:
    """A later step that ends for another reason is not: the log still has the words about the first."""
    log = tmp_path / "agents.log"
    log.write_text(f"{said}\nsrun: error: n1: task 0: Killed\n")
    ours = steps(log)
    first = asyncio.run(ours.add_output_to_failure(LOST))
    assert (first.cause, first.signature) == (Cause.host_oom, Cause.host_oom)
    assert first.message.startswith("Slurm ended step 2.0, whose memory ran out: lost the agent of n2\n")
    assert asyncio.run(ours.add_output_to_failure(LOST)).cause is Cause.node_lost
    with log.open("a") as more:
        more.write(f"{said.replace('2.0', '2.1')}\n")
    assert asyncio.run(ours.add_output_to_failure(LOST)).cause is Cause.host_oom
