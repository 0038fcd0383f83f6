"""Whether the settings of telemetry are consistent. Pure."""

from __future__ import annotations

import math

from hpckit.errors import ConfigError
from hpckit.model.profile.answer import MOST_RANKS, MOST_STEPS
from hpckit.model.ranges import ranges
from hpckit.model.telemetry.settings import Observe, Profile, ProfileTool

LONGEST_ROW_S = 3600.0
"""Longer rows would say nothing of a day, and a total is written after some rows only."""

MOST_MB = 1e6
"""A terabyte: more than a year of any node."""

_ROW_HINT = "a row holds the samples of that time: observe.row_s=30"

SHORTEST_INTERVAL_S = 0.5
"""Each sample takes a lock of the driver that training needs, too."""


def check_observe(observe: Observe) -> None:
    """Raise ConfigError for values that cannot be followed."""
    _check_bounds(observe)
    if observe.interval_s and observe.interval_s < SHORTEST_INTERVAL_S:
        raise ConfigError(
            f"observe.interval_s is {observe.interval_s:g}; it has to be at least "
            f"{SHORTEST_INTERVAL_S:g}, or 0",
            hint="observe=deep measures every second, observe=off not at all",
        )
    if observe.row_s < observe.interval_s:
        raise ConfigError(
            f"observe.row_s is {observe.row_s:g}; it has to be at least observe.interval_s, which "
            f"is {observe.interval_s:g}",
            hint=_ROW_HINT,
        )
    _check_profile(observe.profile)


def _check_bounds(observe: Observe) -> None:
    """Raise ConfigError for a number that is none, or for one beyond all that is of use."""
    for name, value, most, hint in (
        ("interval_s", observe.interval_s, LONGEST_ROW_S, "observe=off measures nothing"),
        ("row_s", observe.row_s, LONGEST_ROW_S, _ROW_HINT),
        ("max_mb", observe.max_mb, MOST_MB, "observe=off writes no telemetry"),
    ):
        if not math.isfinite(value) or value > most:
            raise ConfigError(
                f"observe.{name} is {value:g}; it has to be a number up to {most:g}", hint=hint
            )
    if observe.max_mb <= 0:
        raise ConfigError(
            f"observe.max_mb is {observe.max_mb:g}; it has to be more than 0",
            hint="observe=off writes no telemetry",
        )


def check_profile_ranks(profile: Profile, world_size: int) -> None:
    """Raise ConfigError for a planned profile of ranks that the run does not have."""
    planned = profile.at_step is not None or profile.tool is ProfileTool.nsys
    unknown = [rank for rank in profile.ranks if rank >= world_size]
    if planned and unknown:
        raise ConfigError(
            f"observe.profile.ranks names rank {ranges(unknown)}; the run has {world_size}, "
            "numbered from 0",
            hint=f"observe.profile.ranks=[0], or any below {world_size}",
        )


def _check_profile(profile: Profile) -> None:
    """Raise ConfigError for a profile that cannot be made."""
    if profile.at_step is not None and profile.at_step < 0:
        raise ConfigError(
            f"observe.profile.at_step is {profile.at_step}; steps count from 0",
            hint="observe.profile.at_step=100, or null for no profile",
        )
    if not 0 < profile.steps <= MOST_STEPS:
        raise ConfigError(
            f"observe.profile.steps is {profile.steps}; a profile has 1 to {MOST_STEPS} steps",
            hint="5 steps show what each step does; traces grow by megabytes a step",
        )
    ranks = set(profile.ranks)
    if not 0 < len(ranks) <= MOST_RANKS or min(ranks) < 0:
        raise ConfigError(
            f"observe.profile.ranks is {profile.ranks}; it names 1 to {MOST_RANKS} ranks, from 0",
            hint="observe.profile.ranks=[0,3]",
        )
