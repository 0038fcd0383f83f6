"""The driver of NVIDIA and the GPUs of this job, asked once through NVML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hpckit.model.environment.facts import DriverFacts, GpuFacts
from hpckit.observe.gpu_choice import gpu_choice
from hpckit.observe.nvml.bindings import load_bindings, means_no_driver

T = TypeVar("T")


def read_driver(environ: Mapping[str, str], root: Path = Path("/")) -> DriverFacts:
    """Return the driver and the job's GPUs; all unknown if NVML cannot say.

    Without a driver of NVIDIA there are no GPUs of it; where AMD's driver is loaded, the GPUs are
    unknown.
    """
    try:
        nvml = load_bindings()
    except ImportError:
        return DriverFacts()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if not means_no_driver(nvml, int(error.value)) or (root / "dev/kfd").exists():
            return DriverFacts()
        return DriverFacts(version="", gpus=())
    try:
        return _ask(nvml, environ)
    finally:
        _tried(nvml, nvml.nvmlShutdown)


def _ask(nvml: Any, environ: Mapping[str, str]) -> DriverFacts:
    supported = _tried(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return DriverFacts(
        version=_tried(nvml, nvml.nvmlSystemGetDriverVersion),
        cuda=supported and f"{supported // 1000}.{supported % 1000 // 10}",
        gpus=_gpus(nvml, environ),
    )


def _gpus(nvml: Any, environ: Mapping[str, str]) -> tuple[GpuFacts, ...] | None:
    count = _tried(nvml, nvml.nvmlDeviceGetCount)
    if count is None:
        return None
    choice, found = gpu_choice(environ), []
    for index in range(count):
        handle = _tried(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, index))
        uuid = handle and _tried(nvml, partial(nvml.nvmlDeviceGetUUID, handle))
        if handle and uuid and choice.includes(index, uuid, count):
            found.append(_gpu(nvml, handle))
    return tuple(found)


def _gpu(nvml: Any, handle: Any) -> GpuFacts:
    memory = _tried(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    capability = _tried(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    mig = _tried(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return GpuFacts(
        name=_tried(nvml, lambda: nvml.nvmlDeviceGetName(handle)) or "unknown",
        memory_bytes=None if memory is None else int(memory.total),
        capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        mig=None if mig is None else bool(mig[0]),
    )


def _tried(nvml: Any, call: Callable[[], T]) -> T | None:
    """Return what NVML answers; None if this driver or this GPU does not."""
    try:
        return call()
    except nvml.NVMLError:
        return None
