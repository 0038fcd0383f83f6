"""AMD GPUs through amdsmi, behind the same protocol. Tried on a fake of that library only.

amdsmi comes with ROCm, not from a package index. Values that a GPU does not have it gives as "N/A".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from hpckit.model.telemetry.vocabulary import (
    GpuCounter,
    GpuDevice,
    GpuGauge,
    GpuSample,
    GpuTrouble,
    GpuVendor,
    TelemetryEvent,
    TelemetryEventKind,
)
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.values import dataclass, field

UNTRIED = "AMD GPUs are sampled by code that was never run on AMD hardware"

_MIB = 1024**2
_MICRO = 1e-6
_FAILURES_UNTIL_LOST = 3
"""This many samples without a single answer mean that a GPU is lost."""

_Reading = Callable[[Any, Any], Mapping[Any, Any]]


def _read_activity(smi: Any, handle: Any) -> dict[GpuGauge, Any]:
    used = smi.amdsmi_get_gpu_activity(handle)
    return {
        GpuGauge.busy_share: _percent_to_share(used.get("gfx_activity")),
        GpuGauge.memory_busy_share: _percent_to_share(used.get("umc_activity")),
    }


def _read_memory(smi: Any, handle: Any) -> dict[GpuGauge, Any]:
    used = _number_or_none(smi.amdsmi_get_gpu_vram_usage(handle).get("vram_used"))
    return {GpuGauge.memory_used_bytes: None if used is None else used * _MIB}


def _read_power(smi: Any, handle: Any) -> dict[GpuGauge, Any]:
    power = smi.amdsmi_get_power_info(handle)
    drawn = _number_or_none(power.get("current_socket_power"))
    if drawn is None:
        drawn = _number_or_none(power.get("average_socket_power"))
    return {GpuGauge.power_w: drawn}


def _read_temperature(smi: Any, handle: Any) -> dict[GpuGauge, Any]:
    kinds, now = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric.CURRENT
    return {GpuGauge.temperature_c: smi.amdsmi_get_temp_metric(handle, kinds.JUNCTION, now)}


def _read_memory_temperature(smi: Any, handle: Any) -> dict[GpuGauge, Any]:
    kinds, now = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric.CURRENT
    return {GpuGauge.memory_temperature_c: smi.amdsmi_get_temp_metric(handle, kinds.VRAM, now)}


def _read_clock(smi: Any, handle: Any) -> dict[GpuGauge, Any]:
    return {GpuGauge.sm_clock_mhz: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)["clk"]}


def _read_energy(smi: Any, handle: Any) -> dict[GpuCounter, Any]:
    energy = smi.amdsmi_get_energy_count(handle)
    # Renamed with ROCm 6.2.1.
    ticks = _number_or_none(energy.get("energy_accumulator", energy.get("power")))
    unit = _number_or_none(energy.get("counter_resolution"))
    joules = None if ticks is None or unit is None else ticks * unit * _MICRO
    return {GpuCounter.energy_j: joules}


def _read_error_counts(smi: Any, handle: Any) -> dict[GpuCounter, Any]:
    errors = smi.amdsmi_get_gpu_total_ecc_count(handle)
    return {
        GpuCounter.ecc_corrected: errors.get("correctable_count"),
        GpuCounter.ecc_uncorrected: errors.get("uncorrectable_count"),
    }


_GAUGES: tuple[_Reading, ...] = (
    *(_read_activity, _read_memory, _read_power, _read_temperature),
    *(_read_memory_temperature, _read_clock),
)
_COUNTERS: tuple[_Reading, ...] = (_read_energy, _read_error_counts)


def _number_or_none(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known else None


def _percent_to_share(percent: Any) -> float | None:
    number = _number_or_none(percent)
    return None if number is None else number / 100


@dataclass(slots=True, kw_only=True)
class _AmdGpu:
    handle: Any
    facts: GpuDevice
    refused: set[str] = field(default_factory=set)
    failures: int = 0


@dataclass(slots=True, kw_only=True)
class AmdBackend:
    """A GpuBackend; `smi` is the module amdsmi, initialised."""

    smi: Any
    choice: GpuChoice
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _gpus: list[_AmdGpu] = field(init=False)
    _happened: list[TelemetryEvent] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        handles = self.smi.amdsmi_get_processor_handles()
        found = [self._build_gpu(index, handle) for index, handle in enumerate(handles)]
        self._gpus = [gpu for gpu in found if self._is_gpu_of_run(gpu, len(found))]

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the GPUs as found in the beginning."""
        return tuple(gpu.facts for gpu in self._gpus)

    def sample(self, *, counters: bool) -> tuple[GpuSample, ...]:
        """Return a sample of each GPU; of one that answers nothing, its trouble alone."""
        return tuple(self._sample_gpu(gpu, counters=counters) for gpu in self._gpus)

    def events(self) -> tuple[TelemetryEvent, ...]:
        """Return what happened since the last call."""
        happened, self._happened = tuple(self._happened), []
        return happened

    def close(self) -> None:
        """Shut amdsmi down."""
        try:
            self.smi.amdsmi_shut_down()
        except self.smi.AmdSmiException:
            return

    def _build_gpu(self, index: int, handle: Any) -> _AmdGpu:
        memory = _number_or_none(
            self._read_field_or_none(self.smi.amdsmi_get_gpu_vram_usage, handle, "vram_total")
        )
        facts = GpuDevice(
            uuid=str(self.smi.amdsmi_get_gpu_device_uuid(handle)),
            vendor=GpuVendor.amd,
            index=index,
            name=str(
                self._read_field_or_none(self.smi.amdsmi_get_gpu_asic_info, handle, "market_name") or ""
            ),
            driver=str(
                self._read_field_or_none(self.smi.amdsmi_get_gpu_driver_info, handle, "driver_version") or ""
            ),
            memory_bytes=None if memory is None else int(memory * _MIB),
        )
        return _AmdGpu(handle=handle, facts=facts)

    def _is_gpu_of_run(self, gpu: _AmdGpu, count: int) -> bool:
        """Return whether a GPU is the run's; ROCr names it by its serial number."""
        serial = self._read_field_or_none(self.smi.amdsmi_get_gpu_asic_info, gpu.handle, "asic_serial")
        names = (gpu.facts.uuid, f"GPU-{str(serial or '').lower().removeprefix('0x')}")
        return any(self.choice.includes_gpu(gpu.facts.index, name, count) for name in names)

    def _read_field_or_none(self, call: Callable[[Any], Mapping[str, Any]], handle: Any, name: str) -> Any:
        try:
            return call(handle).get(name)
        except self.smi.AmdSmiException:
            return None

    def _sample_gpu(self, gpu: _AmdGpu, *, counters: bool) -> GpuSample:
        gauges = dict(self._read_values(gpu, _GAUGES))
        if self._update_lost_state(gpu, answered=bool(gauges)):
            return GpuSample(uuid=gpu.facts.uuid, troubles=frozenset({GpuTrouble.lost}))
        counted = dict(self._read_values(gpu, _COUNTERS)) if counters else {}
        return GpuSample(uuid=gpu.facts.uuid, gauges=gauges, counters=counted)

    def _update_lost_state(self, gpu: _AmdGpu, *, answered: bool) -> bool:
        before = gpu.failures >= _FAILURES_UNTIL_LOST
        gpu.failures = 0 if answered else gpu.failures + 1
        lost = gpu.failures >= _FAILURES_UNTIL_LOST
        if lost != before:
            kind = TelemetryEventKind.gpu_lost if lost else TelemetryEventKind.gpu_back
            event = TelemetryEvent(at=self.now(), kind=kind, uuid=gpu.facts.uuid)
            self._happened.append(event)
        return lost

    def _read_values(self, gpu: _AmdGpu, readings: tuple[_Reading, ...]) -> Iterator[tuple[Any, float]]:
        for reading in readings:
            if reading.__name__ in gpu.refused:
                continue
            try:
                answer = reading(self.smi, gpu.handle)
            except self.smi.AmdSmiLibraryException as error:
                if error.get_error_code() == self.smi.amdsmi_wrapper.AMDSMI_STATUS_NOT_SUPPORTED:
                    gpu.refused.add(reading.__name__)
                continue
            for name, value in answer.items():
                number = _number_or_none(value)
                if number is not None:
                    yield name, number


def open_amd_backend(choice: GpuChoice) -> tuple[AmdBackend | None, str]:
    """Return the run's GPUs of amdsmi, None without any; and a note for people."""
    try:
        smi = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError, AttributeError):
        # Its import loads a library of ROCm, and fails in many ways without it.
        return None, ""
    try:
        smi.amdsmi_init()
        backend = AmdBackend(smi=smi, choice=choice)
    except smi.AmdSmiException as error:
        return None, f"AMD GPUs are not sampled: {error}"
    if not backend.devices():
        backend.close()
        return None, ""
    return backend, UNTRIED
