"""The srun for a step next to a job's other steps, sharing the job's CPUs, memory and GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.slurm.commands import SlurmCommands


def overlapping_step(
    job: str, node: str | None, words: Sequence[str], *, cpus: int, terminal: bool
) -> list[str]:
    """Return the arguments of an srun that starts one process in a running job.

    `job` is Slurm's plain number for it (`raw_job_id`), `node` one of its nodes (None: any). With
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


def raw_job_id(job: str, commands: SlurmCommands) -> str:
    """Return the plain number of a job: srun does not accept array elements as `123_4` (22.05).

    Raises SchedulerRefusedError or SchedulerAwayError.
    """
    if "_" not in job:
        return job
    return commands.run("squeue", "--noheader", f"--jobs={job}", "--format=%A").strip()
