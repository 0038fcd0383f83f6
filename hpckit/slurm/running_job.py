"""Slurm calls for a running job: a step next to its others, and faults to inject.

A step shares the job's CPUs, memory and GPUs. Faults are a requeue, a more urgent job, a command on one node.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.slurm.commands import SlurmCommands


def build_overlapping_srun(
    job: str, node: str | None, words: Sequence[str], *, cpus: int, terminal: bool
) -> list[str]:
    """Return the arguments of an srun that starts one process in a running job.

    `job` is Slurm's plain number for it (`ask_raw_job_id`), `node` one of its nodes (None: any). With
    `terminal` the process gets its own terminal there. It gets all of the job's GPUs on that node.
    """
    place = [] if node is None else [f"--nodelist={node}"]
    return [
        *(f"--jobid={job}", "--overlap", "--job-name=hpckit-shell", "--nodes=1", "--ntasks=1"),
        *(*place, f"--cpus-per-task={cpus}", "--mem=0", "--cpu-bind=none", "--mpi=none"),
        *("--export=ALL", "--chdir=/", "--immediate=20", "--quiet"),
        "--pty" if terminal else "--unbuffered",
        *words,
    ]


def ask_raw_job_id(job: str, commands: SlurmCommands) -> str:
    """Return the plain number of a job: srun does not accept array elements as `123_4` (22.05).

    Raises SchedulerRefusedError or SchedulerAwayError.
    """
    if "_" not in job:
        return job
    return commands.run("squeue", "--noheader", f"--jobs={job}", "--format=%A").strip()


def force_requeue(job: str, commands: SlurmCommands) -> None:
    """Make a running job (`123` or `123_4`) start again, as an administrator can.

    Raises SchedulerRefusedError or SchedulerAwayError, as all functions here do.
    """
    commands.run("scontrol", "requeue", job)


def submit_preempting_job(
    nodes: Sequence[str], partition: str, seconds: float, commands: SlurmCommands
) -> str:
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
        *(f"--jobid={ask_raw_job_id(job, commands)}", "--overlap", "--job-name=hpckit-chaos"),
        *("--nodes=1", "--ntasks=1", f"--nodelist={node}", "--cpus-per-task=1", "--mem=0"),
        *("--gres=none", "--mpi=none", "--input=none", "--export=ALL"),
        *("--chdir=/", "--immediate=20", "--quiet", *words),
    )
