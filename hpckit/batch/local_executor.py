"""Runs the jobs of a launch on this machine: one supervisor per run, a limited number at a time.

It starts supervisors and ends them when it ends; it does not look into what they do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from hpckit.batch.stage_gate import list_uncompleted_prerequisites
from hpckit.batch.start_supervisor import signal_supervisor, start_supervisor
from hpckit.context import Context
from hpckit.errors import HpckitError
from hpckit.model.events import LocalStarted
from hpckit.model.history import LaunchHistory
from hpckit.model.stages import list_prerequisite_runs
from hpckit.record.attempts import latest_attempt_number
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import Launch, read_launch_history
from hpckit.record.process import read_process_start_id, this_host
from hpckit.runtime.assignment import Step
from hpckit.runtime.fork_server.owner import run_fork_server
from hpckit.runtime.forked import Program
from hpckit.values import dataclass, field


def run_local_jobs(launch: Launch, jobs: tuple[int, ...], context: Context, program: Program) -> int:
    """Run jobs of a launch; returns 0 if every run of them completed, else 1.

    `program` is hpckit's command line, which supervises each run.
    """
    executor = _Executor(launch=launch, jobs=jobs, environ=context.environ, program=program)
    return asyncio.run(executor.run_all_jobs())


@dataclass(slots=True, kw_only=True)
class _Executor:
    """The runs of these jobs, in order, as many at a time as the machine and the sweep allow."""

    launch: Launch
    jobs: tuple[int, ...]
    environ: Mapping[str, str]
    program: Program
    stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    children: set[Step] = field(default_factory=set, init=False)
    over: dict[int, asyncio.Event] = field(default_factory=dict, init=False)
    shared: dict[str, str] = field(default_factory=dict, init=False)

    async def run_all_jobs(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_all_runs)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        self._record_executor_start()
        history = read_launch_history(self.launch)
        mine = [run for run in history.executors if self._is_responsible_for_run(run, history)]
        theirs = (job for job in history.jobs if not set(job.runs).isdisjoint(mine))
        bounds = [job.resources.array_parallelism for job in theirs]
        gate = asyncio.Semaphore(min([self.launch.cluster.max_parallel, *bounds]))
        self.over = {run: asyncio.Event() for run in mine}
        with run_fork_server(self.launch, mine, self.environ) as self.shared:
            codes = await asyncio.gather(*(self._run_after_prerequisites(gate, run) for run in mine))
        return int(any(codes))

    def _record_executor_start(self) -> None:
        event = LocalStarted(
            at=datetime.now(UTC),
            host=this_host(),
            pid=os.getpid(),
            started=read_process_start_id(os.getpid()) or "",
            jobs=self.jobs,
        )
        record_launch_event(self.launch.paths, event)

    async def _run_after_prerequisites(self, gate: asyncio.Semaphore, run: int) -> int:
        """Start a run after the runs it follows, unless one that it needs did not complete."""
        for before in list_prerequisite_runs(self.launch.stages, run):
            if before in self.over:
                await self.over[before].wait()
        try:
            if list_uncompleted_prerequisites(self.launch, run):
                return 1
            return await self._run_when_slot_free(gate, run)
        except HpckitError as error:
            # The other runs must not be affected.
            sys.stderr.write(f"hpckit: error: run {run} is not started: {error.message}\n")
            return 1
        finally:
            self.over[run].set()

    async def _run_when_slot_free(self, gate: asyncio.Semaphore, run: int) -> int:
        async with gate:
            history = read_launch_history(self.launch)
            if self.stopping.is_set() or not self._should_start_run(run, history):
                return 1
            job = history.find_job_of_run(run).index
            environ = {**self.environ, **self.shared}
            try:
                child = await start_supervisor(self.launch, job, run, program=self.program, environ=environ)
            except OSError as error:
                sys.stderr.write(f"hpckit: error: run {run} cannot be started: {error}\n")
                return 1
            self.children.add(child)
            if self.stopping.is_set():
                signal_supervisor(child, signal.SIGTERM)
            code = await child.wait()
            self.children.discard(child)
            return code

    def _stop_all_runs(self) -> None:
        """Start no further run, and ask the running ones to stop; their ends are awaited."""
        self.stopping.set()
        for child in self.children:
            signal_supervisor(child, signal.SIGTERM)

    def _is_responsible_for_run(self, run: int, history: LaunchHistory) -> bool:
        """Whether the run belongs to this executor: a resume may have given it to another one."""
        executor = history.executors.get(run)
        return executor is not None and executor.pid == os.getpid() and executor.jobs == self.jobs

    def _should_start_run(self, run: int, history: LaunchHistory) -> bool:
        """Whether the run is to be started: it was neither cancelled nor started by hand."""
        attempts = latest_attempt_number(self.launch.paths.run(run).attempts)
        begun = attempts > history.count_attempts_before_job(run)
        return self._is_responsible_for_run(run, history) and not begun and run not in history.cancelled
