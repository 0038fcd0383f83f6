"""A sweep by submitit alone: FOLDER RUNS; its runs begin when they can, or at BEGIN."""

import sys
from collections.abc import Sequence
from typing import Any

import submitit


def submit(folder: str, runs: int, begin: str = "now") -> Sequence[submitit.Job[Any]]:
    """Submit one array."""
    executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
    executor.update_parameters(
        timeout_min=60,
        slurm_array_parallelism=runs,
        slurm_partition="batch",
        slurm_additional_parameters={"begin": begin},
    )
    return executor.map_array(abs, range(runs))


if __name__ == "__main__":
    submit(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
