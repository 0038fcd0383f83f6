"""Detects the end of a shared job: by signals, its time limit, and notices that only steps receive.

Asks Slurm once for all supervisors and passes the answers on; does not start or end runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial

from hpckit.batch.shared_job.notes import SharedJobNotes
from hpckit.model.cluster.preemption import PreemptMode
from hpckit.record.claims import ClaimHolder
from hpckit.runtime.signals import RANK_NOTICES, WARNINGS, install_stop_signal_handlers
from hpckit.runtime.supervisor.deadline import Deadline
from hpckit.runtime.supervisor.drain_poll import polling_pause_s
from hpckit.runtime.threads import await_with_limit, run_in_thread
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.job_limits import JobLimits, LimitsOfJob, ask_why_job_ends
from hpckit.slurm.step import build_signal_listening_srun, build_srun_environment
from hpckit.values import dataclass, field

_BY_CODE = {128 + number: number for number in RANK_NOTICES}
"""Exit codes of srun when its task was killed by a notice."""
_CLOSING = timedelta(seconds=60)
"""This close to the job's time limit, or in its last tenth if it is short, no run is started."""
_LEAVING = timedelta(seconds=25)
"""This close to it all runs must leave: Slurm requeues a job only before its limit."""
_ASKING_S = 600.0
_LOOK_S = 30.0
_GRACE_AT_MOST_S = 900.0
"""How long to wait for a preemption announced only to the step; GraceTime at sites is less."""


@dataclass(slots=True, kw_only=True)
class SharedJobNotices:
    """Receives the notices of one job.

    `tell` passes a signal on and ends the job; `close` stops the start of further runs. `deadline`
    tells whether a warning signal comes far from the time limit: then it is a request that runs
    save now, which is passed on (`pass_on`) and ends nothing.

    `requeues` is whether the job can be requeued, so that leaving early is useful; `takes` is how
    long before the limit a run must start (None: as late as possible).
    """

    holder: ClaimHolder
    bin_dir: str | None
    environ: Mapping[str, str]
    requeues: bool
    takes: timedelta | None
    notes: SharedJobNotes
    deadline: Deadline
    tell: Callable[[signal.Signals], None]
    pass_on: Callable[[signal.Signals], None]
    close: Callable[[], None]
    limits: LimitsOfJob = field(init=False)
    told: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    end_s: float = field(default=math.inf, init=False)
    by_step: bool = field(default=False, init=False)
    asking: asyncio.Task[None] | None = field(default=None, init=False)
    restarts: bool = field(default=True, init=False)
    """Whether Slurm starts the job again by itself."""

    def __post_init__(self) -> None:
        job, commands = self.holder.job, self.slurm_command_runner
        self.limits = LimitsOfJob(commands=commands, job=job, environ=self.environ)

    @property
    def slurm_command_runner(self) -> SlurmCommands:
        """Slurm's commands."""
        return SlurmCommands(bin_dir=self.bin_dir, environ=self.environ)

    def install_signal_handlers(self) -> None:
        """Handle the signals of this process."""
        install_stop_signal_handlers(self._pass_on_signal_or_end_job)

    async def watch_job_time_limit(self) -> None:
        """Report how long the job has, and make its runs leave in time to requeue it."""
        limits = self.limits
        known = await run_in_thread(limits.ask_limits)
        if known is None:
            return
        self._publish_job_time_limits(known)
        graceful = known.preempt_mode is not PreemptMode.off and known.grace != timedelta()
        async with asyncio.TaskGroup() as group:
            if graceful:
                group.create_task(self._watch_step_for_preemption_signal())
            group.create_task(self._stop_runs_before_time_limit())
            group.create_task(self._refresh_job_time_limits(limits))

    def _publish_job_time_limits(self, known: JobLimits) -> None:
        self.end_s = math.inf if known.end_s is None else known.end_s
        self.deadline.limits, self.deadline.known = known, True
        with contextlib.suppress(OSError):
            self.notes.write_job_time_limits(known)

    async def _refresh_job_time_limits(self, limits: LimitsOfJob) -> None:
        """Query the limit again in case it was changed, for all supervisors."""
        bad = 0
        while True:
            await asyncio.sleep(polling_pause_s(_ASKING_S, bad))
            known = await run_in_thread(limits.ask_limits)
            bad = bad + 1 if known is None else 0
            if known is not None:
                self._publish_job_time_limits(known)

    async def wait_for_announced_preemption(self) -> None:
        """Wait for a preemption that only the step knows of: a job that leaves is not requeued."""
        if self.asking is not None:
            await self.asking
        if self.by_step and self.restarts and not self.told.is_set():
            await await_with_limit(_GRACE_AT_MOST_S, self.told.wait())

    async def wait_for_sigterm_without_restart(self) -> bool:
        """Wait for SIGTERM; return whether it comes from a preemption that nothing undoes."""
        await self.told.wait()
        if self.asking is not None:
            await self.asking
        return not self.restarts

    async def _stop_runs_before_time_limit(self) -> None:
        left_s, closing_s = self.end_s - time.monotonic(), _CLOSING.total_seconds()
        # A job that is little longer than a run starts its first runs anyway.
        lead_s = min(closing_s, left_s / 10)
        if self.takes is not None:
            lead_s = min(self.takes.total_seconds(), left_s * 0.9)
        await self._sleep_until_before_job_end(lead_s)
        self.close()
        await self._sleep_until_before_job_end(_LEAVING.total_seconds())
        if self.requeues:
            self.tell(signal.SIGUSR1)

    async def _sleep_until_before_job_end(self, lead_s: float) -> None:
        """Wait until `lead_s` before the end, which may change meanwhile."""
        while (left_s := self.end_s - lead_s - time.monotonic()) > 0:  # noqa: ASYNC110  # it may move
            await asyncio.sleep(min(left_s, _LOOK_S))

    async def _watch_step_for_preemption_signal(self) -> None:
        """Run an idle step: Slurm announces a grace period to steps only (22.05)."""
        try:
            step = await asyncio.create_subprocess_exec(
                *build_signal_listening_srun(self.bin_dir),
                env=build_srun_environment(self.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            return
        try:
            number = _BY_CODE.get(await step.wait())
        finally:
            with contextlib.suppress(ProcessLookupError):
                step.terminate()
        if number is not None and not self.told.is_set():
            self.by_step = number is signal.SIGTERM
            self._tell_runs_that_job_ends(number)

    def _pass_on_signal_or_end_job(self, number: signal.Signals) -> None:
        if number in WARNINGS and self.deadline.is_too_early_for_slurm_warning(time.monotonic()):
            self.pass_on(number)
            return
        self.told.set()
        self._tell_runs_that_job_ends(number)

    def _tell_runs_that_job_ends(self, number: signal.Signals) -> None:
        if self.asking is None and number is signal.SIGTERM:
            self.asking = asyncio.create_task(self._ask_slurm_why_job_ends())
        self.tell(number)

    async def _ask_slurm_why_job_ends(self) -> None:
        job, mode = self.holder, self.limits.preempt_mode
        found = await run_in_thread(
            partial(ask_why_job_ends, self.slurm_command_runner, job.job, job.restart_count, mode)
        )
        self.restarts = found.restarts
        with contextlib.suppress(OSError):
            self.notes.write_job_end_reason(found)
