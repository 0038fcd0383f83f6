"""What happened on nodes, over all launches of a user, and when no node is to blame for it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from hpckit.values import dataclass


class IncidentKind(StrEnum):
    """What happened on a node."""

    unhealthy = "unhealthy"
    """preflight found that it cannot train"""
    lost = "lost"
    """its agent fell silent, or never came, while most others stayed"""
    straggler = "straggler"
    """a rank on it was so slow that a spare took its place"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIncident:
    """One thing that happened on a node; `run` is the id of the run that it happened to."""

    node: str
    at: datetime
    kind: IncidentKind
    run: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """What is known of a node: its incidents, the latest last, and their weight now.

    `avoided_until` is when later launches use it again; null if they do now.
    """

    node: str
    incidents: tuple[NodeIncident, ...]
    weight: float
    avoided_until: datetime | None = None


_MANY = 8


def suggests_shared_cause(failing: int, nodes: int) -> bool:
    """Return whether most of eight or more nodes fail: then it is something that they share.

    A network, a file system, a configuration: other nodes would fail alike.
    """
    return nodes >= _MANY and 2 * failing > nodes
