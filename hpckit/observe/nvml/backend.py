"""The GPUs of a node through NVML, through whatever happens to them and to the driver.

A GPU that is lost is reported once, and looked for again after growing pauses; so is a driver that
was unloaded or exchanged. Looking again means to shut NVML down and initialise it again, in this
process only: no other one notices.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from hpckit.model.environment.facts import DriverFacts, GpuFacts
from hpckit.model.telemetry.vocabulary import (
    GpuDevice,
    GpuSample,
    GpuTrouble,
    TelemetryEvent,
    TelemetryEventKind,
    build_placeholder_uuid,
)
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.observe.nvml.bindings import (
    DriverLostError,
    GpuLostError,
    NvmlCalls,
    NvmlVerdict,
    classify_nvml_error_for_retry,
    describe_deprecated_pynvml,
    import_nvml_bindings,
    means_no_driver,
)
from hpckit.observe.nvml.device import (
    NvmlGpu,
    build_lost_gpu_facts,
    build_nvml_gpu,
    read_pcie_fields,
    trouble_from_error,
)
from hpckit.values import dataclass, field

_MOST_XIDS = 256
"""Events taken at a time: more wait for the next sample."""

DRIVER_PAUSE_S = 5.0
GPU_PAUSE_S = 60.0
"""First pauses before a lost driver, and a lost GPU, are looked for again; doubled each time."""
LONGEST_PAUSE_S = 600.0


@dataclass(slots=True, kw_only=True)
class NvmlBackend:
    """A GpuBackend. Made by `open_nvml_backend`; `monotonic` and `now` are its clocks."""

    nvml: Any
    gpm: bool = True
    choice: GpuChoice
    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _gpus: dict[str, NvmlGpu] = field(default_factory=dict, init=False)
    _lost: dict[str, GpuTrouble] = field(default_factory=dict, init=False)
    _known: dict[int, str] = field(default_factory=dict, init=False)
    _xids: Counter[str] = field(default_factory=Counter, init=False)
    _listener: XidListener | None = field(default=None, init=False)
    _remarked: set[str] = field(default_factory=set, init=False)
    _happened: list[TelemetryEvent] = field(default_factory=list, init=False)
    _away: bool = field(default=False, init=False)
    _pause_s: float = field(default=0, init=False)
    _again_at: float = field(default=0, init=False)

    def open(self) -> None:
        """Initialise NVML and find all GPUs; raises the bindings' NVMLError or DriverLostError."""
        self.nvml.nvmlInit()
        count = self.nvml.nvmlDeviceGetCount()
        silent = {index: self._attach_gpu_if_of_job(index, count) for index in range(count)}
        for index, code in silent.items():
            known = self._known.get(index)
            if code and (known or self.choice.may_include_gpu(index, count, len(self._known))):
                self._mark_gpu_lost(known or build_placeholder_uuid(index), code)
        handles = {uuid: gpu.calls.handle for uuid, gpu in self._gpus.items()}
        self._listener = XidListener(nvml=self.nvml, handles=handles)

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the GPUs that answer, and their MIG devices."""
        return tuple(device for gpu in self._gpus.values() for device in gpu.devices())

    def sample(self, *, counters: bool) -> tuple[GpuSample, ...]:
        """Return a sample of each GPU; of a lost one, its trouble alone."""
        if (self._away or self._lost) and self.monotonic() >= self._again_at:
            self._retry_initialisation()
        if self._away:
            return ()
        for source, number in () if self._listener is None else self._listener.read_xids():
            self._xids[source or ""] += 1
            self._add_event(TelemetryEventKind.xid, uuid=source, code=number)
        samples: list[GpuSample] = []
        for uuid, gpu in list(self._gpus.items()):
            try:
                samples += gpu.sample(counters=counters, xids=self._xids[uuid])
            except GpuLostError as error:
                self._mark_gpu_lost(uuid, error.code)
            except DriverLostError as error:
                self._mark_driver_lost(error.code)
                return ()
            except Exception as error:  # noqa: BLE001  # one GPU is not to end all measuring
                self._report_unreadable_gpu_once(uuid, error)
        troubles = ((uuid, frozenset({one})) for uuid, one in self._lost.items())
        return *samples, *(GpuSample(uuid=uuid, troubles=found) for uuid, found in troubles)

    def describe_driver(self) -> DriverFacts:
        """Return the driver and its GPUs, just after `open`; raises DriverLostError."""
        system = NvmlCalls(nvml=self.nvml, handle=None)
        cuda = system.call_or_none("cuda", lambda nvml, _: int(nvml.nvmlSystemGetCudaDriverVersion_v2()))
        gpus = [gpu.describe_gpu() for gpu in self._gpus.values()]
        # Until now no GPU that is lost has told its UUID.
        gpus += [build_lost_gpu_facts(name, int(name.split()[-1]), why) for name, why in self._lost.items()]
        return DriverFacts(
            version=system.call_or_none("driver", lambda nvml, _: str(nvml.nvmlSystemGetDriverVersion())),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        )

    def events(self) -> tuple[TelemetryEvent, ...]:
        """Return what happened since the last call."""
        happened, self._happened = tuple(self._happened), []
        return happened

    def close(self) -> None:
        """Free everything and shut NVML down."""
        for gpu in self._gpus.values():
            gpu.close()
        if self._listener is not None:
            self._listener.close()
        self._gpus, self._listener = {}, None
        try:
            self.nvml.nvmlShutdown()
        except self.nvml.NVMLError:
            return

    def _attach_gpu_if_of_job(self, index: int, count: int) -> int:
        """Find a GPU, and keep it if it is the job's; return an error of NVML if it is lost."""
        try:
            gpu = build_nvml_gpu(self.nvml, index, gpm=self.gpm)
        except GpuLostError as error:
            return error.code
        except self.nvml.NVMLError as error:
            code = int(error.value)
            # If the job has no permission to use it, it is someone else's.
            return 0 if classify_nvml_error_for_retry(code) is NvmlVerdict.never else code
        except DriverLostError:
            raise
        except Exception as error:  # noqa: BLE001  # one GPU is not to end all measuring
            self._report_unreadable_gpu_once(build_placeholder_uuid(index), error)
            return 0
        uuid = gpu.facts.uuid
        if not gpu.restrict_to_chosen_mig_devices(self.choice, count):
            gpu.close()
            return 0
        self._gpus[uuid], self._known[index] = gpu, uuid
        for name, wrong in gpu.calls.unread.items():
            self._report_unreadable_gpu_once(f"{uuid} ({name})", wrong)
        lost = [self._lost.pop(name, None) for name in (uuid, build_placeholder_uuid(index))]
        if any(lost):
            self._add_event(TelemetryEventKind.gpu_back, uuid=uuid)
        return 0

    def _mark_gpu_lost(self, uuid: str, code: int) -> None:
        gpu = self._gpus.pop(uuid, None)
        if gpu is not None:
            gpu.close()
        if uuid not in self._lost:
            self._add_event(TelemetryEventKind.gpu_lost, uuid=uuid, code=code)
            self._schedule_retry(GPU_PAUSE_S)
        self._lost[uuid] = trouble_from_error(code)

    def _mark_driver_lost(self, code: int) -> None:
        self._away = True
        self._add_event(TelemetryEventKind.driver_lost, code=code)
        self._schedule_retry(DRIVER_PAUSE_S)

    def _schedule_retry(self, first_s: float) -> None:
        self._pause_s = first_s
        self._again_at = self.monotonic() + first_s

    def _retry_initialisation(self) -> None:
        self.close()
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._again_at = self.monotonic() + self._pause_s
        try:
            self.open()
        except (self.nvml.NVMLError, DriverLostError) as error:
            if not self._away:
                self._mark_driver_lost(int(getattr(error, "code", 0) or getattr(error, "value", 0)))
            return
        if self._away:
            self._away = False
            self._add_event(TelemetryEventKind.driver_reloaded)

    def _report_unreadable_gpu_once(self, gpu: str, error: Exception | str) -> None:
        message = f"what NVML says of {gpu} cannot be read: {error}"
        if message not in self._remarked:
            self._remarked.add(message)
            self._add_event(TelemetryEventKind.note, message=message)

    def _add_event(
        self, kind: TelemetryEventKind, *, uuid: str | None = None, code: int | None = None, message: str = ""
    ) -> None:
        event = TelemetryEvent(at=self.now(), kind=kind, uuid=uuid, code=code, message=message)
        self._happened.append(event)


def open_nvml_backend(*, gpm: bool, choice: GpuChoice) -> tuple[NvmlBackend | None, str]:
    """Return the job's GPUs of NVML, None without any; and a note for people, mostly empty.

    Only this imports the bindings.
    """
    note = describe_deprecated_pynvml()
    try:
        backend = NvmlBackend(nvml=import_nvml_bindings(), gpm=gpm, choice=choice)
    except ImportError as error:
        return None, note or f"NVIDIA GPUs are not sampled: {error}"
    nvml = backend.nvml
    try:
        backend.open()
    except (nvml.NVMLError, DriverLostError) as error:
        code = int(getattr(error, "value", 0) or getattr(error, "code", 0))
        return None, note if means_no_driver(nvml, code) else f"NVIDIA GPUs are not sampled: {error}"
    if not (backend.devices() or backend.sample(counters=False)):
        backend.close()
        return None, note
    return backend, note


def describe_nvidia_driver(choice: GpuChoice) -> DriverFacts:
    """Return NVIDIA's driver and the job's GPUs; all unknown if NVML cannot say.

    Without a driver there are no GPUs, and its version is empty.
    """
    try:
        backend = NvmlBackend(nvml=import_nvml_bindings(), gpm=False, choice=choice)
    except ImportError:
        return DriverFacts()
    nvml = backend.nvml
    try:
        backend.open()
        return backend.describe_driver()
    except (nvml.NVMLError, DriverLostError) as error:
        code = int(getattr(error, "value", 0) or getattr(error, "code", 0))
        return DriverFacts(version="", gpus=()) if means_no_driver(nvml, code) else DriverFacts()
    finally:
        backend.close()


def read_pcie_link(uuid: str) -> GpuFacts | None:
    """Return what the link of the GPU with this UUID does now; None if NVML cannot say.

    GPUs lower it while they are idle, so ask during a transfer: nothing else is asked.

    ```python
    read_pcie_link("GPU-3f2a...")  # GpuFacts(pcie_generation=5, pcie_generation_max=5, ...)
    ```
    """
    try:
        nvml = import_nvml_bindings()
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001  # no bindings, or no driver
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        return GpuFacts(name="", uuid=uuid, **read_pcie_fields(NvmlCalls(nvml=nvml, handle=handle)))
    except (nvml.NVMLError, GpuLostError, DriverLostError):
        return None
    finally:
        nvml.nvmlShutdown()


@dataclass(slots=True, kw_only=True)
class XidListener:
    """Hears XID errors of GPUs, given by UUID with their handles: those that happen meanwhile."""

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
            self._uuids[_address_of_handle(handle)] = uuid

    def read_xids(self) -> Iterator[tuple[str | None, int]]:
        """Yield UUID (None if unknown) and number of each XID since the last call; never waits."""
        for _ in range(_MOST_XIDS if self._uuids else 0):
            try:
                event = self.nvml.nvmlEventSetWait_v2(self._set, 0)
            except self.nvml.NVMLError as error:
                if classify_nvml_error_for_retry(int(error.value)) is NvmlVerdict.never:
                    self._uuids = {}
                return
            yield self._uuids.get(_address_of_handle(event.device)), int(event.eventData)

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


def _address_of_handle(handle: Any) -> int:
    """Return where a handle points to: the same for all handles of a GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
