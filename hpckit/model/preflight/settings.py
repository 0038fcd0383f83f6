"""What a user may configure of preflight: the section `preflight`.

`scripts/config_reference.py` takes the docstrings below the fields.
"""

from __future__ import annotations

from enum import StrEnum

from hpckit.values import dataclass


class PreflightLevel(StrEnum):
    """How thoroughly nodes are inspected before they train."""

    auto = "auto"
    """`fast` if the run asks for GPUs, else `off`"""
    off = "off"
    """no inspection"""
    fast = "fast"
    """what can be read; 15 seconds"""
    medium = "medium"
    """also what can be computed; 60 seconds"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """Agents inspect nodes before a run trains on them ([guide](../guides/preflight.md))."""

    level: PreflightLevel = PreflightLevel.auto
    """How thoroughly nodes are inspected."""
    limit_s: float | None = None
    """How long a node's answer is awaited; then its health is unknown, without consequence. Null:
    15, for `medium` 60."""
    avoid: bool = True
    """Leave out nodes on which your runs found faults lately (`hpckit nodes`)."""
    clock_s: float = 30.0
    """How far a node's clock may differ from the others'."""


LIMITS_S = {PreflightLevel.fast: 15.0, PreflightLevel.medium: 60.0}


def limit_s(settings: Preflight, level: PreflightLevel) -> float:
    """Return how long the answer of a node is awaited, in seconds."""
    return LIMITS_S[level] if settings.limit_s is None else settings.limit_s
