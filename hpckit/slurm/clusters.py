"""Keeps jobs to one cluster, this machine's own, and launches to the cluster that has their jobs.

squeue, sacct and scancel look up a job of another cluster on this one, where its number belongs to
another job or to none: it would count as lost and be started a second time, or somebody else's job
would be cancelled. Two clusters may share a file system, and a Slurm may begin its numbers again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from hpckit.errors import SchedulerAwayError, UsageError
from hpckit.patterns import lazy_pattern
from hpckit.slurm.commands import SlurmCommands

VARIABLES = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")
"""Variables that send sbatch to other clusters; hpckit removes them for Slurm's programs."""

HINT = (
    "hpckit works with one cluster, that of the machine it starts on: launch on a login node of "
    "that cluster, or set cluster.bin_dir to a folder of Slurm's programs that talk to it"
)

CANCEL_THERE = "cancel on a login node of the cluster that has the jobs"
_ANSWER = lazy_pattern(r"Submitted batch job (\d+)(?: on cluster (\S+))?")


def refuse_slurm_cluster_variables(environ: Mapping[str, str]) -> None:
    """Raise UsageError if the environment would send jobs to named clusters."""
    for name in VARIABLES:
        if environ.get(name):
            raise UsageError(
                f"${name} is {environ[name]!r}: it would send jobs to clusters that hpckit does not query",
                hint=f"{HINT}; if it is this machine's own cluster, unset {name}",
            )


def parse_sbatch_answer(answer: str) -> tuple[str, str | None] | None:
    """Return the job that sbatch reports, and the cluster if it names one.

    None if the answer has other words, too: a site's wrapper may quote other jobs in them.
    """
    match = _ANSWER.fullmatch(answer.strip())
    return None if match is None else (match[1], match[2])


def explain_why_cluster_lacks_jobs(cluster: str, jobs: Collection[str], config: Mapping[str, str]) -> str:
    """Return why the Slurm of this configuration cannot have these jobs; empty if it may.

    `cluster` is the cluster that accepted them, empty if unknown. Slurm counts up to MaxJobId, and
    begins again: a number far above the next one is from before that.
    """
    here = config.get("ClusterName", "")
    if cluster and here and here != cluster:
        return f"its jobs are on cluster {cluster}, and this machine's Slurm is {here}"
    mains = [int(job.partition("_")[0]) for job in jobs if job.partition("_")[0].isdecimal()]
    coming, most = (config.get(name, "") for name in ("NEXT_JOB_ID", "MaxJobId"))
    if mains and coming.isdecimal() and most.isdecimal():
        newest = max(mains)
        if int(coming) <= newest < int(coming) + int(most) // 2:
            return (
                f"this machine's Slurm has not reached job number {newest}: it is another cluster, "
                "or was installed again"
            )
    return ""


def check_jobs_are_own(others: Mapping[str, str], folder: Path, commands: SlurmCommands) -> None:
    """Raise SchedulerAwayError if one of these living jobs, with their names, is another's.

    No job was given these names: one that was renamed since is known by its script in `folder`.
    """
    for job, name in others.items():
        if f"Command={folder}/" not in commands.run("scontrol", "show", "job", job):
            raise SchedulerAwayError(
                f"job {job} of this machine's Slurm is {name!r}, and not the one that was "
                "submitted: it is another cluster, or its job numbers were reset",
                hint=CANCEL_THERE,
            )
