"""MIG devices: parts of a GPU that look like GPUs.

Of a part the driver tells memory, and with GPM activity. Power, energy, temperature, clocks and
errors belong to the whole GPU, and are in its own row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpckit.model.telemetry.vocabulary import GpuDevice, GpuSample, GpuVendor
from hpckit.observe.nvml.bindings import NvmlCalls
from hpckit.observe.nvml.gauges import MEMORY_CALLS, read_first
from hpckit.observe.nvml.gpm import GpmReader

MOST_PARTS = "nvmlDeviceGetMaxMigDeviceCount"
"""Tells how many MIG devices a GPU can have: one for each of its slices."""


@dataclass(slots=True, kw_only=True)
class MigPart:
    """A MIG device."""

    calls: NvmlCalls
    facts: GpuDevice
    gpm: GpmReader | None

    def sample(self) -> GpuSample:
        """Return a sample; raises GpuLostError, DriverLostError."""
        gauges = dict(read_first(self.calls, MEMORY_CALLS))
        gauges |= {} if self.gpm is None else self.gpm.read()
        return GpuSample(uuid=self.facts.uuid, gauges=gauges)


def find_parts(whole: NvmlCalls, parent: GpuDevice, *, gpm: bool) -> tuple[MigPart, ...]:
    """Return the MIG devices of a GPU; none if MIG is off, or not known to it.

    Raises GpuLostError, DriverLostError.
    """
    mode = whole.call("nvmlDeviceGetMigMode")
    if not mode or not mode[0]:
        return ()
    handles = _handles(whole)
    return tuple(_part(whole, handle, parent, gpm=gpm) for handle in handles)


def _handles(whole: NvmlCalls) -> Iterator[Any]:
    count = whole.call(MOST_PARTS)
    for place in range(count or 0):
        try:
            yield whole.nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole.handle, place)
        except whole.nvml.NVMLError:
            # Places are not filled without gaps.
            continue


def _part(whole: NvmlCalls, handle: Any, parent: GpuDevice, *, gpm: bool) -> MigPart:
    nvml = whole.nvml
    calls = NvmlCalls(nvml=nvml, handle=handle)
    slices = calls.call("nvmlDeviceGetAttributes")
    memory = calls.call("nvmlDeviceGetMemoryInfo")
    facts = GpuDevice(
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        vendor=GpuVendor.nvidia,
        index=parent.index,
        name=str(calls.call("nvmlDeviceGetName") or ""),
        pci=parent.pci,
        driver=parent.driver,
        memory_bytes=None if memory is None else int(memory.total),
        parent=parent.uuid,
        slices=None if slices is None else int(slices.gpuInstanceSliceCount),
    )
    instance = calls.call("nvmlDeviceGetGpuInstanceId")
    reader = None
    if gpm and instance is not None:
        # The driver takes a sample of a part by its whole GPU and the number of the instance.
        own = NvmlCalls(nvml=nvml, handle=whole.handle)
        reader = GpmReader(calls=own, instance=instance)
    return MigPart(calls=calls, facts=facts, gpm=reader)
