"""What a user may configure of telemetry: the section `observe`, as `model/launch.py` has others.

`scripts/config_reference.py` takes the docstrings below the fields.
"""

from __future__ import annotations

from enum import StrEnum

from hpckit.values import dataclass, field


class ProfileTool(StrEnum):
    """What records a profile."""

    torch = "torch"
    """torch's own profiler; hpckit sums its traces up"""
    nsys = "nsys"
    """Nsight Systems: the chosen ranks start below `nsys profile`, if the node has it"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Profiles that are planned; `hpckit profile` asks for one at any time."""

    at_step: int | None = None
    """Profile the steps from this one on, in each round that comes to it. Null: none is planned."""
    steps: int = 5
    """How many steps a planned profile has."""
    ranks: list[int] = field(default_factory=lambda: [0])
    """The ranks that are profiled, 64 at most. With `tool: nsys` these start below nsys."""
    tool: ProfileTool = ProfileTool.torch
    """What records the profile."""

    @property
    def planned(self) -> bool:
        """Whether ranks are profiled, or may be by nsys, without being asked to."""
        return self.at_step is not None or self.tool is ProfileTool.nsys


@dataclass(frozen=True, kw_only=True, slots=True)
class Observe:
    """What each node measures of itself: its GPUs, host and networks.

    One thread of the node's agent does so, never a rank. What it writes is in the
    [launch folder](run-folder.md#telemetry).
    """

    interval_s: float = 5.0
    """Seconds between two samples, at least 0.5. 0: nothing is measured."""
    row_s: float = 30.0
    """Seconds of a row, 3600 at most: minimum, mean, maximum and 95th percentile of its samples are
    written."""
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
    printed_metrics: list[str] = field(default_factory=list)
    """Metrics to take from what rank 0 prints: names in front of a number (`loss` finds
    `loss: 0.3`, `Loss=0.3`, `{'loss': 0.3}`, not `3.4s`, `3/10` or `12K`), or regular expressions
    with named groups (`val acc (?P<accuracy>\\S+)`). A name behind a word is another metric: for
    `val loss: 0.3` name `val loss`. Of several values in a line none is taken. A group `step`, or a
    number behind `step`, `iter` or `epoch` in the same line, is the step, as long as it grows. A
    warning says if a completed run's output was not read to its end in 60 s."""
    profile: Profile = field(default_factory=Profile)
    memory_snapshot: bool = False
    """Remember where GPU memory was allocated, and write that down when it runs out: a snapshot for
    pytorch.org/memory_viz. It costs some microseconds at each allocation. How much memory was
    used is written in any case."""
