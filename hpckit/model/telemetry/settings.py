"""What a user may configure of telemetry: the section `observe`, as `model/launch.py` has others.

`scripts/config_reference.py` takes the docstrings below the fields.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Observe:
    """What each node measures of itself: its GPUs, host and networks.

    One thread of the node's agent does so, never a rank. What it writes is in the
    [launch folder](run-folder.md#telemetry).
    """

    interval_s: float = 5.0
    """Seconds between two samples, at least 0.5. 0: nothing is measured."""
    row_s: float = 30.0
    """Seconds of a row: minimum, mean, maximum and 95th percentile of its samples are written."""
    measure_gpus: bool = True
    """Measure GPUs."""
    gpm: bool = True
    """Measure what multiprocessors, tensor cores and memory of a GPU do, if it has counters for
    that (Hopper and later)."""
    measure_host: bool = True
    """Measure processors, memory, pressure, disks and networks."""
    measure_steps: bool = True
    """Measure what each rank's steps wait for, and compare ranks with each other."""
    max_mb: float = 60.0
    """Megabytes of all telemetry of a node in a run. Older rows are merged into coarser ones, the
    sooner the less there is."""
