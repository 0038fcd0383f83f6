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


def with_nccl_defaults(
    variables: Mapping[str, str], settings: LaunchConfig, paths: RoundPaths, rank: int
) -> dict[str, str]:
    """Return a rank's variables with those that nobody has set; on CPUs only how much gloo keeps.

    At a time-out of NCCL each rank writes what it was waiting for. Rank 0 alone writes which
    network NCCL chose, because every rank would write thousands of lines. Who sets NCCL_DEBUG wants
    its lines where they were: then none of the three is set.
    """
    new = _torch_version() >= _NEW_NAMES
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
    old_names = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    size, prefix = names if new else old_names
    if settings.runtime.device is DeviceKind.cpu or not gpus_asked(settings.resources):
        alone = settings.resources.nodes * settings.resources.tasks_per_node == 1
        return {**({} if alone or not new else {size: str(_COLLECTIVES)}), **variables}
    defaults = {
        size: str(_COLLECTIVES),
        prefix: str(paths.of(rank) / NCCL_TRACE),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": _SKIP_CLEAN_UP,
    }
    told = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
    told["NCCL_DEBUG_FILE"] = str(paths.nccl_log)
    if rank == 0 and not told.keys() & variables.keys():
        defaults |= told
    return {**defaults, **variables}


@cache
def _torch_version() -> tuple[int, ...]:
    try:
        found = re.match(r"(\d+)\.(\d+)", version("torch"))
    except PackageNotFoundError:
        found = None
    return (0, 0) if found is None else (int(found[1]), int(found[2]))
