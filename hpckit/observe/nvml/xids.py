"""XID errors, as events of the driver: those that happen while this process listens."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpckit.observe.nvml.bindings import NvmlVerdict, nvml_verdict

_MOST = 256
"""Events taken at a time: more wait for the next sample."""


@dataclass(slots=True, kw_only=True)
class XidListener:
    """Listens to GPUs, given by UUID with their handles."""

    nvml: Any
    handles: Mapping[str, Any]
    _set: Any = field(default=None, init=False)
    _uuids: dict[int, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        try:
            self._set = self.nvml.nvmlEventSetCreate()
        except self.nvml.NVMLError:
            return
        for uuid, handle in self.handles.items():
            try:
                wanted = self.nvml.nvmlEventTypeXidCriticalError
                self.nvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
            except self.nvml.NVMLError:
                continue
            self._uuids[_address(handle)] = uuid

    def read(self) -> Iterator[tuple[str | None, int]]:
        """Yield UUID (None if unknown) and number of each XID since the last call; never waits."""
        for _ in range(_MOST if self._uuids else 0):
            try:
                event = self.nvml.nvmlEventSetWait_v2(self._set, 0)
            except self.nvml.NVMLError as error:
                if nvml_verdict(int(error.value)) is NvmlVerdict.never:
                    self._uuids = {}
                return
            yield self._uuids.get(_address(event.device)), int(event.eventData)

    def close(self) -> None:
        """Stop listening."""
        if self._set is not None:
            try:
                self.nvml.nvmlEventSetFree(self._set)
            except self.nvml.NVMLError:
                return
            finally:
                self._set = None
                self._uuids = {}


def _address(handle: Any) -> int:
    """Return where a handle points to: the same for all handles of a GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
