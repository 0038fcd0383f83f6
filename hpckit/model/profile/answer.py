"""Profiles of a running run: what was asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hpckit.model.telemetry.settings import ProfileTool

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

    `size` is the size of its trace in bytes. A profile that is shorter than asked has `problem` and
    steps.
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


def planned_id(round_: int) -> str:
    """Return the name of the profile that is planned for a round."""
    return f"planned-{round_:03d}"
