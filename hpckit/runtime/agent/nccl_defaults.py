"""What NCCL and torch's flight recorder are asked to keep, so that a hang or a slow network shows.

The user's own variables win. Names differ between releases of torch, so they follow the one that is
installed; it is not imported for that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from hpckit.model.cluster.gpus_asked import gpus_asked
from hpckit.model.launch import DeviceKind, LaunchConfig
from hpckit.record.layout import NCCL_TRACE, RoundPaths

_NEW_NAMES = (2, 9)
"""From this torch on the flight recorder's variables begin with TORCH_FR."""

_COLLECTIVES = 2000
"""How many of its latest collectives each rank remembers: some steps of a large model."""


_SKIP_CLEAN_UP = "3"
"""The watchdog ends the process at a time-out without aborting NCCL first, which can hang and then
leaves no dump. It is torch's default since 2.1; some images set 1."""


def nccl_defaults(settings: LaunchConfig, paths: RoundPaths, rank: int) -> dict[str, str]:
    """Return the variables of a rank; on CPUs only how much gloo keeps, none if it is alone.

    At a time-out of NCCL each rank writes what it was waiting for. Rank 0 alone writes which
    network NCCL chose, because every rank would write thousands of lines.
    """
    cpu_only = settings.runtime.device is DeviceKind.cpu
    new = _torch_version() >= _NEW_NAMES
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
    old_names = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    size, prefix = names if new else old_names
    if cpu_only or not gpus_asked(settings.resources):
        alone = settings.resources.nodes * settings.resources.tasks_per_node == 1
        return {} if alone or not new else {size: str(_COLLECTIVES)}
    kept = {
        size: str(_COLLECTIVES),
        prefix: str(paths.of(rank) / NCCL_TRACE),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": _SKIP_CLEAN_UP,
    }
    if rank != 0:
        return kept
    told = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
    return {**kept, **told, "NCCL_DEBUG_FILE": str(paths.nccl_log)}


def with_nccl_defaults(
    variables: Mapping[str, str], settings: LaunchConfig, paths: RoundPaths, rank: int
) -> dict[str, str]:
    """Return a rank's variables with those of NCCL that nobody has set.

    Who sets NCCL_DEBUG wants its lines where they were: then none of the three is set.
    """
    defaults = nccl_defaults(settings, paths, rank)
    if any(name in variables for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")):
        defaults = {name: value for name, value in defaults.items() if name[:4] != "NCCL"}
    return {**defaults, **variables}


@cache
def _torch_version() -> tuple[int, ...]:
    try:
        found = re.match(r"(\d+)\.(\d+)", version("torch"))
    except PackageNotFoundError:
        found = None
    return (0, 0) if found is None else (int(found[1]), int(found[2]))
