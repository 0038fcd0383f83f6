"""A job that several runs share: its slots take one run after another, until none is left.

It starts a supervisor for each run, passes the job's signals on to all of them, and requeues the
job while runs are left; it does not look into what supervisors do. Jobs that share runs use claims
in the launch folder (record/claims), so that each run is started only once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

from hpckit.batch.shared_job.notes import VARIABLE, SharedJobNotes
from hpckit.batch.shared_job.notices import SharedJobNotices
from hpckit.batch.shared_job.settle import SharedJobEnds
from hpckit.batch.shared_job.slots import Slot, divide_job_into_slots
from hpckit.batch.start_supervisor import signal_supervisor, start_supervisor
from hpckit.context import Context
from hpckit.errors import HpckitError
from hpckit.model.history import LaunchHistory
from hpckit.model.plan import JobSpec, SharedJobSpec
from hpckit.planning.jobs.shared_jobs import list_runs_waiting_for_slot
from hpckit.record.attempts import latest_attempt_number
from hpckit.record.claims import ClaimHolder, claim_run, list_claimed_runs, list_runs_left_claimed
from hpckit.record.launch_events import Mark, refresh_nfs_listing_of_events, stat_events_files
from hpckit.record.launches import Launch, read_launch_history
from hpckit.record.process import read_process_start_id, this_host
from hpckit.record.store import make_private_folder
from hpckit.runtime.assignment import Step
from hpckit.runtime.environ import find_job_and_restarts
from hpckit.runtime.fork_server.owner import run_fork_server
from hpckit.runtime.forked import Program
from hpckit.runtime.supervisor.deadline import Deadline
from hpckit.runtime.threads import await_with_limit, run_in_thread
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.requeue import JobAttempt, requeue_job
from hpckit.values import dataclass, field

_LOOK_S = 2.0
"""How often, in seconds, the launch's record is checked for cancelled runs."""
_IDLE_S = 5.0
"""How often, in seconds, a free slot checks whether another job has given a run back."""


def run_shared_job(launch: Launch, job: JobSpec, context: Context, program: Program) -> int:
    """Work through the runs of a job; returns 0 if all runs started here completed.

    `program` is hpckit's command line, which supervises each run.
    """
    slurm_job, restarts = find_job_and_restarts(context.environ)
    holder = ClaimHolder(
        job=slurm_job or "",
        restart_count=restarts,
        host=this_host(),
        pid=os.getpid(),
        started=read_process_start_id(os.getpid()) or "",
    )
    # On the node, with mode 0700; what runs leave in it is removed with the job.
    with tempfile.TemporaryDirectory(prefix="hpckit-", ignore_cleanup_errors=True) as folder:
        made = _SharedJob(
            launch=launch, job=job, context=context, program=program, holder=holder, folder=Path(folder)
        )
        return asyncio.run(made.fill_slots_until_done())


@dataclass(slots=True, kw_only=True)
class _SharedJob:
    """The slots of one job. `running` maps each run in a slot to its supervisor."""

    launch: Launch
    job: JobSpec
    context: Context
    program: Program
    holder: ClaimHolder
    folder: Path
    running: dict[int, Step] = field(default_factory=dict, init=False)
    changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    told: set[int] = field(default_factory=set, init=False)
    stopping: bool = field(default=False, init=False)
    closing: bool = field(default=False, init=False)
    failed: bool = field(default=False, init=False)
    shared: dict[str, str] = field(default_factory=dict, init=False)
    history: tuple[Mark, LaunchHistory] | None = field(default=None, init=False)

    @property
    def sharing_spec(self) -> SharedJobSpec:
        """How the runs share the job."""
        if self.job.shared_job is None:
            raise AssertionError(f"job {self.job.index} is not shared")
        return self.job.shared_job

    @property
    def claims_folder(self) -> Path:
        """The folder with the claims of this launch's jobs."""
        return self.launch.paths.packed_job_claims_folder(self.job.index)

    @property
    def ended_runs_handler(self) -> SharedJobEnds:
        """What settles the runs whose attempts have ended."""
        return SharedJobEnds(launch=self.launch, job=self.job, claims=self.claims_folder)

    async def fill_slots_until_done(self) -> int:
        """Fill the slots until no run is left or the job is about to end."""
        notices = SharedJobNotices(
            holder=self.holder,
            bin_dir=self.launch.cluster.bin_dir,
            environ=self.context.environ,
            requeues=self.job.requeue,
            takes=None if self.sharing_spec.timeout is None else self.sharing_spec.each.timeout,
            notes=SharedJobNotes(self.folder),
            deadline=Deadline(
                lead=timedelta(),
                signal=str(dict(self.job.resources.additional_parameters).get("signal") or ""),
            ),
            tell=self._stop_and_signal_runs,
            pass_on=self._signal_supervisors,
            close=self._stop_starting_runs,
        )
        notices.install_signal_handlers()
        for run in tuple(list_runs_left_claimed(self.claims_folder, self.holder)):
            self.ended_runs_handler.finish_or_release_claimed_run(run)
        slots = divide_job_into_slots(
            self.sharing_spec, self.context.environ, sorted(os.sched_getaffinity(0))
        )
        tasks = (
            notices.watch_job_time_limit(),
            self._stop_cancelled_runs(),
            self._requeue_preempted_job(notices),
        )
        beside = [asyncio.create_task(task) for task in tasks]
        own = run_fork_server(self.launch, self.job.runs, self.context.environ)
        with own as forks:
            async with self._run_mps_if_needed() as shared:
                self.shared = {**shared, **forks}
                await asyncio.gather(*(self._work_through_runs_in_slot(slot) for slot in slots))
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        if (self.stopping or self.closing) and self.job.requeue and self._list_runs_waiting_for_slot():
            await notices.wait_for_announced_preemption()
            await self._requeue_job()
        return int(self.failed)

    @asynccontextmanager
    async def _run_mps_if_needed(self) -> AsyncIterator[dict[str, str]]:
        if not self.sharing_spec.mps or self.sharing_spec.runs_per_gpu == 1:
            yield {}
            return
        async with run_mps_daemon(
            make_private_folder(self.folder / "mps"), self.context.environ
        ) as variables:
            if not variables:
                self._print_message("runs share a GPU without CUDA MPS: its daemon cannot be started here")
            yield variables

    async def _work_through_runs_in_slot(self, slot: Slot) -> None:
        while not (self.stopping or self.closing):
            run = self._claim_next_run()
            if run is not None:
                await self._run_attempt_in_slot(slot, run)
                self.changed.set()
            elif not self.running:
                return
            else:
                # A run may come back: one of this job's, or one that another job gives back.
                self.changed.clear()
                await await_with_limit(_IDLE_S, self.changed.wait())

    def _claim_next_run(self) -> int | None:
        try:
            return next(
                (
                    run
                    for run in self._list_runs_waiting_for_slot()
                    if claim_run(self.claims_folder, run, self.holder)
                ),
                None,
            )
        except OSError as error:
            self._print_message(f"error: no run can be claimed in {self.claims_folder}: {error}")
            self.failed = True
            return None

    def _list_runs_waiting_for_slot(self) -> list[int]:
        return list_runs_waiting_for_slot(
            self.job, self._read_history_if_changed(), list_claimed_runs(self.claims_folder)
        )

    def _read_history_if_changed(self) -> LaunchHistory:
        refresh_nfs_listing_of_events(self.launch.paths)
        try:
            mark = stat_events_files(self.launch.paths)
        except OSError:
            return read_launch_history(self.launch)
        if self.history is None or self.history[0] != mark:
            self.history = mark, read_launch_history(self.launch)
        return self.history[1]

    async def _run_attempt_in_slot(self, slot: Slot, run: int) -> None:
        try:
            before = latest_attempt_number(self.launch.paths.run(run).attempts)
        except HpckitError as error:
            self._print_message(f"error: run {run} is not started: {error}")
            self.failed = True
            return
        folder = self.folder / f"slot-{slot.number}"
        try:
            code = await self._run_supervisor(slot, run, make_private_folder(folder))
        except OSError as error:
            self._print_message(f"error: run {run} cannot be started: {error}")
            code = 1
        try:
            completed = self.ended_runs_handler.finish_or_release_exited_run(
                run, before=before, code=code, stopped=self.stopping
            )
        except (OSError, HpckitError) as error:
            # The other runs must not be affected; a resume takes care of this one.
            self._print_message(f"error: the end of run {run} cannot be recorded: {error}")
            completed = False
        self.failed = self.failed or not completed
        await run_in_thread(partial(shutil.rmtree, folder, ignore_errors=True))

    async def _run_supervisor(self, slot: Slot, run: int, folder: Path) -> int:
        own = {"TMPDIR": str(folder), VARIABLE: str(self.folder)}
        environ = {**self.context.environ, **self.shared, **slot.variables, **own}
        process = self.running[run] = await start_supervisor(
            self.launch, self.job.index, run, program=self.program, environ=environ, cpus=slot.cpus
        )
        if self.stopping:
            signal_supervisor(process, signal.SIGTERM)
        try:
            with self._enforce_run_time_limit(process):
                return await process.wait()
        finally:
            del self.running[run]
            self.told.discard(run)

    @contextlib.contextmanager
    def _enforce_run_time_limit(self, process: Step) -> Iterator[None]:
        limit = self.sharing_spec.each.timeout
        if limit is None:
            yield
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(limit.total_seconds(), signal_supervisor, process, signal.SIGUSR1)
        try:
            yield
        finally:
            timer.cancel()

    def _stop_and_signal_runs(self, number: signal.Signals) -> None:
        """Start no further run, and pass the job's signal on; ends are awaited."""
        self.stopping = True
        self.changed.set()
        self._signal_supervisors(number)

    def _signal_supervisors(self, number: signal.Signals) -> None:
        for process in self.running.values():
            signal_supervisor(process, number)

    def _stop_starting_runs(self) -> None:
        self.closing = True
        self.changed.set()

    async def _stop_cancelled_runs(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self.running:
                continue
            with contextlib.suppress(OSError):
                wished = self._read_history_if_changed().cancelled & self.running.keys()
                for run in wished - self.told:
                    self.told.add(run)
                    signal_supervisor(self.running[run], signal.SIGTERM)

    async def _requeue_preempted_job(self, notices: SharedJobNotices) -> None:
        """Requeue a preempted job while its runs save, if only KillWait is left."""
        if await notices.wait_for_sigterm_without_restart() and self.job.requeue:
            await self._requeue_job()

    async def _requeue_job(self) -> None:
        """Requeue the job; Slurm then ends this process."""
        attempt = JobAttempt(
            job=self.holder.job,
            restart_count=self.holder.restart_count,
            asked=self.job.resources,
            owns_run=lambda: bool(self._list_runs_waiting_for_slot() or self.running),
        )
        bin_dir = self.launch.cluster.bin_dir
        commands = SlurmCommands(bin_dir=bin_dir, environ=self.context.environ)
        outcome = await run_in_thread(partial(requeue_job, commands, attempt))
        self._print_message(f"requeue {outcome.outcome}: {outcome.message}")

    def _print_message(self, message: str) -> None:
        sys.stderr.write(f"hpckit: {message}\n")


PROGRAM = "nvidia-cuda-mps-control"
_LIMIT_S = 15.0


@asynccontextmanager
async def run_mps_daemon(folder: Path, environ: Mapping[str, str]) -> AsyncIterator[dict[str, str]]:
    """Run a daemon of CUDA's Multi-Process Service, for runs that share a GPU.

    Yields the variables by which programs find it, none if it cannot run. It is one for the job, in
    private folders; daemons started by others and device settings are never touched.
    """
    places = {"CUDA_MPS_PIPE_DIRECTORY": folder / "pipe", "CUDA_MPS_LOG_DIRECTORY": folder / "log"}
    variables = {name: str(make_private_folder(place)) for name, place in places.items()}
    program = shutil.which(PROGRAM, path=environ.get("PATH"))
    own = {**environ, **variables}
    there = program is not None and await _run_mps_control(program, "-d", environ=own)
    try:
        yield variables if there else {}
    finally:
        if program is not None and there:
            await _run_mps_control(program, environ=own, words=b"quit\n")


async def _run_mps_control(
    program: str, *arguments: str, environ: Mapping[str, str], words: bytes = b""
) -> bool:
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            env=dict(environ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    await await_with_limit(_LIMIT_S, process.communicate(words))
    if process.returncode is None:
        process.kill()
        await process.wait()
    return process.returncode == 0
