"""The steps of agents: one process per node, started by the scheduler's launcher.

Responsible for starting the first, for one more where an agent has ended and its node has not
(killed, or its step was), and for ending those whose agents do not leave by themselves; it must not
talk to agents (runtime.agents does), nor decide what their end means for the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from dataclasses import dataclass, field, replace

from hpckit.record.store import PRIVATE_FILE
from hpckit.runtime.assignment import AgentCommand, Step
from hpckit.runtime.environ import ON_SUPERVISOR_LOST
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.attempt import Attempt
from hpckit.runtime.supervisor.patience import patiently
from hpckit.runtime.threads import aside

_RETURN_S = 20.0
"""How long an agent may take to come back, before its node counts as lost."""


async def start_agents(command: AgentCommand, attempt: Attempt) -> Step:
    """Start the agents of an attempt; raises OSError."""
    arguments = (str(attempt.launch.folder), str(attempt.index), str(attempt.number))
    environ = {**command.environ, **_on_supervisor_lost(command, attempt)}
    if command.ready is not None:
        return command.ready(arguments, environ, attempt.paths.agents_log)
    flags, path = os.O_WRONLY | os.O_CREAT | os.O_APPEND, attempt.paths.agents_log
    log = await aside(lambda: patiently(lambda: os.open(path, flags, PRIVATE_FILE)))
    python = (attempt.launch.python, "-P", "-m", "hpckit.runtime.agent")
    try:
        return await asyncio.create_subprocess_exec(
            *(*command.prefix, *python, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
            start_new_session=not command.prefix,
        )
    finally:
        os.close(log)


def _on_supervisor_lost(command: AgentCommand, attempt: Attempt) -> dict[str, str]:
    words = command.on_supervisor_lost
    return {ON_SUPERVISOR_LOST: json.dumps([*words, str(attempt.number)])} if words else {}


async def end_step(step: Step, leave_s: float) -> None:
    """Wait for the step to leave, and end it when it does not."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                step.send_signal(number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(step.wait(), leave_s)
            return


@dataclass(slots=True, kw_only=True)
class Steps:
    """What was started behind `command` in one attempt."""

    command: AgentCommand
    attempt: Attempt
    _steps: list[Step] = field(default_factory=list, init=False)

    async def start(self) -> Step:
        """Start the agents of all nodes; raises OSError."""
        step = await start_agents(self.command, self.attempt)
        self._steps.append(step)
        return step

    async def bring_back(self, agents: Agents, noticed: asyncio.Event) -> tuple[str, ...]:
        """Start the agents again that have left; returns the nodes of those that came.

        It costs neither these nodes nor a place in the queue. The others count as lost.
        """
        nodes, again = tuple(agents.left), self.command.again
        prefix = self.command.prefix if again is None else again(nodes)
        command = replace(self.command, prefix=prefix, ready=None)
        with contextlib.suppress(OSError):
            step = await start_agents(command, self.attempt)
            self._steps.append(step)
            await agents.returned(step, noticed, _RETURN_S)
        came = tuple(node for node in nodes if node not in agents.left)
        # Told to stop, or given up by them: then it is not their nodes.
        agents.lose_left(blamed=not noticed.is_set())
        return came

    async def end(self, leave_s: float) -> None:
        """Wait for all steps to leave, and end those that do not."""
        await asyncio.gather(*(end_step(step, leave_s) for step in self._steps))
