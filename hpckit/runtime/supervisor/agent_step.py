"""The steps of agents: one process per node, started by the scheduler's launcher.

Starts the first step, and another one if an agent has ended and its node has not (the agent was
killed, or its step was). Ends the steps whose agents do not leave by themselves, and quotes their
output in an explanation of a failure. It does not talk to agents (runtime.supervisor.agents does),
nor decide what their end means for the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal

from hpckit.model.failure import FROZEN_FOLDER_UNREADABLE, Cause, Failure
from hpckit.patterns import lazy_pattern
from hpckit.record.store import PRIVATE_FILE, read_last_lines
from hpckit.run_features import DOORWAY, WATCH
from hpckit.runtime.assignment import AgentCommand, Step
from hpckit.runtime.environ import ON_SUPERVISOR_LOST
from hpckit.runtime.left_behind import end_orphans
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.attempt import Attempt
from hpckit.runtime.supervisor.patience import retry_transient_file_errors
from hpckit.runtime.threads import await_with_limit, run_in_thread, run_in_thread_within
from hpckit.values import dataclass, field, replace

_LINES = 40
_QUOTED = 12
_READ_S = 10.0
"""How long to wait for a text that only explains something."""
_IDLE = ("srun: cluster configuration lacks support for cpu binding",)
"""What launchers print in every step and is of no help."""
_OOM = lazy_pattern(r"StepId=(\S+) exceeded memory limit|oom_kill events? in StepId=(\S+?)[.,]? ")
"""How Slurm says that it ended a step, agents and all, because its memory ran out (22.05, 24.11)."""

_RETURN_S = 20.0
"""How long an agent may take to come back before its node counts as lost."""


@dataclass(slots=True)
class AgentSteps:
    """All steps that were started with `command` in one attempt."""

    command: AgentCommand
    attempt: Attempt
    _steps: list[Step] = field(default_factory=list, init=False)
    _watch: Step | None = field(default=None, init=False)
    _out_of_memory: set[str] = field(default_factory=set, init=False)
    """Slurm's ids of the steps that it ended for that."""

    async def start_agents(self, command: AgentCommand | None = None) -> Step:
        """Start the agents of all nodes, or those of another command; raises OSError."""
        command = command or self.command
        attempt, environ = self.attempt, {**command.environ}
        if command.on_supervisor_lost and not command.watch:
            words = [*command.on_supervisor_lost, str(attempt.number)]
            environ[ON_SUPERVISOR_LOST] = json.dumps(words)
        arguments = (str(attempt.launch.folder), str(attempt.index), str(attempt.number))
        if command.ready is not None:
            step = command.ready(arguments, environ, attempt.paths.agents_log)
        else:
            words = [*command.prefix, command.python or attempt.launch.python, "-P", "-m", command.module]
            flags, path = os.O_WRONLY | os.O_CREAT | os.O_APPEND, attempt.paths.agents_log
            log = await run_in_thread(
                lambda: retry_transient_file_errors(lambda: os.open(path, flags, PRIVATE_FILE))
            )
            try:
                step = await asyncio.create_subprocess_exec(
                    *(*words, *arguments),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environ,
                    start_new_session=not command.prefix,
                )
            finally:
                os.close(log)
        self._steps.append(step)
        if command.watch and command.on_supervisor_lost and self._watch is None:
            will = json.dumps([*command.on_supervisor_lost, str(attempt.number)])
            self._watch = await asyncio.create_subprocess_exec(
                *(*command.watch, attempt.launch.python, "-P", "-m", DOORWAY, WATCH, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env={**environ, ON_SUPERVISOR_LOST: will},
            )
        return step

    async def restart_departed_agents(self, agents: Agents, noticed: asyncio.Event) -> tuple[str, ...]:
        """Restart the agents that have left; return the nodes of those that came.

        This costs neither these nodes nor a place in the queue. The other nodes count as lost.
        """
        nodes, again = tuple(agents.left), self.command.again
        prefix = self.command.prefix if again is None else again(nodes)
        if not prefix:  # what the agent's ranks have started is now below this process
            await run_in_thread(end_orphans)
        with contextlib.suppress(OSError):
            step = await self.start_agents(replace(self.command, prefix=prefix, ready=None))
            await agents.await_returning_agents(step, noticed, _RETURN_S)
        came = tuple(node for node in nodes if node not in agents.left)
        # Asked to stop, or given up by the agents: then the nodes are not to blame.
        agents.give_up_departed_agents(blamed=not noticed.is_set())
        return came

    async def add_output_to_failure(self, failure: Failure) -> Failure:
        """Add what agents printed: it names a node that cannot read its folder, or why Slurm ended a step."""
        log = self.attempt.paths.agents_log
        text = await run_in_thread_within(_READ_S, lambda: read_last_lines(log, _LINES), "")
        lines = [
            line
            for line in text.splitlines()
            if not line.startswith(_IDLE) and line.removeprefix("hpckit: error: ") not in failure.message
        ]
        if not lines:
            return failure
        failure = replace(failure, message="\n".join([failure.message, *lines[-_QUOTED:]]))
        steps = {found[1] or found[2] for found in _OOM.finditer(text)} - self._out_of_memory
        self._out_of_memory |= steps
        if steps:
            words = f"Slurm ended step {', '.join(sorted(steps))}, whose memory ran out: {failure.message}"
            return replace(failure, cause=Cause.host_oom, signature=Cause.host_oom, message=words)
        return replace(failure, cause=Cause.frozen_folder) if FROZEN_FOLDER_UNREADABLE in text else failure

    async def end_all_steps(self, leave_s: float) -> None:
        """Wait for all steps to leave, and signal those that do not."""
        if self._watch is not None:
            with contextlib.suppress(ProcessLookupError):
                self._watch.send_signal(signal.SIGTERM)
            self._steps.append(self._watch)
        await asyncio.gather(*(_end_step(step, leave_s) for step in self._steps))


async def _end_step(step: Step, leave_s: float) -> None:
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                step.send_signal(number)
        if await await_with_limit(leave_s, step.wait()):
            return
