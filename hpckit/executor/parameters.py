"""submitit's parameters as keys of hpckit's configuration; it checks names and types, not values."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from hpckit.api import submitit_keys
from hpckit.api.submitit_keys import PARAMETERS
from hpckit.errors import UsageError

_KEYS: Mapping[str, str] = {
    **submitit_keys.SUBMITIT_KEYS,
    **{name: f"resources.{name}" for name in submitit_keys.MORE_OF_SLURM},
    **{name: f"+resources.additional_parameters.{name}" for name in (*submitit_keys.SBATCH_OPTIONS, "wckey")},
    "job_name": "name",
    "time": "resources.timeout_min",
    "mem": "resources.mem_gb",
    "ntasks_per_node": "resources.tasks_per_node",
    "num_gpus": "resources.gpus_per_node",
}
_OF_SLURM = (*_KEYS, "additional_parameters", "teardown", "use_srun", "stderr_to_stdout")
"""The last three have no effect: hpckit's batch script starts the ranks, with one log for each."""
_KNOWN = (*PARAMETERS, *(f"slurm_{own}" for own in _OF_SLURM))


def check_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return these parameters without those of other executors and without None; raises UsageError."""
    kept = {name: value for name, value in given.items() if not name.startswith(("local_", "debug_"))}
    for name, value in kept.items():
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, n=3)
            raise UsageError(
                f"there is no parameter {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""),
                hint=f"there are {', '.join(PARAMETERS)}, and Slurm's with slurm_ before their names; any "
                "other key of the configuration is an override: overrides=['recovery=patient']",
            )
        kinds = {**PARAMETERS, **submitit_keys.SLURM_TYPES}.get(name.removeprefix("slurm_"), (object,))
        if value is not None and (not isinstance(value, kinds) or (type(value) is bool and int in kinds)):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(f"{name} is {value!r}; it must be of type {wanted}")
    kept = {name: value for name, value in kept.items() if value is not None}
    build_launch_settings(kept)
    return kept


def build_launch_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that these parameters stand for; Slurm's own win over those that all clusters share."""
    found: dict[str, Any] = {}
    for name, value in sorted(parameters.items(), key=lambda item: item[0].startswith("slurm_")):
        own = name.removeprefix("slurm_")
        if own == "additional_parameters":
            for key, one in value.items():
                found[f"+resources.additional_parameters.{key.replace('-', '_')}"] = one
        elif own in {"timeout_min", "time"}:
            if not value > 0:
                raise UsageError(f"{own} is {value!r}; it must be a number of minutes above 0")
            found[_KEYS[own]] = max(1, math.ceil(value))
        elif own in _KEYS:
            found[_KEYS[own]] = submitit_keys.convert_memory_to_gb(value) if own == "mem" else value
    if found.get("resources.timeout_min") == 1:  # at the usual minute before it, the run had just begun
        found.setdefault("runtime.save_before_timeout_s", 15)
    return found
