"""What NVML answers to hpckit's own code, idle and under load, and what hpckit makes of it."""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpu_check.recording import RecordingNvml
from gpu_check.scene import NotRunError, Scene
from hpckit.model.plain import to_plain
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.observe.gpus import read_driver_and_gpus
from hpckit.observe.machine import read_node_and_gpu_links
from hpckit.observe.nvml.backend import NvmlBackend, read_pcie_link

RECORDED = "nvml.json"
_SAMPLES = 4
_APART_S = 0.5
_LOAD_S = 6.0
_MORE: Mapping[str, tuple[Any, ...]] = {
    "nvmlDeviceGetTotalEnergyConsumption": (),
    "nvmlDeviceGetEccMode": (),
    "nvmlDeviceGetPersistenceMode": (),
    "nvmlDeviceGetComputeMode": (),
    "nvmlDeviceGetPerformanceState": (),
    "nvmlDeviceGetPowerManagementLimit": (),
    "nvmlDeviceGetPowerManagementLimitConstraints": (),
    "nvmlDeviceGetPowerManagementDefaultLimit": (),
    "nvmlDeviceGetMigMode": (),
    "nvmlDeviceGetMaxMigDeviceCount": (),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (),
    "nvmlDeviceGetSupportedClocksEventReasons": (),
    "nvmlDeviceGetFanSpeed": (),
    "nvmlDeviceGetBAR1MemoryInfo": (),
    "nvmlDeviceGetNumGpuCores": (),
    "nvmlDeviceGetMinorNumber": (),
    "nvmlDeviceGetVirtualizationMode": (),
    "nvmlDeviceGetGspFirmwareMode": (),
    "nvmlDeviceGetRemappedRows": (),
    "nvmlDeviceGetRetiredPagesPendingStatus": (),
    "nvmlDeviceGetEncoderUtilization": (),
}
"""Calls that hpckit does not make, and that show what else a fake GPU could answer."""


def measure_nvml(scene: Scene) -> dict[str, Any]:
    """Record NVML's answers; return what hpckit reads from them."""
    try:
        real = importlib.import_module("pynvml")
    except ImportError as error:
        raise NotRunError(f"nvidia-ml-py is missing: {error}") from None
    nvml = RecordingNvml(real)
    sys.modules["pynvml"] = nvml  # type: ignore[assignment]
    backend = NvmlBackend(nvml=nvml, gpm=True, choice=GpuChoice(whole_node=True))
    try:
        backend.open()
    except real.NVMLError as error:
        raise NotRunError(f"NVML does not open: {error}") from None
    measured: dict[str, Any] = {
        "torch": {"name": scene.machine.gpu, "memory_bytes": scene.machine.gpu_bytes},
        "devices": [to_plain(device) for device in backend.devices()],
    }
    recorded = {"attached": nvml.begin()}
    measured["idle"] = _samples(backend)
    recorded["idle"] = nvml.begin()
    measured["loaded"], measured["transfer"] = _under_load(scene, backend)
    recorded["loaded"] = nvml.begin()
    measured["health"] = [to_plain(gpu) for gpu in read_driver_and_gpus({}, lost=True).gpus or ()]
    measured["links"] = to_plain(read_node_and_gpu_links("node", {}))
    measured["driver"] = to_plain(read_driver_and_gpus({}))
    recorded["asked once"] = nvml.begin()
    _ask_more(nvml)
    recorded["more"] = nvml.begin()
    measured["events"] = [to_plain(event) for event in backend.events()]
    backend.close()
    measured["calls"] = sum(len(one) for one in recorded.values())
    text = json.dumps({"v": 1, "phases": recorded}, indent=0)
    (scene.folder / RECORDED).write_text(text + "\n", encoding="utf-8")
    return measured


def _samples(backend: NvmlBackend) -> dict[str, Any]:
    """Return the last of some samples of the first GPU: GPM needs two, power a second."""
    for _ in range(_SAMPLES):
        samples = backend.sample(counters=True)
        time.sleep(_APART_S)
    if not samples:
        return {}
    found = samples[0]
    sets = {"reasons": sorted(found.reasons), "troubles": sorted(found.troubles)}
    return {"gauges": to_plain(found.gauges), "counters": to_plain(found.counters), **sets}


def _under_load(scene: Scene, backend: NvmlBackend) -> tuple[dict[str, Any], Any]:
    import torch  # noqa: PLC0415
    from gpu_work import burn  # noqa: PLC0415  # it imports torch, after the idle GPU was read

    device = torch.device("cuda" if scene.machine.on_gpu else "cpu")
    thread = threading.Thread(target=burn, args=(_LOAD_S, device), daemon=True)
    thread.start()
    _wait_for(lambda: _busy(backend), _LOAD_S)
    found = _samples(backend)
    thread.join()
    uuid = backend.devices()[0].uuid if backend.devices() else ""
    return found, to_plain(read_pcie_link(uuid))


def _busy(backend: NvmlBackend) -> bool:
    samples = backend.sample(counters=False)
    return bool(samples) and samples[0].gauges.get("busy_share", 0) > 0.5  # type: ignore[call-overload]  # noqa: PLR2004


def _wait_for(ready: Callable[[], bool], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and not ready():
        time.sleep(0.2)


def _ask_more(nvml: RecordingNvml) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    calls = [(name, arguments) for name, arguments in _MORE.items() if hasattr(nvml.real, name)]
    calls += [("nvmlDeviceGetPcieThroughput", (which,)) for which in (0, 1)]
    calls += [("nvmlDeviceGetTemperatureThreshold", (which,)) for which in range(8)]
    calls += [("nvmlDeviceGetClockInfo", (which,)) for which in range(4)]
    for name, arguments in calls:
        try:
            getattr(nvml, name)(handle, *arguments)
        except (nvml.real.NVMLError, TypeError, ValueError):
            continue
