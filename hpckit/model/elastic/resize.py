"""Requests that a running run has more or fewer replicas, and the supervisor's answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Resize(StrEnum):
    """What a run is asked to do."""

    grow = "grow"
    """have this many replicas more"""
    shrink = "shrink"
    """have at most this many replicas"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest:
    """A user's request: grow by `replicas`, or shrink to `replicas`."""

    id: str
    at: datetime
    host: str
    resize: Resize
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeAnswer:
    """The supervisor's answer to the request `id`.

    `refused` says why nothing changes; null if the run follows. `replicas` is how many it has now.
    `standing` is how many of those asked for stand ready: nodes that an earlier shrink left idle.
    `idle_nodes` is how many nodes more stand ready, too few for a replica.
    """

    id: str
    at: datetime
    replicas: int
    standing: int = 0
    idle_nodes: int = 0
    refused: str | None = None
