"""What submitit calls things, for the doors of those who come from it: the keys of hpckit's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpckit.errors import UsageError
from hpckit.model.rank import RankInfo
from hpckit.patterns import lazy_pattern

_MEMORY = lazy_pattern(r"(\d+(?:\.\d+)?)([KMGT]?)B?\Z")
_GB = {"K": 2**-20, "M": 2**-10, "": 2**-10, "G": 1, "T": 2**10}
"""Slurm's numbers without a unit are megabytes."""

_OF_RESOURCES = (
    *("timeout_min", "nodes", "tasks_per_node", "gpus_per_node", "cpus_per_task", "mem_gb", "partition"),
    *("qos", "account", "constraint", "exclude", "gres", "comment", "array_parallelism"),
)

SUBMITIT_KEYS: Mapping[str, str] = {
    **{name: f"resources.{name}" for name in _OF_RESOURCES},
    "setup": "cluster.setup",
    "srun_args": "cluster.srun_args",
    "python": "cluster.python",
    "name": "name",
    "signal_delay_s": "runtime.save_before_timeout_s",
    "max_num_timeout": "++recovery.restarts.time_limit",  # recovery=never names no cause
}
"""Parameters of submitit's SlurmExecutor and of hydra-submitit-launcher that have a key."""

SBATCH_OPTIONS = ("cpus_per_gpu", "gpus_per_task", "mem_per_gpu", "mem_per_cpu")
"""Those that `resources` has no key for: they go to sbatch as they are."""

PARAMETERS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node"), (int,)),
    **dict.fromkeys(("timeout_min", "mem_gb"), (int, float)),
    "name": (str,),
    "stderr_to_stdout": (bool,),
    "overrides": (list, tuple),
}
SLURM_TYPES: Mapping[str, tuple[type, ...]] = {"time": (int, float), "additional_parameters": (dict,)}
MORE_OF_SLURM = ("nodelist", "dependency", "mail_type", "mail_user", "reservation", "exclusive")
"""Parameters of `hpckit.Executor` that are of Slurm alone."""


def build_local_task_variables(environ: Mapping[str, str], info: RankInfo) -> dict[str, str]:
    """Return what `submitit.JobEnvironment()` reads where there is no Slurm."""
    if "SUBMITIT_EXECUTOR" in environ:
        return {}
    own = {
        "JOB_ID": f"{Path(environ['HPCKIT_LAUNCH_DIR']).name}.{environ['HPCKIT_RUN_INDEX']}",
        "NTASKS": info.world_size,
        "GLOBALID": info.rank,
        "LOCALID": info.local_rank,
        "JOB_NUM_NODES": info.num_nodes,
        "NODEID": info.node_rank,
    }
    return {"SUBMITIT_EXECUTOR": "local", **{f"SUBMITIT_LOCAL_{name}": str(one) for name, one in own.items()}}


def convert_memory_to_gb(value: object) -> float:
    """Return what `--mem` means; raises UsageError."""
    match = _MEMORY.match(str(value).upper().replace(" ", ""))
    if match is None:
        raise UsageError(f"slurm_mem is {value!r}; it must be a number with K, M, G or T, such as '8G'")
    return float(match[1]) * _GB[match[2]]
