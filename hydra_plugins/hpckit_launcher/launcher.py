"""What Hydra finds of hpckit: a class and two options of `hydra/launcher`, without values of its own types.

Every Hydra application of the environment imports this module at its start, hpckit's own composition
too, so it must cost next to nothing and raise nothing. No dataclass: Hydra 1.3 runs the module before
`sys.modules` has it.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

_UNSET = (
    *("cpus_per_task", "gpus_per_node", "mem_gb", "partition", "qos", "comment", "constraint", "exclude"),
    *("gres", "cpus_per_gpu", "gpus_per_task", "mem_per_gpu", "mem_per_cpu", "account", "setup"),
    *("srun_args", "python"),
)
SUBMITIT: dict[str, Any] = {
    **dict.fromkeys(_UNSET),
    "submitit_folder": "${hydra.sweep.dir}/.submitit/%j",
    "timeout_min": 60,
    "tasks_per_node": 1,
    "nodes": 1,
    "name": "${hydra.job.name}",
    "stderr_to_stdout": False,
    "signal_delay_s": 120,
    "max_num_timeout": 0,
    "additional_parameters": {},
    "array_parallelism": 256,
    "use_srun": True,
}
"""Names, defaults and meanings of hydra-submitit-launcher's `submitit_slurm`, up to its 1.4."""

OWN: dict[str, Any] = {
    "cluster": "auto",
    "recovery": "default",
    "checkpoint": "run_folder",
    "spare_nodes": 0,
    "min_nodes": None,
    "runs_per_job": 1,
    "wait": None,
    "auto_resume": False,
    "check": True,
}


class HpckitLauncher(Launcher):
    """Hands the jobs of a sweep to hpckit."""

    def __init__(self, **parameters: Any) -> None:
        self.parameters = parameters

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what a job consists of, as Hydra asks of a launcher."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Start a run for each job; wait for them if the sweeper needs what they return."""
        from hpckit.hydra_app.launching import launch_jobs  # noqa: PLC0415  # half a second

        return launch_jobs(self, dict(enumerate(job_overrides, initial_job_idx)))


_NODE = {"_target_": "hydra_plugins.hpckit_launcher.launcher.HpckitLauncher", **SUBMITIT, **OWN}
_LOCAL = {"defaults": ["hpckit", "_self_"], "cluster": "local"}
for _name, _node in {"hpckit": _NODE, "hpckit_local": _LOCAL}.items():
    ConfigStore.instance().store(group="hydra/launcher", name=_name, node=_node, provider="hpckit")
