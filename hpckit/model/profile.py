"""Profiles of a running run: what was asked for, what came of it, where a rank's time went."""

from __future__ import annotations

from datetime import datetime

from hpckit.model.settings import ProfileTool
from hpckit.values import dataclass

MOST_STEPS = 1000
"""Of one profile. A trace of a large model grows by tens of megabytes a step."""

MOST_RANKS = 64
"""Of one profile: ranks do the same, and every trace costs room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """A user's request: profile this many steps of these ranks; no ranks stand for all."""

    id: str
    at: datetime
    host: str
    steps: int
    ranks: tuple[int, ...]
    tool: ProfileTool = ProfileTool.torch


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """What came of a profile on one rank: its first step and how many, or why there is none.

    `size` is the size of its trace in bytes. A profile that is shorter than asked has `problem` and steps.
    """

    rank: int
    node: str = ""
    first_step: int | None = None
    steps: int = 0
    size: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileAnswer:
    """The supervisor's answer to the request `id`, replaced as ranks report.

    `refused` says why nothing was profiled. `done` is whether nothing more will come. `round` is
    null if it was refused.
    """

    id: str
    at: datetime
    round: int | None
    steps: int
    ranks: tuple[int, ...]
    tool: ProfileTool = ProfileTool.torch
    refused: str | None = None
    done: bool = False
    results: tuple[RankProfile, ...] = ()


def planned_profile_id(round_: int) -> str:
    """Return the name of the profile that is planned for a round."""
    return f"planned-{round_:03d}"


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
