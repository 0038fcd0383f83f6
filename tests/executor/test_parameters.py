"""submitit's parameters by their own names: each becomes a key, and a slip is named."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from submitit import AutoExecutor
from submitit.slurm.slurm import _make_sbatch_string

from hpckit.errors import UsageError
from hpckit.executor.parameters import build_launch_settings, check_parameters
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import to_plain

OF_SUBMITIT_ITSELF = {"command", "folder", "map_count"}


def test_every_parameter_of_the_installed_submitit_is_known() -> None:
    """Those that all its executors share, and those of its SlurmExecutor behind `slurm_`."""
    shared = set(AutoExecutor._typed_parameters())  # noqa: SLF001  # there is no public list
    of_slurm = set(inspect.signature(_make_sbatch_string).parameters) - OF_SUBMITIT_ITSELF
    check_parameters(dict.fromkeys([*shared, *(f"slurm_{name}" for name in of_slurm)]))


def test_parameters_are_keys_that_exist() -> None:
    """Slurm's own value wins, memory has units, time is rounded up, options of sbatch are passed on."""
    given: dict[str, Any] = {
        "name": "mine",
        "timeout_min": 0.5,
        "mem_gb": 4,
        "nodes": 2,
        "cpus_per_task": 3,
        "gpus_per_node": 1,
        "tasks_per_node": 2,
        "slurm_ntasks_per_node": 4,
        "slurm_mem": "512MB",
        "slurm_partition": "gpu",
        "slurm_array_parallelism": 8,
        "slurm_setup": ["module load x"],
        "slurm_max_num_timeout": 5,
        "slurm_signal_delay_s": 120,
        "slurm_gpus_per_task": 1,
        "slurm_additional_parameters": {"mail-type": "END"},
        "local_setup": ["x"],
        "slurm_use_srun": False,
    }
    settings = build_launch_settings(check_parameters(given))
    assert settings["resources.tasks_per_node"] == 4
    assert settings["resources.mem_gb"] == 0.5
    assert settings["resources.timeout_min"] == 1
    assert settings["+resources.additional_parameters.gpus_per_task"] == 1
    assert settings["+resources.additional_parameters.mail_type"] == "END"
    known = to_plain(LaunchConfig())
    for key in (key for key in settings if not key.startswith(("+", "recovery.restarts."))):
        section = known
        for part in key.split("."):
            assert part in section, key
            section = section[part]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"timeout": 3}, r"no parameter 'timeout'; did you mean timeout_min"),
        ({"partition": "gpu"}, r"did you mean slurm_partition"),
        ({"slurm_foo": 1}, r"no parameter 'slurm_foo'"),
        ({"nodes": "2"}, r"nodes is '2'; it must be of type int"),
        ({"nodes": True}, r"nodes is True; it must be of type int"),
        ({"mem_gb": "2GB"}, r"mem_gb is '2GB'; it must be of type int or float"),
        ({"overrides": "a=1"}, r"overrides is 'a=1'; it must be of type list or tuple"),
        ({"slurm_mem": "much"}, r"slurm_mem is 'much'; it must be a number"),
        ({"slurm_time": "1:00"}, r"slurm_time is '1:00'; it must be of type int or float"),
        ({"slurm_additional_parameters": "x"}, r"must be of type dict"),
        ({"timeout_min": -5}, r"timeout_min is -5; it must be a number of minutes above 0"),
    ],
)
def test_slips_are_named(given: dict[str, Any], words: str) -> None:
    """An unknown name, with what was probably meant, and a value of the wrong type."""
    with pytest.raises(UsageError, match=words):
        check_parameters(given)
