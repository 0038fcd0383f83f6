"""The identity of one process of a distributed run."""

from __future__ import annotations

from enum import StrEnum

from hpckit.values import dataclass

RANK_VARIABLES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
        *("MASTER_ADDR", "MASTER_PORT"),
    }
)
"""The names by which torch's programs know who they are: hpckit gives each rank its own values."""

TASK_VARIABLES = frozenset(
    {
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID"),
        *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
        *("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES"),
        *("SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TRES_PER_TASK"),
    }
)
"""The names by which a task of srun knows who it is. Those that hpckit has are of a node's agent;
on Slurm, each rank gets its own values."""

THREADS = "OMP_NUM_THREADS"
"""What a rank has of it is `resources.cpus_per_task`, whatever the shell has that launches it."""


class RankSource(StrEnum):
    """Where the identity comes from."""

    agent = "agent"
    slurm_step = "slurm_step"
    torchrun = "torchrun"
    single = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """Identity of one rank: all counts start at 0, sizes at 1.

    `master_addr` and `master_port` are set only if the source fixes them in advance. Otherwise rank
    0 publishes the address after it has bound its store.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    source: RankSource
    node: str = ""
    restart_count: int = 0
    master_addr: str | None = None
    master_port: int | None = None
