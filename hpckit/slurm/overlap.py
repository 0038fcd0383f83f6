"""A step next to what a job runs: it shares the job's CPUs, memory and GPUs with the other steps.

Responsible for the words of that srun, and for the job's number; it must not start it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.slurm.commands import SlurmCommands


def overlapping_step(
    job: str, node: str | None, words: Sequence[str], *, cpus: int, terminal: bool
) -> list[str]:
    """Return the arguments of an srun that starts one process in a running job.

    `job` is Slurm's number of it (`raw_job_id`), `node` one of its nodes (null: any). With a
    `terminal` the process has one of its own there. It gets all GPUs of the job on that node.
    """
    place = [] if node is None else [f"--nodelist={node}"]
    return [
        *(f"--jobid={job}", "--overlap", "--job-name=hpckit-shell", "--nodes=1", "--ntasks=1"),
        *(*place, f"--cpus-per-task={cpus}", "--mem=0", "--cpu-bind=none", "--mpi=none"),
        *("--export=ALL", "--chdir=/", "--immediate=20", "--quiet"),
        "--pty" if terminal else "--unbuffered",
        *words,
    ]


def raw_job_id(job: str, commands: SlurmCommands) -> str:
    """Return the number of a job: srun does not know elements of arrays as `123_4` (22.05).

    Raises SchedulerRefusedError or SchedulerAwayError.
    """
    if "_" not in job:
        return job
    return commands.run("squeue", "--noheader", f"--jobs={job}", "--format=%A").strip()
