"""Builds the srun for the step of agents: one task on each node, with every option explicit.

A step inherits the batch script's SLURM_NTASKS, SLURM_CPUS_PER_TASK, SLURM_MEM_PER_* and more,
which describe the job's tasks and not ours: otherwise an agent would get one task's CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hpckit.model.cluster.gpus_asked import node_gpus_from_task_options
from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.plan import ResourceSpec

_NOT_INHERITED = (
    "PYXIS_",
    "SBATCH_",
    "SRUN_",
    "SLURM_CPUS_PER_",
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_EXPORT_ENV",
    "SLURM_GPUS",
    "SLURM_GPU_BIND",
    "SLURM_HOSTFILE",
    "SLURM_KILL_BAD_EXIT",
    "SLURM_LABELIO",
    "SLURM_MEM_",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_OPEN_MODE",
    "SLURM_OVERLAP",
    "SLURM_STDERRMODE",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_THREADS_PER_CORE",
    "SLURM_TRES_",
    "SLURM_UNBUFFEREDIO",
    "SLURM_WAIT",
)
"""Prefixes of variables that srun would read as options of the step."""


def build_agent_srun_command(
    resources: ResourceSpec,
    command: Sequence[str],
    *,
    srun_args: Sequence[str] = (),
    bin_dir: str | None = None,
    only: Sequence[str] = (),
) -> list[str]:
    """Return the srun command line that starts `command` once on every node, including spare ones.

    Each gets all the CPUs and GPUs of its ranks. A node that dies, or an agent that fails, does not
    end the others: the supervisor decides that. `srun_args` come last and take precedence. With
    `only`, the step runs on just these nodes, next to a step that still holds their resources.
    """
    count = len(only) or resources.allocated_nodes
    some = ["--overlap", f"--nodelist={compress_to_hostlist(only)}"] if only else []
    each = resources.gpus_per_node or node_gpus_from_task_options(
        resources
    )  # an agent is one task of many ranks
    kind = f"{resources.gpu_type}:" if resources.gpu_type else ""
    gpus = [f"--gpus-per-node={kind}{each}"] if each else []
    return [
        str(Path(bin_dir) / "srun") if bin_dir else "srun",
        "--job-name=hpckit-agents",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        *some,
        f"--cpus-per-task={resources.tasks_per_node * resources.cpus_per_task}",
        *gpus,
        "--mem=0",
        "--cpu-bind=none",
        "--mpi=none",
        "--export=ALL",
        "--input=none",
        "--unbuffered",
        "--kill-on-bad-exit=0",
        "--no-kill",
        "--wait=0",
        *srun_args,
        *command,
    ]


def build_signal_listening_srun(bin_dir: str | None = None) -> list[str]:
    """Return the srun of an idle step, as only steps are signalled for a grace period (22.05)."""
    return [
        str(Path(bin_dir) / "srun") if bin_dir else "srun",
        *("--job-name=hpckit-listener", "--overlap", "--nodes=1", "--ntasks=1"),
        *("--cpus-per-task=1", "--mem=0", "--gres=none", "--cpu-bind=none", "--mpi=none"),
        *("--export=ALL", "--input=none", "--quiet"),
        *("sleep", "infinity"),
    ]


def build_srun_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for that srun: the batch script's, without options for the step."""
    return {name: value for name, value in environ.items() if not name.startswith(_NOT_INHERITED)}
