"""Satellites: jobs that bring nodes to a running run."""

from __future__ import annotations

from dataclasses import dataclass


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
