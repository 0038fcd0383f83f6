"""`hpckit supervise`: what a batch script runs. It wires Slurm's step launcher to the supervisor.

Hidden from `--help`: people launch, scripts supervise. It must not decide anything itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from hpckit.cli.context import Context
from hpckit.errors import UsageError
from hpckit.model.launch import ClusterKind
from hpckit.model.nodes import expand
from hpckit.model.plan import JobSpec
from hpckit.record.launches import Launch, load_launch, load_settings
from hpckit.runtime.environ import without_rank
from hpckit.runtime.supervise import AgentCommand, Assignment, supervise
from hpckit.slurm.step import agent_step, step_environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a batch script passes."""
    parser.add_argument("folder", type=Path, help="the launch folder")
    parser.add_argument("--job", type=int, required=True, help="index of the job in the launch")
    parser.add_argument("--run", type=int, help="index of the run; else the array element's")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Supervise one attempt of one run; returns the attempt's exit code."""
    launch = load_launch(arguments.folder)
    job = _job(launch, arguments.job)
    index = arguments.run if arguments.run is not None else _index(job, context.environ)
    settings, _ = load_settings(launch, index)
    assignment = Assignment(
        launch=launch,
        index=index,
        job_index=job.index,
        settings=settings,
        requeue=job.requeue and launch.cluster.kind is ClusterKind.slurm,
        agents=_agent_command(launch, job, context.environ),
        environ=context.environ,
    )
    return supervise(assignment)


def _job(launch: Launch, index: int) -> JobSpec:
    for job in launch.jobs:
        if job.index == index:
            return job
    raise UsageError(f"launch {launch.id} has no job {index}; it has {len(launch.jobs)}")


def _index(job: JobSpec, environ: Mapping[str, str]) -> int:
    """Return the run of this array element, or the only run of the job."""
    element = environ.get("SLURM_ARRAY_TASK_ID")
    if element is None and not job.is_array:
        return job.runs[0]
    if element is None or not element.isdecimal() or int(element) >= len(job.runs):
        raise UsageError(
            f"job {job.index} is an array of {len(job.runs)} runs, and SLURM_ARRAY_TASK_ID is "
            f"{element!r}",
            hint="submit the rendered script as it is, with its --array line",
        )
    return job.runs[int(element)]


def _agent_command(launch: Launch, job: JobSpec, environ: Mapping[str, str]) -> AgentCommand:
    environ = without_rank(environ)
    if launch.cluster.kind is not ClusterKind.slurm:
        alone = {"HPCKIT_RANK": "0", "HPCKIT_WORLD_SIZE": "1"}
        return AgentCommand(prefix=(), environ={**environ, **alone})
    if "SLURM_JOB_ID" not in environ:
        raise UsageError(
            f"launch {launch.id} is for Slurm, and this is no Slurm job (SLURM_JOB_ID is not set)",
            hint=f"submit it: sbatch {launch.folder / f'job-{job.index}.sbatch'}",
        )
    prefix = agent_step(
        job.resources, (), srun_args=launch.cluster.srun_args, bin_dir=launch.cluster.bin_dir
    )
    return AgentCommand(
        prefix=tuple(prefix),
        environ=step_environment(environ),
        nodes=expand(environ.get("SLURM_JOB_NODELIST", "")),
    )
