"""What a user may configure of telemetry: the section `observe`, as `model/launch.py` has others.

`scripts/config_reference.py` takes the docstrings below the fields.
"""

from __future__ import annotations

from enum import StrEnum

from hpckit.values import dataclass, field


class ProfileTool(StrEnum):
    """What records a profile."""

    torch = "torch"
    """torch's own profiler; hpckit sums up its traces"""
    nsys = "nsys"
    """Nsight Systems: the ranks start below `nsys profile`, if the node has it"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Profiles that are planned; `hpckit profile` asks for one at any time."""

    at_step: int | None = None
    """First step to profile, in each round that comes to it. Null: no profile is planned."""
    steps: int = 5
    """Steps of a planned profile."""
    ranks: list[int] = field(default_factory=lambda: [0])
    """Ranks to profile, 64 at most. With `tool: nsys` they start below nsys."""
    tool: ProfileTool = ProfileTool.torch
    """What records the profile."""

    @property
    def planned(self) -> bool:
        """Whether ranks are profiled, or may be by nsys, without being asked to."""
        return self.at_step is not None or self.tool is ProfileTool.nsys


@dataclass(frozen=True, kw_only=True, slots=True)
class Observe:
    """What each node measures of itself: its GPUs, host and networks.

    A thread of the node's agent measures, never a rank. The [launch
    folder](run-folder.md#telemetry) has the results.
    """

    interval_s: float = 5.0
    """Time between two samples, at least 0.5. 0: nothing is measured."""
    row_s: float = 30.0
    """Time of a row, 3600 at most: minimum, mean, maximum and 95th percentile of its samples."""
    measure_gpus: bool = True
    """Measure GPUs."""
    gpm: bool = True
    """Measure multiprocessors, tensor cores and memory of GPUs that have counters for them (Hopper
    and later)."""
    measure_host: bool = True
    """Measure processors, memory, pressure, disks and networks."""
    measure_steps: bool = True
    """Measure what each rank's steps wait for, and compare ranks."""
    max_mb: float = 60.0
    """All telemetry of a node in a run. Older rows are merged into coarser ones, sooner if there is
    less room."""
    printed_metrics: list[str] = field(default_factory=list)
    """Metrics to take from what rank 0 prints ([rules](../guides/command.md#metrics)): names in
    front of a number, or regular expressions with named groups. The step is a group `step`, or a
    number behind `step`, `iter` or `epoch` in the same line, as long as it grows. A warning says if
    a completed run's output wasn't read to its end in 60 s."""
    profile: Profile = field(default_factory=Profile)
    memory_snapshot: bool = False
    """When GPU memory runs out, write where it was allocated: a snapshot for
    pytorch.org/memory_viz. Costs some microseconds per allocation. How much memory was used is
    always written."""
