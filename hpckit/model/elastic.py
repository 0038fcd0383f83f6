"""Running runs that grow and shrink: requests, answers, and satellites: jobs that bring nodes."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from hpckit.values import dataclass


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SatelliteSpec:
    """What a satellite job is for: this run of its launch, and how many replicas it brings."""

    run: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Satellite:
    """A satellite job that Slurm has, waiting or running; `state` is Slurm's in lower case.

    `nodes` is empty before the start.
    """

    job: str
    state: str
    replicas: int
    nodes: tuple[str, ...] = ()
