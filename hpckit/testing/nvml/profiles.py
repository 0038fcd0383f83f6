"""What the GPUs of the fake are like: figures of data sheets, rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_GIB = 1024**3
_FIELDS = (3, 4, 5, 6, 74, 75, 77, 79, 94, 138, 139, 142, 143, 144, 145)
"""Fields that Ampere and later have; 83, energy, follows the load."""
_OF_AMPERE = (38, 45, 52, 59)
_OF_HOPPER = (82, 161, 162, 163, 173, 180, 197, 198, 230, 269, 270, 271)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeGpuProfile:
    """A kind of GPU. `fields` are the numbers of NVML's fields that it supports.

    `capability` is its compute capability without the dot.
    """

    name: str
    memory_bytes: int
    limit_w: int
    idle_w: int
    sm_mhz: int
    memory_mhz: int
    gpm: bool
    capability: int
    fields: tuple[int, ...]
    nvlinks: int = 18
    pcie_generation: int = 5
    pcie_width: int = 16


PROFILES: Mapping[str, FakeGpuProfile] = {
    "a100": FakeGpuProfile(
        name="NVIDIA A100-SXM4-80GB",
        memory_bytes=80 * _GIB,
        limit_w=400,
        idle_w=60,
        sm_mhz=1410,
        memory_mhz=1593,
        gpm=False,
        capability=80,
        fields=(*_FIELDS, *_OF_AMPERE, 82),
        nvlinks=12,
        pcie_generation=4,
    ),
    "h100": FakeGpuProfile(
        name="NVIDIA H100 80GB HBM3",
        memory_bytes=80 * _GIB,
        limit_w=700,
        idle_w=70,
        sm_mhz=1980,
        memory_mhz=2619,
        gpm=True,
        capability=90,
        fields=(*_FIELDS, *_OF_HOPPER),
    ),
    "h200": FakeGpuProfile(
        name="NVIDIA H200",
        memory_bytes=141 * _GIB,
        limit_w=700,
        idle_w=75,
        sm_mhz=1980,
        memory_mhz=3201,
        gpm=True,
        capability=90,
        fields=(*_FIELDS, *_OF_HOPPER),
    ),
}

ACTIVITY: Mapping[int, float] = {2: 0.9, 3: 0.4, 5: 0.6, 10: 0.5}
"""At full load, the share of each GPM metric: multiprocessors, warps, tensor cores, memory."""
