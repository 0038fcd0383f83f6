"""The program of a satellite job: starts agents that join a run of another job.

The agents find the supervisor as its own agents do: by the attempt's address and secret, which only
the run's owner can read. It decides nothing about the run.
"""

from __future__ import annotations

import asyncio
import os

from hpckit.batch.supervise import plan_container_step
from hpckit.context import Context
from hpckit.errors import RunError, UsageError
from hpckit.model.events import AttemptEnded
from hpckit.model.plan import JobSpec
from hpckit.record.attempts import latest_attempt_number
from hpckit.record.launches import Launch, is_cancel_requested, load_run_settings
from hpckit.record.store import read_events
from hpckit.run_features import AGENT, choose_agent_module
from hpckit.runtime.channel.tcp import supervisor_answers
from hpckit.runtime.environ import SATELLITE, find_job_and_restarts, remove_rank_variables
from hpckit.runtime.signals import NOTICES
from hpckit.slurm.step import build_agent_srun_command, build_srun_environment

_PAUSES_S = (1.0, 4.0, 10.0)
"""Waits for a supervisor that does not answer at once: it may be held up by a file system."""


def lend_job_nodes_to_run(launch: Launch, job: JobSpec, context: Context) -> int:
    """Lend this job's nodes to the run until the run releases them; return the exit code.

    0 if the run had ended, or has released them. Raises RunError if the supervisor does not answer,
    UsageError outside a Slurm job.
    """
    slurm_job, _ = find_job_and_restarts(context.environ)
    if job.satellite is None or slurm_job is None:
        raise UsageError(f"job {job.index} of {launch.id} is not a satellite job in a Slurm job")
    run = job.satellite.run
    number = _find_running_attempt(launch, run)
    if number is None:
        context.note(f"run {launch.runs[run].id} has ended: there is nothing to join")
        return 0
    _wait_until_supervisor_answers(launch, run, number, context)
    context.note(f"joining attempt {number} of run {launch.runs[run].id}")
    cluster, given = launch.cluster, load_run_settings(launch, run)
    inside = plan_container_step(launch, run, given, context.environ)
    module = AGENT if inside else choose_agent_module(*given)
    agent = (inside.python if inside else launch.python, "-P", "-m", module)
    words = build_agent_srun_command(
        job.resources,
        (*agent, str(launch.folder), str(run), str(number)),
        srun_args=(*cluster.srun_args, *(inside.options if inside else ())),
        bin_dir=cluster.bin_dir,
    )
    environ = {**build_srun_environment(remove_rank_variables(context.environ)), SATELLITE: slurm_job}
    environ |= inside.variables if inside else {}
    return asyncio.run(_run_agent_step(words, environ))


def _find_running_attempt(launch: Launch, run: int) -> int | None:
    number = latest_attempt_number(launch.paths.run(run).attempts)
    if not number or is_cancel_requested(launch, run):
        return None
    told = read_events(launch.paths.run(run).attempt(number).events)
    return None if any(isinstance(event, AttemptEnded) for event in told) else number


def _wait_until_supervisor_answers(launch: Launch, run: int, number: int, context: Context) -> None:
    """Wait until the run's supervisor answers; raises RunError if it does not."""
    paths = launch.paths.run(run).attempt(number)
    for pause_s in (*_PAUSES_S, None):
        if supervisor_answers(paths):
            return
        if pause_s is None or _find_running_attempt(launch, run) != number:
            break
        context.sleep(pause_s)
    raise RunError(
        f"the supervisor of run {launch.runs[run].id} does not answer on {os.uname().nodename}: "
        "there is nothing to join",
        hint="it may have ended meanwhile (`hpckit status`); if not, both jobs' nodes must be able "
        "to open TCP connections to each other",
    )


async def _run_agent_step(words: list[str], environ: dict[str, str]) -> int:
    """Run the step of agents to its end; the agents themselves act on notices."""
    loop = asyncio.get_running_loop()
    for number in NOTICES:
        loop.add_signal_handler(number, lambda: None)
    step = await asyncio.create_subprocess_exec(*words, env=environ, stdin=asyncio.subprocess.DEVNULL)
    return await step.wait()
