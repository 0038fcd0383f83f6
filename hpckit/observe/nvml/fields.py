"""Counters of a GPU that NVML gives as fields: all of them in one call.

Each field has an answer of its own, so one that a GPU does not support costs the others nothing.
Where releases differ, a counter has several sources; the first that answers is used from then on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hpckit.model.telemetry.vocabulary import GpuCounter
from hpckit.observe.nvml.bindings import NvmlCalls, NvmlVerdict, classify_nvml_error_for_retry
from hpckit.values import dataclass, field

ALL_LINKS = 0xFFFFFFFF
"""As the scope of a field of NVLink: the sum over all links."""

_MILLI, _NANO, _KIB = 1e-3, 1e-9, 1024
_Field = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSource:
    """A counter as the sum of fields, each with its scope, times `unit`."""

    counter: GpuCounter
    fields: tuple[_Field, ...]
    unit: float = 1


def _build_field_source(counter: GpuCounter, number: int, unit: float = 1, scope: int = 0) -> FieldSource:
    return FieldSource(counter=counter, fields=((number, scope),), unit=unit)


SOURCES: tuple[FieldSource, ...] = (
    _build_field_source(GpuCounter.energy_j, 83, _MILLI),
    _build_field_source(GpuCounter.power_capped_s, 74, _NANO),
    _build_field_source(GpuCounter.thermal_capped_s, 75, _NANO),
    _build_field_source(GpuCounter.board_limited_s, 77, _NANO),
    _build_field_source(GpuCounter.reliability_capped_s, 79, _NANO),
    _build_field_source(GpuCounter.software_thermal_s, 269, _NANO),
    _build_field_source(GpuCounter.hardware_thermal_s, 270, _NANO),
    _build_field_source(GpuCounter.power_brake_s, 271, _NANO),
    _build_field_source(GpuCounter.ecc_corrected, 3),
    _build_field_source(GpuCounter.ecc_uncorrected, 4),
    _build_field_source(GpuCounter.ecc_corrected_lifetime, 5),
    _build_field_source(GpuCounter.ecc_uncorrected_lifetime, 6),
    _build_field_source(GpuCounter.rows_remapped_corrected, 142),
    _build_field_source(GpuCounter.rows_remapped_uncorrected, 143),
    _build_field_source(GpuCounter.pcie_tx_bytes, 197),
    _build_field_source(GpuCounter.pcie_rx_bytes, 198),
    _build_field_source(GpuCounter.pcie_replays, 94),
    _build_field_source(GpuCounter.pcie_corrected_errors, 173),
    _build_field_source(GpuCounter.pcie_fatal_errors, 180),
    # Of payload, in KiB; from Blackwell on in bytes, under other numbers.
    _build_field_source(GpuCounter.nvlink_tx_bytes, 138, _KIB, ALL_LINKS),
    _build_field_source(GpuCounter.nvlink_tx_bytes, 202, 1, ALL_LINKS),
    _build_field_source(GpuCounter.nvlink_rx_bytes, 139, _KIB, ALL_LINKS),
    _build_field_source(GpuCounter.nvlink_rx_bytes, 204, 1, ALL_LINKS),
    # Totals before Hopper; later those of the data link layer.
    FieldSource(counter=GpuCounter.nvlink_crc_errors, fields=((38, 0), (45, 0))),
    _build_field_source(GpuCounter.nvlink_crc_errors, 163, 1, ALL_LINKS),
    _build_field_source(GpuCounter.nvlink_replays, 52),
    _build_field_source(GpuCounter.nvlink_replays, 161, 1, ALL_LINKS),
    _build_field_source(GpuCounter.nvlink_recoveries, 59),
    _build_field_source(GpuCounter.nvlink_recoveries, 162, 1, ALL_LINKS),
)
"""In the order in which they are tried."""

MEMORY_TEMPERATURE = (82, 0)
REMAP_PENDING = (144, 0)
REMAP_FAILED = (145, 0)
RECOVERY_ACTION = (230, 0)

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of a field's value, by its type."""
_UINT32 = 1
"""A counter of bytes in this type begins anew each 4 GiB: of PCIe, several times a second."""


def _parse_field_value(entry: Any) -> float:
    kind = int(entry.valueType)
    number = getattr(entry.value, _MEMBERS[kind]) if kind < len(_MEMBERS) else math.nan
    return float(number)


@dataclass(slots=True, kw_only=True)
class FieldReader:
    """Reads fields of one GPU. `supported` are those that answered when it was made."""

    calls: NvmlCalls
    _sources: dict[GpuCounter, FieldSource] = field(default_factory=dict, init=False)
    _extra: tuple[_Field, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        for source in SOURCES:
            wide = source.counter.endswith("_bytes")
            if source.counter not in self._sources and self._supports_fields(source.fields, wide=wide):
                self._sources[source.counter] = source
        extra = (MEMORY_TEMPERATURE, REMAP_PENDING, REMAP_FAILED, RECOVERY_ACTION)
        self._extra = tuple(name for name in extra if self._supports_fields((name,)))

    @property
    def supported_counters(self) -> tuple[GpuCounter, ...]:
        """The counters that this GPU has."""
        return tuple(self._sources)

    def _supports_fields(self, fields: Sequence[_Field], *, wide: bool = False) -> bool:
        """Ask alone: an old driver refuses a whole call for one field that it does not know."""
        return len(self._read_fields(fields, wide=wide)) == len(fields)

    def read_non_counter_fields(self) -> Mapping[_Field, float]:
        """Return the fields that are no counters; raises GpuLostError, DriverLostError."""
        return self._read_fields(self._extra)

    def read_counters(self) -> dict[GpuCounter, float]:
        """Return all counters; raises GpuLostError, DriverLostError."""
        values = self._read_fields([one for source in self._sources.values() for one in source.fields])
        return {
            counter: sum(values[number] for number in source.fields) * source.unit
            for counter, source in self._sources.items()
            if all(number in values for number in source.fields)
        }

    def _read_fields(self, fields: Sequence[_Field], *, wide: bool = False) -> dict[_Field, float]:
        if not fields:
            return {}
        name = f"fields {fields[0][0]}" if len(fields) == 1 else "fields"
        entries = self.calls.call_or_none(
            name, lambda nvml, handle: nvml.nvmlDeviceGetFieldValues(handle, list(fields))
        )
        values = {}
        for one, entry in zip(fields, entries or (), strict=False):
            code = int(entry.nvmlReturn)
            if code == 0 and not (wide and int(entry.valueType) == _UINT32):
                values[one] = _parse_field_value(entry)
            elif classify_nvml_error_for_retry(code) in {NvmlVerdict.lost, NvmlVerdict.gone}:
                self.calls.record_call_error(name, code)
        return {one: value for one, value in values.items() if math.isfinite(value)}
