"""Where the time of a profiled window went, on one rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TopEntry:
    """A kernel, or an operator: how often it ran, and for how long in all, in seconds."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """The seconds of one rank's window of `steps` steps.

    `on_gpu` is whether these are times of GPU kernels; else they are operators of all CPU threads.
    `compute_s`, `communication_s` and `copy_s` count time in which at least one of the kind ran;
    `overlap_s` is communication while something was computed. In `idle_s` nothing ran that the
    profiler knows. `top` counts each entry's own time: without the operators that it called.
    """

    on_gpu: bool
    steps: int
    wall_s: float
    compute_s: float
    communication_s: float
    overlap_s: float
    copy_s: float
    idle_s: float
    events: int
    top: tuple[TopEntry, ...] = ()

    @property
    def exposed_s(self) -> float:
        """Communication that nothing computed hid."""
        return self.communication_s - self.overlap_s
