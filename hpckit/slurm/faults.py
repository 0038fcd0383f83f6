"""Slurm calls for injected faults: a requeue, a more urgent job, a command on one node of a job."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.overlap import raw_job_id


def force_requeue(job: str, commands: SlurmCommands) -> None:
    """Make a running job (`123` or `123_4`) start again, as an administrator can.

    Raises SchedulerRefusedError or SchedulerAwayError, as all functions here do.
    """
    commands.run("scontrol", "requeue", job)


def preempt(nodes: Sequence[str], partition: str, seconds: float, commands: SlurmCommands) -> str:
    """Submit a short job that wants these nodes exclusively; return its id.

    The partition's priority decides whether it gets them from the jobs that hold them.
    """
    said = commands.run(
        "sbatch",
        *("--parsable", f"--partition={partition}", "--job-name=hpckit-chaos", "--exclusive"),
        *(f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", "--output=/dev/null"),
        *("--chdir=/", "--no-requeue", f"--time={int(seconds // 60) + 1}"),
        f"--wrap=exec sleep {seconds:g}",
    )
    return said.strip().partition(";")[0]


def run_on_node(job: str, node: str, words: Sequence[str], commands: SlurmCommands) -> str:
    """Run a command on a node next to the job's processes; return its output."""
    return commands.run(
        "srun",
        *(f"--jobid={raw_job_id(job, commands)}", "--overlap", "--job-name=hpckit-chaos"),
        *("--nodes=1", "--ntasks=1", f"--nodelist={node}", "--cpus-per-task=1", "--mem=0"),
        *("--gres=none", "--mpi=none", "--input=none", "--export=ALL"),
        *("--chdir=/", "--immediate=20", "--quiet", *words),
    )
