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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import LaunchConfig
from hpckit.model.states import RunState
from hpckit.planning.decide import EndAttempt, NewRound, RoundView, decide
from hpckit.record.launches import Launch, read_runs
from hpckit.record.layout import AttemptPaths, LaunchPaths
from hpckit.record.process import start_mark
from hpckit.record.store import (
    PRIVATE_FILE,
    append_event,
    make_folder,
    read_events,
    write_text,
)
from hpckit.runtime import control
from hpckit.runtime.agents import LOOPBACK, Agents, AgentsError
from hpckit.runtime.environ import job_key
from hpckit.runtime.rounds import Round

_NOTICES = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_GRACE_AT_MOST_S = 900.0
"""How long to wait for a preemption that only the step has heard of; sites' GraceTime is less."""
_LEAVE_S = 10.0
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
    """One run to attempt. `environ` is the supervisor's own environment.

    `requeue` is whether Slurm is expected to start the job again after a preemption.
    """

    launch: Launch
    index: int
    settings: LaunchConfig
    agents: AgentCommand
    requeue: bool
    environ: Mapping[str, str]


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def supervise(assignment: Assignment) -> int:
    """Run one attempt to its end and return its exit code (0 only where the run completed)."""
    return asyncio.run(_Supervisor(assignment).run())


@dataclass(slots=True)
class _Supervisor:
    assignment: Assignment
    paths: AttemptPaths = field(init=False)
    secret: str = field(default_factory=control.new_secret, init=False)
    notice: str | None = field(default=None, init=False)
    noticed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    told: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> int:
        self._listen_to_signals()
        number = self._open_attempt()
        if self._cancelled():
            # Asked for before there was a process to tell.
            self._hear_self(signal.SIGTERM.name)
        step: asyncio.subprocess.Process | None = None
        agents = Agents(
            settings=self.assignment.settings,
            secret=self.secret,
            on_notice=self.hear,
            record=self.record,
        )
        try:
            await agents.listen(self.paths, self._hosts())
            step = await self._start_agents(number)
            end = await self._rounds(agents, step)
        finally:
            await agents.close(_LEAVE_S)
            await self._end_step(step)
        self.record(
            events.AttemptEnded(
                at=now(), state=end.state, exit_code=end.exit_code, failure=end.failure
            )
        )
        await self._await_preemption(end)
        return end.exit_code

    async def _await_preemption(self, end: EndAttempt) -> None:
        """Hold the allocation where only the step was told to stop, and Slurm is to requeue us.

        Preemption with a grace period tells the step at its beginning and the batch side at its
        end (22.05). A job that leaves in between has ended by itself and is not requeued.
        """
        heard_by_step_only = self.notice is not None and not self.told.is_set()
        if end.state is RunState.interrupted and self.assignment.requeue and heard_by_step_only:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.told.wait(), _GRACE_AT_MOST_S)

    def record(self, event: events.Event) -> None:
        append_event(self.paths.events, event)

    def hear(self, name: str) -> None:
        """Remember a notice; the rounds look at it. Slurm sends the same one several times."""
        if self.notice is None:
            self.notice = name
            self.record(events.NoticeHeard(at=now(), signal=name))
            self.noticed.set()

    def _hear_self(self, name: str) -> None:
        self.told.set()
        self.hear(name)

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _NOTICES:
            loop.add_signal_handler(number, self._hear_self, number.name)
        for number in (signal.SIGCONT, signal.SIGHUP):
            loop.add_signal_handler(number, lambda: None)

    def _open_attempt(self) -> int:
        """Take the next attempt number; making its folder is what takes it, so nobody shares."""
        run = LaunchPaths(self.assignment.launch.folder).run(self.assignment.index)
        make_folder(run.attempts)
        number = 1 + max((int(path.name) for path in run.attempts.glob("[0-9]*")), default=0)
        while True:
            try:
                make_folder(run.attempt(number).folder, exist_ok=False)
                break
            except FileExistsError:
                number += 1
        self.paths = run.attempt(number)
        write_text(self.paths.secret, self.secret + "\n")
        job, restarts = job_key(self.assignment.environ)
        self._adopt(job)
        self.record(
            events.AttemptStarted(
                at=now(),
                attempt=number,
                job=job,
                restart_count=restarts,
                host=socket.gethostname(),
                pid=os.getpid(),
                started=start_mark(os.getpid()) or "",
            )
        )
        return number

    def _adopt(self, job: str | None) -> None:
        """Record a job that was submitted by hand from a rendered script."""
        launch = self.assignment.launch
        path = LaunchPaths(launch.folder).events
        spec = next(spec for spec in launch.jobs if self.assignment.index in spec.runs)
        history = [event for event in read_events(path) if _concerns(event, spec.index)]
        main = None if job is None else job.partition("_")[0]
        known = any(isinstance(event, events.Submitted) and event.job == main for event in history)
        intended = bool(history) and isinstance(history[-1], events.SubmitIntended)
        if main is not None and not known and not intended:
            append_event(
                path, events.Submitted(at=now(), job_index=spec.index, job=main, adopted=True)
            )

    def _hosts(self) -> list[str]:
        """Return the names under which other nodes may reach this one, best first."""
        if not self.assignment.agents.prefix:
            return [LOOPBACK]
        name = self.assignment.environ.get("SLURMD_NODENAME")
        return list(dict.fromkeys(filter(None, [name, socket.gethostname(), socket.getfqdn()])))

    async def _start_agents(self, attempt: int) -> asyncio.subprocess.Process:
        command = self.assignment.agents
        log = os.open(self.paths.agents_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
        words = (
            *command.prefix,
            *(self.assignment.launch.python, "-P", "-m", "hpckit.runtime.agent"),
            *(str(self.assignment.launch.folder), str(self.assignment.index), str(attempt)),
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
            failure = self._with_agents_log(error.failure)
            action = self._decided(RoundView(round=0, exits=(), failure=failure))
            assert isinstance(action, EndAttempt), "only a killed rank makes a new round"  # noqa: S101
            return action
        number = 0
        while True:
            view = await Round(number, agents, self.paths, self.noticed, self.record).run()
            action = self._decided(view)
            if isinstance(action, EndAttempt):
                return action
            number += 1

    def _decided(self, view: RoundView) -> EndAttempt | NewRound:
        if self.notice is not None:
            view = RoundView(
                round=view.round,
                exits=view.exits,
                failure=view.failure,
                notice=self.notice,
                cancelled=self._cancelled(),
            )
        return decide(view, self.assignment.settings.recovery)

    def _cancelled(self) -> bool:
        (record,) = read_runs(self.assignment.launch, [self.assignment.index])
        return record.cancel_requested

    def _with_agents_log(self, failure: Failure) -> Failure:
        """Add what the agents printed: it names the node that cannot read its folder."""
        text = _tail(self.paths.agents_log)
        if not text:
            return failure
        cause = Cause.frozen_folder if "cannot read" in text else failure.cause
        return Failure(cause=cause, message=f"{failure.message}\n{text}")

    async def _end_step(self, step: asyncio.subprocess.Process | None) -> None:
        """Wait for the agents' step to leave, and end it when it does not."""
        if step is None:
            return
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with contextlib.suppress(ProcessLookupError):
                    step.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(step.wait(), _LEAVE_S)
                return


def _concerns(event: events.Event, job_index: int) -> bool:
    kinds = (events.SubmitIntended, events.Submitted, events.SubmitRefused)
    return isinstance(event, kinds) and event.job_index == job_index


def _tail(path: Path, lines: int = 12) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
