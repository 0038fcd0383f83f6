"""A started launch, or part of one: its jobs, and where they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpckit.model.events import LocalStarted
from hpckit.record.launches import Launch
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A started launch: the Slurm job of each run, the main jobs, and where it runs.

    `auto_resume_job` is the job that resumes runs, `backlog_job` the one that submits the runs that
    are `left`; None without one.
    """

    launch: Launch
    jobs: Mapping[int, str]
    main_jobs: tuple[str, ...]
    where: str
    auto_resume_job: str | None = None
    backlog_job: str | None = None
    left: int = 0


def describe_slurm_jobs(main_jobs: Sequence[str]) -> str:
    """Return the description of jobs on Slurm."""
    return f"Slurm, {'jobs' if len(main_jobs) > 1 else 'job'} {', '.join(main_jobs)}"


def describe_local_executor(executor: LocalStarted) -> str:
    """Return the description of a local executor."""
    return f"local executor, process {executor.pid} on {executor.host}"
