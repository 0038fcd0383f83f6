"""The driver of NVIDIA and the GPUs of this job, asked once through NVML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpckit.model.environment.facts import DriverFacts, GpuFacts
from hpckit.observe.nvml.bindings import load_bindings, means_no_driver
from hpckit.observe.nvml.job_gpus import job_handles, tried


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
        tried(nvml, nvml.nvmlShutdown)


def _ask(nvml: Any, environ: Mapping[str, str]) -> DriverFacts:
    supported = tried(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return DriverFacts(
        version=tried(nvml, nvml.nvmlSystemGetDriverVersion),
        cuda=supported and f"{supported // 1000}.{supported % 1000 // 10}",
        gpus=_gpus(nvml, environ),
    )


def _gpus(nvml: Any, environ: Mapping[str, str]) -> tuple[GpuFacts, ...] | None:
    handles = job_handles(nvml, environ)
    return None if handles is None else tuple(_gpu(nvml, handle) for handle in handles.values())


def _gpu(nvml: Any, handle: Any) -> GpuFacts:
    memory = tried(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    capability = tried(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    mig = tried(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return GpuFacts(
        name=tried(nvml, lambda: nvml.nvmlDeviceGetName(handle)) or "unknown",
        memory_bytes=None if memory is None else int(memory.total),
        capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        mig=None if mig is None else bool(mig[0]),
    )
