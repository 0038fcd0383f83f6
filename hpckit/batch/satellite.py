"""The program of a satellite job: starts agents that join a run of another job.

The agents find the supervisor as its own agents do: by the attempt's address and secret, which only
the run's owner can read. It decides nothing about the run.
"""

from __future__ import annotations

import asyncio
import os

from hpckit.batch.supervisor_lost import supervisor_answers
from hpckit.context import Context
from hpckit.errors import RunError, UsageError
from hpckit.model.events import AttemptEnded
from hpckit.model.plan import JobSpec
from hpckit.record.attempts import latest_attempt
from hpckit.record.launches import Launch, is_cancelled
from hpckit.record.store import read_events
from hpckit.runtime.environ import SATELLITE, job_key, without_rank
from hpckit.runtime.signals import NOTICES
from hpckit.slurm.step import agent_step, step_environment

_PAUSES_S = (1.0, 4.0, 10.0)
"""Waits for a supervisor that does not answer at once: it may be held up by a file system."""


def join_run(launch: Launch, job: JobSpec, context: Context) -> int:
    """Bring this job's nodes to the run, until the run lets them go; return the exit code.

    0 if the run had ended, or has let them go. Raises RunError if the supervisor does not answer,
    UsageError outside a Slurm job.
    """
    slurm_job, _ = job_key(context.environ)
    if job.satellite is None or slurm_job is None:
        raise UsageError(f"job {job.index} of {launch.id} is not started as a satellite job")
    run = job.satellite.run
    number = _attempt(launch, run)
    if number is None:
        context.note(f"run {launch.runs[run].id} has ended: there is nothing to join")
        return 0
    _find_supervisor(launch, run, number, context)
    context.note(f"joining attempt {number} of run {launch.runs[run].id}")
    cluster, agent = launch.cluster, (launch.python, "-P", "-m", "hpckit.runtime.agent")
    words = agent_step(
        job.resources,
        (*agent, str(launch.folder), str(run), str(number)),
        srun_args=cluster.srun_args,
        bin_dir=cluster.bin_dir,
    )
    environ = {**step_environment(without_rank(context.environ)), SATELLITE: slurm_job}
    return asyncio.run(_work(words, environ))


def _attempt(launch: Launch, run: int) -> int | None:
    """Return the attempt of a run that has not ended; None without one."""
    number = latest_attempt(launch.paths.run(run).attempts)
    if not number or is_cancelled(launch, run):
        return None
    told = read_events(launch.paths.run(run).attempt(number).events)
    return None if any(isinstance(event, AttemptEnded) for event in told) else number


def _find_supervisor(launch: Launch, run: int, number: int, context: Context) -> None:
    """Make sure that there is someone to join; raises RunError."""
    paths = launch.paths.run(run).attempt(number)
    for pause_s in (*_PAUSES_S, None):
        if supervisor_answers(paths):
            return
        if pause_s is None or _attempt(launch, run) != number:
            break
        context.sleep(pause_s)
    raise RunError(
        f"the supervisor of run {launch.runs[run].id} does not answer on {os.uname().nodename}: "
        "there is nothing to join",
        hint="it may have ended meanwhile (`hpckit status`); else nodes of both jobs must be able "
        "to open TCP connections to each other",
    )


async def _work(words: list[str], environ: dict[str, str]) -> int:
    """Run the step of agents to its end; the agents themselves act on notices."""
    loop = asyncio.get_running_loop()
    for number in NOTICES:
        loop.add_signal_handler(number, lambda: None)
    step = await asyncio.create_subprocess_exec(
        *words, env=environ, stdin=asyncio.subprocess.DEVNULL
    )
    return await step.wait()
