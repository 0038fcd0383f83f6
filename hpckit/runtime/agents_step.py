"""The step of agents: one process per node, started by the scheduler's launcher.

Responsible for starting it and for ending it when its agents do not leave by themselves; it must
not talk to agents (runtime.agents does).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal

from hpckit.record.store import PRIVATE_FILE
from hpckit.runtime.aside import aside
from hpckit.runtime.assignment import AgentCommand, Step
from hpckit.runtime.attempt import Attempt
from hpckit.runtime.environ import LAST_WILL


async def start_agents(command: AgentCommand, attempt: Attempt) -> Step:
    """Start the agents of an attempt; raises OSError."""
    arguments = (str(attempt.launch.folder), str(attempt.index), str(attempt.number))
    environ = {**command.environ, **_last_will(command, attempt)}
    if command.ready is not None:
        return command.ready(arguments, environ, attempt.paths.agents_log)
    flags, path = os.O_WRONLY | os.O_CREAT | os.O_APPEND, attempt.paths.agents_log
    log = await aside(lambda: os.open(path, flags, PRIVATE_FILE))
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


def _last_will(command: AgentCommand, attempt: Attempt) -> dict[str, str]:
    words = command.last_will
    return {LAST_WILL: json.dumps([*words, str(attempt.number)])} if words else {}


async def end_step(step: Step, leave_s: float) -> None:
    """Wait for the step to leave, and end it when it does not."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                step.send_signal(number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(step.wait(), leave_s)
            return
