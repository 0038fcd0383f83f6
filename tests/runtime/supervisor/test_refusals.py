"""Nodes where no agent can start: the supervisor hears why at once, and says that first."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import LaunchConfig
from hpckit.record.layout import LaunchPaths
from hpckit.runtime.channel.listen import LOOPBACK
from hpckit.runtime.supervisor import agents as agents_module
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.journal import Journal

SECRET = "0f" * 32
REFUSE = """
import sys
from hpckit.errors import ContainerError, NodeError
from hpckit.runtime.agent.joining import tell_of_refusal
kind, *arguments = sys.argv[1:]
full = NodeError("is full", cause="scratch_full")
gone = ContainerError("image /x is gone", hint="launch again")
tell_of_refusal(arguments, full if kind == "disk" else gone)
"""


def failure_of(launch: Path, refusals: Sequence[tuple[str, str]], nodes: int) -> Failure | None:
    """Return the failure of an attempt to which these nodes bring these refusals; the others never come."""
    paths = LaunchPaths(launch).run(0).attempt(1)
    paths.folder.mkdir(parents=True)
    paths.secret.write_text(SECRET)

    async def wait() -> Failure | None:
        agents = Agents(
            settings=LaunchConfig(), secret=SECRET, journal=Journal(paths=paths), hear=lambda *_: None
        )
        await agents.start_listening(paths, [LOOPBACK])
        callers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", REFUSE, kind, str(launch), "0", "1"),
                env={**os.environ, "SLURMD_NODENAME": node},
            )
            for node, kind in refusals
        ]
        names = tuple(f"n{number}" for number in range(nodes))
        step = SimpleNamespace(wait=asyncio.Event().wait)
        async with asyncio.timeout(60):
            failure = await agents.await_all_agents(nodes, step, asyncio.Event(), names=names)
            await asyncio.gather(*(caller.wait() for caller in callers))
        await agents.shut_agents_down(1.0, final=True)
        return failure

    return asyncio.run(wait())


def test_reason_comes_first_once_for_all_nodes_that_share_it(tmp_path: Path) -> None:
    """No wait for agents that cannot come, and no guess about what is wrong."""
    failure = failure_of(tmp_path, [("n0", "image"), ("n1", "image")], 2)
    assert failure is not None
    first, hint = failure.message.splitlines()
    assert first == "n[0-1]: cannot use its container: image /x is gone"
    assert hint.strip() == "launch again"
    assert (failure.cause, failure.node) == (Cause.container, None)


@pytest.mark.parametrize(("kind", "cause"), [("disk", Cause.scratch_full), ("image", Cause.unhealthy)])
def test_one_bad_node_is_blamed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, cause: Cause
) -> None:
    """Its run goes on elsewhere; it does not wait for ever until the others are there."""
    monkeypatch.setattr(agents_module, "_REFUSALS_S", 0.5)
    failure = failure_of(tmp_path, [("n3", kind)], 9)
    assert failure is not None
    assert failure.message.startswith("n3: ")
    assert (failure.cause, failure.node) == (cause, "n3")
