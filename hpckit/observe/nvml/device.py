"""One GPU of NVML: what it is, what it can tell, and a sample of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from hpckit.model.telemetry.vocabulary import (
    GpuCounter,
    GpuDevice,
    GpuGauge,
    GpuSample,
    GpuTrouble,
    GpuVendor,
)
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.observe.nvml.bindings import NvmlCalls
from hpckit.observe.nvml.fields import (
    MEMORY_TEMPERATURE,
    RECOVERY_ACTION,
    REMAP_FAILED,
    REMAP_PENDING,
    FieldReader,
)
from hpckit.observe.nvml.gauges import read_gauges, read_reasons
from hpckit.observe.nvml.gpm import GpmReader
from hpckit.observe.nvml.mig import MOST_PARTS, MigPart, find_parts

_ADVICE: Mapping[int, GpuTrouble] = {
    1: GpuTrouble.advised_reset,
    2: GpuTrouble.advised_reboot,
    3: GpuTrouble.advised_drain,
    4: GpuTrouble.advised_drain_and_reset,
    6: GpuTrouble.advised_reset,
    7: GpuTrouble.advised_reboot,
}
"""Of the field GPU_RECOVERY_ACTION; 0 is none."""
_FLAGS = ((REMAP_PENDING, GpuTrouble.remap_pending), (REMAP_FAILED, GpuTrouble.remap_failed))


@dataclass(slots=True, kw_only=True)
class NvmlGpu:
    """A GPU that answers; `facts` are of the GPU itself, `parts` are its MIG devices."""

    calls: NvmlCalls
    facts: GpuDevice
    fields: FieldReader
    gpm: GpmReader | None
    parts: tuple[MigPart, ...]

    def sample(self, *, counters: bool, xids: int) -> tuple[GpuSample, ...]:
        """Return a sample of the GPU and of its MIG devices.

        `xids` is how many were seen of it. Raises GpuLostError, DriverLostError.
        """
        self.calls.begin()
        gauges = read_gauges(self.calls)
        reasons = read_reasons(self.calls)
        states = self.fields.read_states()
        if MEMORY_TEMPERATURE in states:
            gauges[GpuGauge.memory_temperature_c] = states[MEMORY_TEMPERATURE]
        gauges |= {} if self.gpm is None else self.gpm.read()
        counted: dict[GpuCounter, float] = self.fields.read_counters() if counters else {}
        own = GpuSample(
            uuid=self.facts.uuid,
            gauges=gauges,
            counters={**counted, GpuCounter.xids: xids} if counters else {},
            reasons=reasons,
            troubles=_troubles(states),
        )
        self.calls.conclude()
        return own, *(part.sample() for part in self.parts)

    def keep_chosen(self, choice: GpuChoice, count: int) -> bool:
        """Return whether this GPU, of `count`, is the job's; keep its MIG devices alone, if named.

        A GPU without one of those is not the job's.
        """
        if not choice.includes(self.facts.index, self.facts.uuid, count):
            return False
        if not choice.parts:
            return True
        mine = [choice.includes_part(part.facts.uuid) for part in self.parts]
        _close(part.gpm for part, own in zip(self.parts, mine, strict=True) if not own)
        self.parts = tuple(compress(self.parts, mine))
        return any(mine)

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the GPU and its MIG devices."""
        return self.facts, *(part.facts for part in self.parts)

    def close(self) -> None:
        """Free what the driver holds for it."""
        _close((self.gpm, *(part.gpm for part in self.parts)))


def _close(readers: Iterable[GpmReader | None]) -> None:
    for reader in readers:
        if reader is not None:
            reader.close()


def _troubles(states: Mapping[tuple[int, int], float]) -> frozenset[GpuTrouble]:
    found = {trouble for field, trouble in _FLAGS if states.get(field)}
    action = int(states.get(RECOVERY_ACTION, 0))
    if action:
        found.add(_ADVICE.get(action, GpuTrouble.advised_other))
    return frozenset(found)


def attach_gpu(nvml: Any, index: int, *, gpm: bool) -> NvmlGpu:
    """Find out what the GPU with this index of NVML is, and what it supports.

    Raises the bindings' NVMLError, GpuLostError or DriverLostError if it does not answer.
    """
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    calls = NvmlCalls(nvml=nvml, handle=handle)
    uuid = str(nvml.nvmlDeviceGetUUID(handle))
    fields = FieldReader(calls=calls)
    gauges = read_gauges(calls)
    facts = _facts(calls, uuid, index, (*gauges, *fields.counters))
    parts = find_parts(calls, facts, gpm=gpm)
    if parts:
        facts = replace(facts, slices=calls.call(MOST_PARTS))
    # With MIG, activity is that of the parts.
    reader = GpmReader(calls=calls) if gpm and not parts else None
    return NvmlGpu(calls=calls, facts=facts, fields=fields, gpm=reader, parts=parts)


def _facts(calls: NvmlCalls, uuid: str, index: int, supported: tuple[str, ...]) -> GpuDevice:
    nvml = calls.nvml
    memory = calls.call("nvmlDeviceGetMemoryInfo", nvml.nvmlMemory_v2)
    pci = calls.call("nvmlDeviceGetPciInfo")
    return GpuDevice(
        uuid=uuid,
        vendor=GpuVendor.nvidia,
        index=index,
        name=str(calls.call("nvmlDeviceGetName") or ""),
        pci="" if pci is None else str(pci.busId),
        driver=calls.ask("driver", lambda nvml, _: str(nvml.nvmlSystemGetDriverVersion())) or "",
        memory_bytes=None if memory is None else int(memory.total),
        memory_reserved_bytes=None if memory is None else int(memory.reserved),
        sm_clock_max_mhz=calls.call("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        slowdown_c=_threshold(calls, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        shutdown_c=_threshold(calls, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        supported=tuple(str(one) for one in supported),
    )


def _threshold(calls: NvmlCalls, kind: int) -> int | None:
    found: int | None = calls.call("nvmlDeviceGetTemperatureThreshold", kind)
    return found
