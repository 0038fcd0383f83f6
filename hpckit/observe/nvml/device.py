"""One GPU of NVML: what it is, what it can tell, and a sample of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from typing import Any

from hpckit.model.environment.facts import GpuFacts
from hpckit.model.telemetry.vocabulary import (
    GpuCounter,
    GpuDevice,
    GpuGauge,
    GpuSample,
    GpuTrouble,
    GpuVendor,
)
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.observe.nvml.bindings import RESET_REQUIRED, GpuLostError, NvmlCalls, raise_if_device_lost
from hpckit.observe.nvml.fields import (
    MEMORY_TEMPERATURE,
    RECOVERY_ACTION,
    REMAP_FAILED,
    REMAP_PENDING,
    FieldReader,
)
from hpckit.observe.nvml.gauges import (
    MEMORY_CALLS,
    read_clock_throttle_reasons,
    read_first_supported_gauges,
    read_gauges,
)
from hpckit.values import dataclass, field, replace

_MOST_PARTS = "nvmlDeviceGetMaxMigDeviceCount"
"""Tells how many MIG devices a GPU can have: one for each of its slices."""

_MIG_MODE = "nvmlDeviceGetMigMode"
_THRESHOLD = "nvmlDeviceGetTemperatureThreshold"
_MOST_NVLINKS = 18
"""Of a GPU: Hopper and Blackwell have 18, earlier ones fewer."""
_PCIE = {
    "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
}

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
        self.calls.reset_answer_counts()
        gauges = read_gauges(self.calls)
        reasons = read_clock_throttle_reasons(self.calls)
        states = self.fields.read_non_counter_fields()
        if MEMORY_TEMPERATURE in states:
            gauges[GpuGauge.memory_temperature_c] = states[MEMORY_TEMPERATURE]
        gauges |= {} if self.gpm is None else self.gpm.read_activity()
        counted: dict[GpuCounter, float] = self.fields.read_counters() if counters else {}
        own = GpuSample(
            uuid=self.facts.uuid,
            gauges=gauges,
            counters={**counted, GpuCounter.xids: xids} if counters else {},
            reasons=reasons,
            troubles=_find_gpu_troubles(states),
        )
        self.calls.raise_if_no_call_answered()
        return own, *(part.sample() for part in self.parts)

    def restrict_to_chosen_mig_devices(self, choice: GpuChoice, count: int) -> bool:
        """Return whether this GPU, of `count`, is the job's; keep its MIG devices alone, if named.

        A GPU without one of those is not the job's.
        """
        if not choice.includes_gpu(self.facts.index, self.facts.uuid, count):
            return False
        if not choice.parts:
            return True
        mine = [choice.includes_mig_device(part.facts.uuid) for part in self.parts]
        _close_readers(part.gpm for part, own in zip(self.parts, mine, strict=True) if not own)
        self.parts = tuple(compress(self.parts, mine))
        return any(mine)

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the GPU and its MIG devices."""
        return self.facts, *(part.facts for part in self.parts)

    def describe_gpu(self) -> GpuFacts:
        """Return what it is and has now: asked outside of sampling; raises DriverLostError."""
        facts, ask = self.facts, self.calls.call_nvml_function
        try:
            sample = self.sample(counters=True, xids=0)[0]
            capability, mode = ask("nvmlDeviceGetCudaComputeCapability"), ask(_MIG_MODE)
            used = sample.gauges.get(GpuGauge.memory_used_bytes)
            errors = sample.counters.get(GpuCounter.ecc_uncorrected)
            states = [ask("nvmlDeviceGetNvLinkState", link) for link in range(_MOST_NVLINKS)]
            links = [bool(state) for state in states if state is not None]
            return GpuFacts(
                name=facts.name or "unknown",
                uuid=facts.uuid,
                index=facts.index,
                memory_bytes=facts.memory_bytes,
                memory_used_bytes=None if used is None else int(used),
                capability=capability and f"{capability[0]}.{capability[1]}",
                capability_number=capability and capability[0] + capability[1] / 10,
                mig=None if mode is None else bool(mode[0]),
                processes=self.calls.call_or_none("processes", _list_process_ids),
                ecc_uncorrected=None if errors is None else int(errors),
                troubles=tuple(sorted(sample.troubles)),
                power_limit_w=sample.gauges.get(GpuGauge.power_limit_w),
                nvlinks=sum(links) if links else None,
                # A GPU none of whose links is up has no bridge: nothing of it is down.
                nvlinks_down=links.count(False) if any(links) else 0,
                pci=facts.pci,
                **read_pcie_fields(self.calls),
            )
        except GpuLostError as error:
            return build_lost_gpu_facts(facts.uuid, facts.index, trouble_from_error(error.code), facts.name)

    def close(self) -> None:
        """Free what the driver holds for it."""
        _close_readers((self.gpm, *(part.gpm for part in self.parts)))


def _close_readers(readers: Iterable[GpmReader | None]) -> None:
    for reader in readers:
        if reader is not None:
            reader.close()


def _find_gpu_troubles(states: Mapping[tuple[int, int], float]) -> frozenset[GpuTrouble]:
    found = {trouble for field, trouble in _FLAGS if states.get(field)}
    action = int(states.get(RECOVERY_ACTION, 0))
    if action:
        found.add(_ADVICE.get(action, GpuTrouble.advised_other))
    return frozenset(found)


def trouble_from_error(code: int) -> GpuTrouble:
    """Return what the error of a lost GPU says of it."""
    return GpuTrouble.reset_required if code == RESET_REQUIRED else GpuTrouble.lost


def build_lost_gpu_facts(uuid: str, index: int, trouble: GpuTrouble, name: str = "") -> GpuFacts:
    """Return all that is known of a GPU that does not answer."""
    return GpuFacts(uuid=uuid, index=index, name=name, troubles=(trouble,))


def read_pcie_fields(calls: NvmlCalls) -> dict[str, Any]:
    """Return the fields of GpuFacts on its PCIe link, as it is now."""
    return {name: calls.call_nvml_function(function) for name, function in _PCIE.items()}


def _list_process_ids(nvml: Any, handle: Any) -> tuple[int, ...]:
    found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return tuple(int(process.pid) for process in found)


def build_nvml_gpu(nvml: Any, index: int, *, gpm: bool) -> NvmlGpu:
    """Find out what the GPU with this index of NVML is, and what it supports.

    Raises GpuLostError, DriverLostError, or the bindings' NVMLError for what is neither.
    """
    try:
        return _build_nvml_gpu(nvml, index, gpm=gpm)
    except nvml.NVMLError as error:
        raise_if_device_lost(int(error.value))
        raise


def _build_nvml_gpu(nvml: Any, index: int, *, gpm: bool) -> NvmlGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    calls = NvmlCalls(nvml=nvml, handle=handle)
    uuid = str(nvml.nvmlDeviceGetUUID(handle))
    fields = FieldReader(calls=calls)
    gauges = read_gauges(calls)
    facts = _read_device_facts(calls, uuid, index, (*gauges, *fields.supported_counters))
    parts = _find_mig_devices(calls, facts, gpm=gpm)
    if parts:
        facts = replace(facts, slices=calls.call_nvml_function(_MOST_PARTS))
    # With MIG, activity is that of the parts.
    reader = GpmReader(calls=calls) if gpm and not parts else None
    return NvmlGpu(calls=calls, facts=facts, fields=fields, gpm=reader, parts=parts)


def _read_device_facts(calls: NvmlCalls, uuid: str, index: int, supported: tuple[str, ...]) -> GpuDevice:
    nvml = calls.nvml
    memory = calls.call_nvml_function("nvmlDeviceGetMemoryInfo", nvml.nvmlMemory_v2)
    older = calls.call_nvml_function("nvmlDeviceGetMemoryInfo") if memory is None else memory
    pci = calls.call_nvml_function("nvmlDeviceGetPciInfo")
    return GpuDevice(
        uuid=uuid,
        vendor=GpuVendor.nvidia,
        index=index,
        name=str(calls.call_nvml_function("nvmlDeviceGetName") or ""),
        pci="" if pci is None else str(pci.busId),
        driver=calls.call_or_none("driver", lambda nvml, _: str(nvml.nvmlSystemGetDriverVersion())) or "",
        memory_bytes=None if older is None else int(older.total),
        memory_reserved_bytes=None if memory is None else int(memory.reserved),
        sm_clock_max_mhz=calls.call_nvml_function("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        slowdown_c=calls.call_nvml_function(_THRESHOLD, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        shutdown_c=calls.call_nvml_function(_THRESHOLD, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        supported=tuple(str(name) for name in supported),
    )


@dataclass(slots=True, kw_only=True)
class MigPart:
    """A MIG device: a part of a GPU that looks like one.

    The driver tells its memory, and with GPM its activity. Power, energy, temperature, clocks and
    errors belong to the whole GPU, and are in its own row.
    """

    calls: NvmlCalls
    facts: GpuDevice
    gpm: GpmReader | None

    def sample(self) -> GpuSample:
        """Return a sample; raises GpuLostError, DriverLostError."""
        gauges = dict(read_first_supported_gauges(self.calls, MEMORY_CALLS))
        gauges |= {} if self.gpm is None else self.gpm.read_activity()
        return GpuSample(uuid=self.facts.uuid, gauges=gauges)


def _find_mig_devices(whole: NvmlCalls, parent: GpuDevice, *, gpm: bool) -> tuple[MigPart, ...]:
    """Return the MIG devices of a GPU; none if MIG is off, or not known to it.

    Raises GpuLostError, DriverLostError.
    """
    mode = whole.call_nvml_function(_MIG_MODE)
    if not mode or not mode[0]:
        return ()
    parts = []
    for place in range(whole.call_nvml_function(_MOST_PARTS) or 0):
        try:
            handle = whole.nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole.handle, place)
        except whole.nvml.NVMLError:
            # Places are not filled without gaps.
            continue
        parts.append(_open_mig_device(whole, handle, parent, gpm=gpm))
    return tuple(parts)


def _open_mig_device(whole: NvmlCalls, handle: Any, parent: GpuDevice, *, gpm: bool) -> MigPart:
    nvml = whole.nvml
    calls = NvmlCalls(nvml=nvml, handle=handle)
    slices = calls.call_nvml_function("nvmlDeviceGetAttributes")
    memory = calls.call_nvml_function("nvmlDeviceGetMemoryInfo")
    facts = GpuDevice(
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        vendor=GpuVendor.nvidia,
        index=parent.index,
        name=str(calls.call_nvml_function("nvmlDeviceGetName") or ""),
        pci=parent.pci,
        driver=parent.driver,
        memory_bytes=None if memory is None else int(memory.total),
        parent=parent.uuid,
        slices=None if slices is None else int(slices.gpuInstanceSliceCount),
    )
    instance = calls.call_nvml_function("nvmlDeviceGetGpuInstanceId")
    reader = None
    if gpm and instance is not None:
        # The driver takes a sample of a part by its whole GPU and the number of the instance.
        own = NvmlCalls(nvml=nvml, handle=whole.handle)
        reader = GpmReader(calls=own, instance=instance)
    return MigPart(calls=calls, facts=facts, gpm=reader)


_METRICS: tuple[tuple[int, GpuGauge], ...] = (
    (1, GpuGauge.graphics_share),
    (2, GpuGauge.sm_share),
    (3, GpuGauge.sm_occupancy_share),
    (5, GpuGauge.tensor_share),
    (10, GpuGauge.dram_share),
)
_PERCENT = 100
_CALL = "gpm"


@dataclass(slots=True, kw_only=True)
class GpmReader:
    """Reads the activity of one GPU, or of its MIG instance `instance`; `close` it.

    Hopper and later GPUs have counters of it (GPM). The driver works out a metric from two samples at least
    100 ms apart, so the first call yields nothing, and each later one covers the time since the call before.
    """

    calls: NvmlCalls
    instance: int | None = None
    _samples: list[Any] = field(default_factory=list, init=False)
    _taken: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        supported = self.calls.call_or_none(_CALL, _is_gpm_supported)
        if not supported:
            self.calls.refused.add(_CALL)
            return
        for _ in range(2):
            sample = self.calls.call_or_none(_CALL, lambda nvml, _: nvml.nvmlGpmSampleAlloc())
            self._samples += [] if sample is None else [sample]

    def read_activity(self) -> dict[GpuGauge, float]:
        """Return the shares since the last call; raises GpuLostError, DriverLostError."""
        if len(self._samples) < 2:  # noqa: PLR2004  # no memory for them
            return {}
        before, now = self._samples
        if self.calls.call_or_none(_CALL, self._build_sample_call(now)) is None:
            self._taken = False
            return {}
        self._samples = [now, before]
        if not self._taken:
            self._taken = True
            return {}
        return self.calls.call_or_none(_CALL, lambda nvml, _: _compute_gpm_metrics(nvml, before, now)) or {}

    def _build_sample_call(self, sample: Any) -> Callable[[Any, Any], Any]:
        if self.instance is None:
            return lambda nvml, handle: nvml.nvmlGpmSampleGet(handle, sample)
        return lambda nvml, handle: nvml.nvmlGpmMigSampleGet(handle, self.instance, sample)

    def close(self) -> None:
        """Free the samples; do nothing if the driver is gone."""
        for sample in self._samples:
            try:
                self.calls.nvml.nvmlGpmSampleFree(sample)
            except self.calls.nvml.NVMLError:
                break
        self._samples = []


def _is_gpm_supported(nvml: Any, handle: Any) -> bool:
    return bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)


def _compute_gpm_metrics(nvml: Any, before: Any, now: Any) -> dict[GpuGauge, float]:
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(_METRICS)
    asked.sample1, asked.sample2 = before, now
    for place, (number, _) in enumerate(_METRICS):
        asked.metrics[place].metricId = number
    nvml.nvmlGpmMetricsGet(asked)
    return {
        gauge: min(max(entry.value / _PERCENT, 0.0), 1.0)
        for entry, (_, gauge) in zip(asked.metrics, _METRICS, strict=False)
        if entry.nvmlReturn == 0 and math.isfinite(entry.value)
    }
