"""The supervisor: the one process of an attempt, on the batch host.

Responsible for an attempt from its folder to its exit code: it starts the agents, hears notices,
runs rounds and records what happened. It must not choose what follows a failure
(planning.decide does), know about Slurm (it is handed the command that starts agents), or import
torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import LaunchConfig
from hpckit.model.states import RunState
from hpckit.planning.decide import EndAttempt, NewRound, RoundView, decide
from hpckit.record.launches import Launch
from hpckit.record.store import PRIVATE_FILE
from hpckit.runtime.agents import LOOPBACK, Agents, AgentsError
from hpckit.runtime.attempt import Attempt, open_attempt, tail
from hpckit.runtime.rounds import Round

_NOTICES = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_GRACE_AT_MOST_S = 900.0
"""How long to wait for a preemption that only the step has heard of; sites' GraceTime is less."""
_LEAVE_S = 3.0
"""How long agents may take to leave after Shutdown before their step is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """How agents are started: words put in front of the agent's own, and the environment.

    `nodes` are the names that should come, as far as they are known.
    """

    prefix: tuple[str, ...]
    environ: Mapping[str, str]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One run to attempt, for a job of its launch. `environ` is the supervisor's own environment.

    `requeue` is whether Slurm is expected to start the job again after a preemption.
    """

    launch: Launch
    index: int
    job_index: int
    settings: LaunchConfig
    agents: AgentCommand
    requeue: bool
    environ: Mapping[str, str]


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def supervise(assignment: Assignment) -> int:
    """Run one attempt to its end and return its exit code (0 only where the run completed).

    Raises RunError where the attempt cannot even be recorded.
    """
    attempt = open_attempt(
        assignment.launch, assignment.index, assignment.job_index, assignment.environ
    )
    return asyncio.run(_Supervisor(assignment, attempt).run())


@dataclass(slots=True)
class _Supervisor:
    assignment: Assignment
    attempt: Attempt
    notice: str | None = field(default=None, init=False)
    noticed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    told: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    step: asyncio.subprocess.Process | None = field(default=None, init=False)

    async def run(self) -> int:
        self._listen_to_signals()
        if self.attempt.cancelled():
            # Asked for before there was a process to tell.
            self._hear_self(signal.SIGTERM.name)
        agents = Agents(
            settings=self.assignment.settings,
            secret=self.attempt.secret,
            on_notice=self.hear,
            record=self.attempt.record,
        )
        end = await self._work(agents)
        # The last word comes before the leave-taking: after a notice, every second counts.
        self.attempt.record_end(
            events.AttemptEnded(
                at=now(), state=end.state, exit_code=end.exit_code, failure=end.failure
            )
        )
        await agents.close(_LEAVE_S)
        await self._end_step()
        await self._await_preemption(end)
        return end.exit_code

    async def _work(self, agents: Agents) -> EndAttempt:
        """Start the agents and run rounds; what the system refuses is the attempt's failure."""
        try:
            await agents.listen(self.attempt.paths, self._hosts())
            self.step = await self._start_agents()
            return await self._rounds(agents, self.step)
        except OSError as error:
            failure = Failure(cause=Cause.unknown, message=f"the supervisor failed: {error}")
            return EndAttempt(state=RunState.failed, exit_code=1, failure=failure)

    async def _await_preemption(self, end: EndAttempt) -> None:
        """Hold the allocation where only the step was told to stop, and Slurm is to requeue us.

        Preemption with a grace period sends SIGTERM to the step at its beginning and to the batch
        side at its end (22.05). A job that leaves in between has ended by itself and is not
        requeued.
        """
        heard_by_step_only = self.notice == signal.SIGTERM.name and not self.told.is_set()
        if end.state is RunState.interrupted and self.assignment.requeue and heard_by_step_only:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.told.wait(), _GRACE_AT_MOST_S)

    def hear(self, name: str) -> None:
        """Remember a notice; the rounds look at it. Slurm sends the same one several times."""
        if self.notice is None:
            self.notice = name
            self.noticed.set()
            self.attempt.record(events.NoticeHeard(at=now(), signal=name))

    def _hear_self(self, name: str) -> None:
        self.told.set()
        self.hear(name)

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _NOTICES:
            loop.add_signal_handler(number, self._hear_self, number.name)
        for number in (signal.SIGCONT, signal.SIGHUP):
            loop.add_signal_handler(number, lambda: None)

    def _hosts(self) -> list[str]:
        """Return the names under which other nodes may reach this one, best first."""
        if not self.assignment.agents.prefix:
            return [LOOPBACK]
        name = self.assignment.environ.get("SLURMD_NODENAME")
        return list(dict.fromkeys(filter(None, [name, socket.gethostname(), socket.getfqdn()])))

    async def _start_agents(self) -> asyncio.subprocess.Process:
        command, attempt = self.assignment.agents, self.attempt
        log = os.open(
            attempt.paths.agents_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE
        )
        words = (
            *command.prefix,
            *(attempt.launch.python, "-P", "-m", "hpckit.runtime.agent"),
            *(str(attempt.launch.folder), str(attempt.index), str(attempt.number)),
        )
        try:
            return await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(command.environ),
                start_new_session=not command.prefix,
            )
        finally:
            os.close(log)

    async def _rounds(self, agents: Agents, step: asyncio.subprocess.Process) -> EndAttempt:
        """Run rounds until the attempt is to end."""
        resources = self.assignment.settings.resources
        try:
            await agents.gather(
                resources.nodes, step, self.noticed, names=self.assignment.agents.nodes
            )
        except AgentsError as error:
            view = RoundView(round=0, exits=(), failure=self._with_agents_log(error.failure))
            action = self._decided(view)
            assert isinstance(action, EndAttempt), "only a killed rank makes a new round"  # noqa: S101
            return action
        number = 0
        while True:
            this_round = Round(
                number, agents, self.attempt.paths, self.noticed, self.attempt.record
            )
            action = self._decided(await this_round.run())
            if isinstance(action, EndAttempt):
                return action
            number += 1

    def _decided(self, view: RoundView) -> EndAttempt | NewRound:
        if view.failure is not None and view.failure.cause is Cause.node_lost:
            view = replace(view, failure=self._with_agents_log(view.failure))
        if self.notice is not None:
            view = replace(view, notice=self.notice, cancelled=self.attempt.cancelled())
        return decide(view, self.assignment.settings.recovery)

    def _with_agents_log(self, failure: Failure) -> Failure:
        """Add what the agents printed: it names the node that cannot read its folder."""
        text = tail(self.attempt.paths.agents_log)
        if not text:
            return failure
        cause = Cause.frozen_folder if "cannot read its frozen folder" in text else failure.cause
        return replace(failure, cause=cause, message=f"{failure.message}\n{text}")

    async def _end_step(self) -> None:
        """Wait for the agents' step to leave, and end it when it does not."""
        if self.step is None:
            return
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with contextlib.suppress(ProcessLookupError):
                    self.step.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.step.wait(), _LEAVE_S)
                return
