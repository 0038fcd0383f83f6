"""What is kept of measurements, so that later ones can be compared with them."""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredShape:
    """What measurements must have in common to be compared."""

    cluster: str
    nodes: int
    ranks: int
    device: str
    backend: str
    gpu: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMeasurement:
    """A measurement as it is kept: its time, shape, and bytes per second of each operation."""

    at: str
    shape: MeasuredShape
    bus_bytes_per_s: dict[str, float]
    v: int = VERSION
