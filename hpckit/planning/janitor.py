"""The jobs that hpckit itself adds behind others: a launch's janitor, a run's successor. Pure.

Responsible for what they ask of Slurm; it must not submit them, nor decide when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from hpckit.model.ids import JobId
from hpckit.model.plan import JobSpec, ResourceSpec

JANITOR_TIME = timedelta(minutes=10)
_JANITOR_MEM_GB = 1.0
_PAUSE = (("begin", "now+60"),)
"""What Slurm waits before it starts a janitor whose predecessor found nothing to do."""


def janitor_job(
    launch: str, *, index: int, like: ResourceSpec, after: Iterable[str], pause: bool = False
) -> JobSpec:
    """Return a job without runs that starts when these jobs have ended, however they did.

    It asks for one CPU for ten minutes, where and on whose account the launch's own jobs run.
    """
    mains = dict.fromkeys(_main(job) for job in after)
    resources = replace(
        like,
        nodes=1,
        spare_nodes=0,
        min_nodes=None,
        tasks_per_node=1,
        cpus_per_task=1,
        gpus_per_node=0,
        constraint=None,
        nodelist=None,
        exclude=None,
        gres=None,
        exclusive=False,
        comment=None,
        mail_type=None,
        mail_user=None,
        array_parallelism=1,
        mem_gb=_JANITOR_MEM_GB,
        timeout=JANITOR_TIME,
        dependency=f"afterany:{':'.join(mains)}" if mains else None,
        additional_parameters=_PAUSE if pause else (),
    )
    name = f"{launch}-janitor-{index}"
    return JobSpec(index=index, name=name, runs=(), resources=resources, requeue=True)


def feeder_job(launch: str, *, index: int, like: ResourceSpec, after: Sequence[str]) -> JobSpec:
    """Return a job without runs that hands in what did not fit, when these jobs have ended."""
    job = janitor_job(launch, index=index, like=like, after=after, pause=not after)
    return replace(job, name=f"{launch}-feeder-{index}")


def _main(job: str) -> str:
    """Return the job itself for one of its elements: those that have ended hold nobody up."""
    return job.partition("_")[0]


def successor_job(launch: str, run: int, *, index: int, like: JobSpec, after: str) -> JobSpec:
    """Return the job of a run's next attempt, which starts when the job `after` has ended."""
    return JobSpec(
        index=index,
        name=f"{launch}-{index}",
        runs=(run,),
        resources=replace(like.resources, dependency=f"afterany:{JobId.parse(after)}"),
        requeue=False,
    )
