"""Hardware counters of activity (GPM), which Hopper and later GPUs have.

The driver works out a metric from two samples at least 100 ms apart, so the first call yields
nothing, and each later one covers the time since the call before. Works for MIG devices, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hpckit.model.telemetry.vocabulary import GpuGauge
from hpckit.observe.nvml.bindings import NvmlCalls
from hpckit.values import dataclass, field

SHORTEST_S = 0.1
"""Samples closer together than this yield no metric."""

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
    """Reads the activity of one GPU, or of its MIG instance `instance`; `close` it."""

    calls: NvmlCalls
    instance: int | None = None
    _samples: list[Any] = field(default_factory=list, init=False)
    _taken: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        supported = self.calls.ask(_CALL, _is_supported)
        if not supported:
            self.calls.refused.add(_CALL)
            return
        for _ in range(2):
            sample = self.calls.ask(_CALL, lambda nvml, _: nvml.nvmlGpmSampleAlloc())
            self._samples += [] if sample is None else [sample]

    def read(self) -> dict[GpuGauge, float]:
        """Return the shares since the last call; raises GpuLostError, DriverLostError."""
        if len(self._samples) < 2:  # noqa: PLR2004  # no memory for them
            return {}
        before, now = self._samples
        if self.calls.ask(_CALL, self._take(now)) is None:
            self._taken = False
            return {}
        self._samples = [now, before]
        if not self._taken:
            self._taken = True
            return {}
        return self.calls.ask(_CALL, lambda nvml, _: _metrics(nvml, before, now)) or {}

    def _take(self, sample: Any) -> Callable[[Any, Any], Any]:
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


def _is_supported(nvml: Any, handle: Any) -> bool:
    return bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)


def _metrics(nvml: Any, before: Any, now: Any) -> dict[GpuGauge, float]:
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
