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

SUBMITIT: dict[str, Any] = {
    "submitit_folder": "${hydra.sweep.dir}/.submitit/%j",
    "timeout_min": 60,
    "cpus_per_task": None,
    "gpus_per_node": None,
    "tasks_per_node": 1,
    "mem_gb": None,
    "nodes": 1,
    "name": "${hydra.job.name}",
    "stderr_to_stdout": False,
    "partition": None,
    "qos": None,
    "comment": None,
    "constraint": None,
    "exclude": None,
    "gres": None,
    "cpus_per_gpu": None,
    "gpus_per_task": None,
    "mem_per_gpu": None,
    "mem_per_cpu": None,
    "account": None,
    "signal_delay_s": 120,
    "max_num_timeout": 0,
    "additional_parameters": {},
    "array_parallelism": 256,
    "setup": None,
    "srun_args": None,
    "python": None,
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

    hydra_context: HydraContext
    task_function: TaskFunction
    config: DictConfig

    def __init__(self, **parameters: Any) -> None:
        self.parameters = parameters

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what a job consists of, as Hydra asks of a launcher."""
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Start a run for each job; wait for them if the sweeper needs what they return."""
        from hpckit.hydra_app.launching import launch_jobs  # noqa: PLC0415  # half a second

        return launch_jobs(self, job_overrides, initial_job_idx)


_TARGET = {"_target_": "hydra_plugins.hpckit_launcher.launcher.HpckitLauncher"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "hpckit": {**_TARGET, **SUBMITIT, **OWN},
    "hpckit_local": {"defaults": ["hpckit", "_self_"], "cluster": "local"},
}
for _name, _node in _OPTIONS.items():
    ConfigStore.instance().store(group="hydra/launcher", name=_name, node=_node, provider="hpckit")
