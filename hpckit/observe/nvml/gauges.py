"""What is measured of a whole GPU, call by call.

Only calls of microseconds stand here. Left out on purpose: lists of processes (milliseconds, and
they hold a lock of the driver that training needs), fans, and PCIe throughput, which waits 20 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpckit.model.telemetry.vocabulary import ClockReason, GpuGauge
from hpckit.observe.nvml.bindings import NvmlCalls

_Call = Callable[[Any, Any], Mapping[GpuGauge, float]]

_REASONS: tuple[tuple[int, ClockReason], ...] = (
    (0x1, ClockReason.idle),
    (0x2, ClockReason.application_clocks),
    (0x4, ClockReason.power_cap),
    (0x8, ClockReason.hardware_slowdown),
    (0x10, ClockReason.sync_boost),
    (0x20, ClockReason.software_thermal),
    (0x40, ClockReason.hardware_thermal),
    (0x80, ClockReason.power_brake),
    (0x100, ClockReason.display_clocks),
)


_EVENT_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
_THROTTLE_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"
"""The name that drivers before 535 know."""


def _read_utilisation(nvml: Any, handle: Any) -> dict[GpuGauge, float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {GpuGauge.busy_share: rates.gpu / 100, GpuGauge.memory_busy_share: rates.memory / 100}


def _read_used_memory(nvml: Any, handle: Any) -> dict[GpuGauge, float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return {GpuGauge.memory_used_bytes: memory.used}


def _read_memory_with_reserved(nvml: Any, handle: Any) -> dict[GpuGauge, float]:
    return {GpuGauge.memory_used_bytes: nvml.nvmlDeviceGetMemoryInfo(handle).used}


def _build_single_gauge_call(gauge: GpuGauge, function: str, *constants: str, per: int = 1) -> _Call:
    """Return a call that answers with one gauge, `per` of whose unit are one of the gauge's.

    `constants` are its arguments, by their names in NVML.
    """

    def call(nvml: Any, handle: Any) -> dict[GpuGauge, float]:
        answer = getattr(nvml, function)(handle, *(getattr(nvml, constant) for constant in constants))
        return {gauge: answer if per == 1 else answer / per}

    call.__name__ = " ".join((function, *constants))
    return call


MEMORY_CALLS: tuple[_Call, ...] = (_read_used_memory, _read_memory_with_reserved)
_GPU_CALLS: tuple[tuple[_Call, ...], ...] = (
    (_read_utilisation,),
    MEMORY_CALLS,
    (
        _build_single_gauge_call(GpuGauge.temperature_c, "nvmlDeviceGetTemperatureV", "NVML_TEMPERATURE_GPU"),
        _build_single_gauge_call(GpuGauge.temperature_c, "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    ),
    (_build_single_gauge_call(GpuGauge.temperature_margin_c, "nvmlDeviceGetMarginTemperature"),),
    (_build_single_gauge_call(GpuGauge.power_w, "nvmlDeviceGetPowerUsage", per=1000),),
    (_build_single_gauge_call(GpuGauge.power_limit_w, "nvmlDeviceGetEnforcedPowerLimit", per=1000),),
    (_build_single_gauge_call(GpuGauge.sm_clock_mhz, "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),),
    (_build_single_gauge_call(GpuGauge.memory_clock_mhz, "nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),),
)
"""Of each group the first call that the driver knows is used."""


def read_first_supported_gauges(calls: NvmlCalls, group: tuple[_Call, ...]) -> Mapping[GpuGauge, float]:
    """Return what the first call of a group that is supported answers; empty if none is."""
    for call in group:
        answer = calls.call_or_none(call.__name__, call)
        if answer is not None:
            return answer
        if call.__name__ not in calls.refused:
            return {}
    return {}


def read_gauges(calls: NvmlCalls) -> dict[GpuGauge, float]:
    """Return all gauges of a GPU; raises GpuLostError, DriverLostError."""
    found: dict[GpuGauge, float] = {}
    for group in _GPU_CALLS:
        found |= read_first_supported_gauges(calls, group)
    return found


def read_clock_throttle_reasons(calls: NvmlCalls) -> frozenset[ClockReason]:
    """Return why clocks are not higher; raises GpuLostError, DriverLostError."""
    mask = calls.call_nvml_function(_EVENT_REASONS)
    if mask is None and _EVENT_REASONS in calls.refused:
        mask = calls.call_nvml_function(_THROTTLE_REASONS)
    return frozenset(reason for bit, reason in _REASONS if (mask or 0) & bit)
