"""submitit's parameters as keys of hpckit's configuration; it checks names and types, not values."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from hpckit.api.submitit_keys import SBATCH_OPTIONS, SUBMITIT_KEYS
from hpckit.errors import UsageError
from hpckit.patterns import lazy_pattern

_MEMORY = lazy_pattern(r"(\d+(?:\.\d+)?)([KMGT]?)B?\Z")
_GB = {"K": 2**-20, "M": 2**-10, "": 2**-10, "G": 1, "T": 2**10}
"""Slurm's numbers without a unit are megabytes."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node"), (int,)),
    **dict.fromkeys(("timeout_min", "mem_gb"), (int, float)),
    "name": (str,),
    "stderr_to_stdout": (bool,),
    "overrides": (list, tuple),
}
_MORE = ("nodelist", "dependency", "mail_type", "mail_user", "reservation", "exclusive")
_KEYS: Mapping[str, str] = {
    **SUBMITIT_KEYS,
    **{name: f"resources.{name}" for name in _MORE},
    **{name: f"+resources.additional_parameters.{name}" for name in (*SBATCH_OPTIONS, "wckey")},
    "job_name": "name",
    "time": "resources.timeout_min",
    "mem": "resources.mem_gb",
    "ntasks_per_node": "resources.tasks_per_node",
    "num_gpus": "resources.gpus_per_node",
}
_OF_SLURM = (*_KEYS, "additional_parameters", "teardown", "use_srun", "stderr_to_stdout")
"""The last three have no effect: hpckit's batch script starts the ranks, with one log for each."""


def check_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return these parameters without those of other executors and without None; raises UsageError."""
    kept = {name: value for name, value in given.items() if not name.startswith(("local_", "debug_"))}
    for name, value in kept.items():
        if name not in _TYPES and name not in {f"slurm_{own}" for own in _OF_SLURM}:
            near = difflib.get_close_matches(name, [*_TYPES, *(f"slurm_{own}" for own in _OF_SLURM)], n=3)
            raise UsageError(
                f"there is no parameter {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""),
                hint=f"there are {', '.join(_TYPES)}, and Slurm's with slurm_ before their names; any other "
                "key of the configuration is an override: overrides=['recovery=patient']",
            )
        kinds = _TYPES.get(name, (object,))
        if value is not None and (not isinstance(value, kinds) or (type(value) is bool and int in kinds)):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(f"{name} is {value!r}; it must be of type {wanted}")
    return {name: value for name, value in kept.items() if value is not None}


def build_launch_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that these parameters stand for; Slurm's own win over those that all clusters share."""
    found: dict[str, Any] = {}
    for name, value in sorted(parameters.items(), key=lambda item: item[0].startswith("slurm_")):
        own = name.removeprefix("slurm_")
        if own == "additional_parameters":
            more = {key.replace("-", "_"): one for key, one in value.items()}
            found |= {f"+resources.additional_parameters.{key}": one for key, one in more.items()}
        elif own in _KEYS:
            found[_KEYS[own]] = _convert_value(own, value)
    if found.get("resources.timeout_min") == 1:  # at the usual minute before it, the run had just begun
        found.setdefault("runtime.save_before_timeout_s", 15)
    return found


def _convert_value(own: str, value: Any) -> Any:
    if own in {"timeout_min", "time"}:
        return max(1, math.ceil(value))
    if own != "mem":
        return value
    match = _MEMORY.match(str(value).upper().replace(" ", ""))
    if match is None:
        raise UsageError(f"slurm_mem is {value!r}; it must be a number with K, M, G or T, such as '8G'")
    return float(match[1]) * _GB[match[2]]
