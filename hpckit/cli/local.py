"""`hpckit local`: the local executor, which works through a launch on this machine.

Responsible for starting supervisors, so many at a time, and for ending them with itself; it must
not look into what they do. Hidden from `--help`: `launch` starts it, detached, where there is no
Slurm.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hpckit.cli.context import Context
from hpckit.cli.stage_gate import missing
from hpckit.errors import RunError
from hpckit.model.events import CancelRequested, LocalStarted
from hpckit.model.history import LaunchHistory
from hpckit.model.stages import followed
from hpckit.record.launches import (
    Launch,
    latest_attempt,
    load_launch,
    read_launch_events,
    read_launch_history,
    read_runs,
)
from hpckit.record.process import alive, start_mark, this_host
from hpckit.record.store import PRIVATE_FILE, append_event

_PATIENCE_S = 60.0
_POLL_S = 0.02
_LOG_TAIL = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `launch` passes."""
    parser.add_argument("folder", type=Path, help="the launch folder")
    parser.add_argument(
        "--job", type=int, action="append", help="a job to work through (default: those frozen)"
    )


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Work through jobs of a launch; returns 0 where every run of them completed, else 1."""
    launch = load_launch(arguments.folder)
    jobs = tuple(arguments.job or ())
    return asyncio.run(_Executor(launch=launch, jobs=jobs, environ=context.environ).work())


def command(launch: Launch, *words: str) -> list[str]:
    """Return the words that start hpckit for a launch: its Python, and nothing of the folder.

    -P: the working folder must not stand on Python's path, where `code/` would hide the module.
    """
    return [launch.python, "-P", "-m", "hpckit", *words]


def start(launch: Launch, context: Context, jobs: Sequence[int] = ()) -> LocalStarted:
    """Start a local executor, detached; returns once it has recorded itself.

    `jobs` are indices of added jobs; none means those the launch was frozen with. Raises
    RunError where it ends, or says nothing, before that.
    """
    log = launch.paths.local_log
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
    try:
        process = subprocess.Popen(
            command(launch, "local", str(launch.folder), *(f"--job={job}" for job in jobs)),
            cwd=launch.folder,
            env=dict(context.environ),
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            start_new_session=True,
        )
    except OSError as error:
        raise RunError(
            f"the local executor cannot be started: {error}",
            hint="cluster.python has to name a Python that has hpckit",
        ) from error
    finally:
        os.close(handle)
    return _await_start(launch, process, log, context)


def stop(launch: Launch, runs: Sequence[int], context: Context) -> None:
    """Record that these runs are not wanted, and end the executor with all it supervises."""
    append_event(launch.paths.events, CancelRequested(at=context.now(), runs=tuple(runs)))
    given = read_launch_history(launch).executors
    executors = {(one.host, one.pid, one.started) for run in runs if (one := given.get(run))}
    supervisors = [record.supervisor for record in read_runs(launch, runs) if record.supervisor]
    living = [one for one in executors if alive(*one)]
    # An executor ends what it supervises; without one, the supervisors are told themselves.
    for _, pid, _ in living or [one for one in supervisors if alive(*one)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _await_start(
    launch: Launch, process: subprocess.Popen[bytes], log: Path, context: Context
) -> LocalStarted:
    waited = 0.0
    while waited < _PATIENCE_S:
        ended = process.poll() is not None
        for event in read_launch_events(launch):
            if isinstance(event, LocalStarted) and event.pid == process.pid:
                # Detached on purpose: it outlives this process, which will not wait for it.
                process.returncode = 0
                return event
        if ended:
            break
        context.sleep(_POLL_S)
        waited += _POLL_S
    process.kill()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL:]
    raise RunError(
        "the local executor did not start: " + ("\n".join(lines) or "it printed nothing"),
        hint=f"its log is {log}; does {launch.python} have hpckit?",
    )


@dataclass(slots=True, kw_only=True)
class _Executor:
    """The runs of these jobs, `max_parallel` at a time, in order."""

    launch: Launch
    jobs: tuple[int, ...]
    environ: Mapping[str, str]
    stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    children: set[asyncio.subprocess.Process] = field(default_factory=set, init=False)
    over: dict[int, asyncio.Event] = field(default_factory=dict, init=False)

    async def work(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        self._record_start()
        gate = asyncio.Semaphore(self.launch.cluster.max_parallel)
        history = read_launch_history(self.launch)
        mine = [run for run in history.executors if self._is_mine(run, history)]
        self.over = {run: asyncio.Event() for run in mine}
        codes = await asyncio.gather(*(self._in_turn(gate, run) for run in mine))
        return int(any(codes))

    def _record_start(self) -> None:
        event = LocalStarted(
            at=datetime.now(UTC),
            host=this_host(),
            pid=os.getpid(),
            started=start_mark(os.getpid()) or "",
            jobs=self.jobs,
        )
        append_event(self.launch.paths.events, event)

    async def _in_turn(self, gate: asyncio.Semaphore, run: int) -> int:
        """Begin a run when those that it follows are over, unless one it needs did not complete."""
        for before in followed(self.launch.stages, run):
            if before in self.over:
                await self.over[before].wait()
        try:
            if missing(self.launch, run):
                return 1
            return await self._run(gate, run)
        finally:
            self.over[run].set()

    async def _run(self, gate: asyncio.Semaphore, run: int) -> int:
        async with gate:
            history = read_launch_history(self.launch)
            if self.stopping.is_set() or not self._is_due(run, history):
                return 1
            job = history.job_of(run).index
            try:
                child = await asyncio.create_subprocess_exec(
                    *command(self.launch, "supervise", str(self.launch.folder)),
                    *("--job", str(job), "--run", str(run)),
                    env=dict(self.environ),
                    stdin=asyncio.subprocess.DEVNULL,
                )
            except OSError as error:
                sys.stderr.write(f"hpckit: error: run {run} cannot be started: {error}\n")
                return 1
            self.children.add(child)
            if self.stopping.is_set():
                _terminate(child)
            code = await child.wait()
            self.children.discard(child)
            return code

    def _stop(self) -> None:
        """Begin no further run, and ask those under way to leave; their ends are awaited."""
        self.stopping.set()
        for child in self.children:
            _terminate(child)

    def _is_mine(self, run: int, history: LaunchHistory) -> bool:
        """Whether the run is this executor's turn: a resume may have given it to another one."""
        executor = history.executors.get(run)
        return executor is not None and executor.pid == os.getpid() and executor.jobs == self.jobs

    def _is_due(self, run: int, history: LaunchHistory) -> bool:
        """Whether the run is to be begun: nobody has cancelled it, or begun it by hand."""
        attempts = latest_attempt(self.launch.paths.run(run).attempts)
        begun = attempts > history.attempts_before(run)
        return self._is_mine(run, history) and not begun and run not in history.cancelled


def _terminate(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
