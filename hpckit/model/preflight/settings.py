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
    """nodes are not inspected"""
    fast = "fast"
    """what can be read: GPUs, links, versions, limits, folders, clocks, names; 15 seconds"""
    medium = "medium"
    """also what can be computed: the speed of each device, whether all compute the same, and how
    fast nodes add with their neighbours; 60 seconds"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """Inspection of nodes by their agents, before a run trains on them.

    That is before the first round, after a node has returned, and after a failure that a node may
    have caused. A spare takes the place of a node that cannot train; without one the run asks for
    another allocation without that node.
    """

    level: PreflightLevel = PreflightLevel.auto
    """How thoroughly nodes are inspected."""
    limit_s: float | None = None
    """Seconds after which a node's answer is no longer awaited: then its health is unknown, which
    has no consequence. Null: 15, for `medium` 60."""
    avoid: bool = True
    """Leave out nodes on which runs of yours found faults lately (`hpckit nodes`)."""
    clock_s: float = 30.0
    """Seconds by which a node's clock may differ from those of the others."""


LIMITS_S = {PreflightLevel.fast: 15.0, PreflightLevel.medium: 60.0}


def limit_s(settings: Preflight, level: PreflightLevel) -> float:
    """Return how long the answer of a node is awaited, in seconds."""
    return LIMITS_S[level] if settings.limit_s is None else settings.limit_s
