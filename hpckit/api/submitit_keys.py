"""What submitit calls things, for the doors of those who come from it: the keys of hpckit's configuration."""

from __future__ import annotations

from collections.abc import Mapping

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
