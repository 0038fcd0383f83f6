"""The health of the job's GPUs, asked once through NVML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hpckit.model.preflight.health import GpuHealth
from hpckit.model.telemetry.vocabulary import GpuCounter, GpuGauge, GpuTrouble, nameless_gpu
from hpckit.observe.gpu_choice import gpu_choice
from hpckit.observe.nvml.bindings import (
    RESET_REQUIRED,
    DriverLostError,
    GpuLostError,
    NvmlCalls,
    NvmlVerdict,
    load_bindings,
    means_no_driver,
    nvml_verdict,
)
from hpckit.observe.nvml.device import NvmlGpu, attach_gpu
from hpckit.observe.nvml.job_gpus import MOST_NVLINKS, tried


def read_gpus(environ: Mapping[str, str]) -> tuple[GpuHealth, ...] | None:
    """Return the health of each GPU of the job; None if NVML cannot say, or not of NVIDIA."""
    try:
        nvml = load_bindings()
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return () if means_no_driver(nvml, int(error.value)) else None
    try:
        return tuple(_read_all(nvml, environ))
    except (nvml.NVMLError, DriverLostError):
        return None
    finally:
        tried(nvml, nvml.nvmlShutdown)


def _read_all(nvml: Any, environ: Mapping[str, str]) -> list[GpuHealth]:
    choice, count = gpu_choice(environ), int(nvml.nvmlDeviceGetCount())
    found: list[GpuHealth] = []
    for index in range(count):
        gpu = _attach(nvml, index)
        if isinstance(gpu, int):
            if choice.may_include(index, count, len(found)):
                found.append(_lost(index, gpu))
            continue
        if gpu.keep_chosen(choice, count):
            found.append(_read(gpu))
        gpu.close()
    return found


def _attach(nvml: Any, index: int) -> NvmlGpu | int:
    """Return the GPU, or the error of NVML that says that it is lost; raises other errors."""
    try:
        return attach_gpu(nvml, index, gpm=False)
    except GpuLostError as error:
        return error.code
    except nvml.NVMLError as error:
        code = int(error.value)
        if nvml_verdict(code) is not NvmlVerdict.lost:
            raise
        return code


def _lost(index: int, code: int) -> GpuHealth:
    trouble = GpuTrouble.reset_required if code == RESET_REQUIRED else GpuTrouble.lost
    return GpuHealth(uuid=nameless_gpu(index), index=index, troubles=(trouble,))


def _read(gpu: NvmlGpu) -> GpuHealth:
    facts, calls = gpu.facts, gpu.calls
    try:
        sample = gpu.sample(counters=True, xids=0)[0]
        used = sample.gauges.get(GpuGauge.memory_used_bytes)
        errors = sample.counters.get(GpuCounter.ecc_uncorrected)
        return GpuHealth(
            uuid=facts.uuid,
            index=facts.index,
            name=facts.name,
            memory_bytes=facts.memory_bytes,
            memory_used_bytes=None if used is None else int(used),
            processes=calls.ask("processes", _processes),
            ecc_uncorrected=None if errors is None else int(errors),
            troubles=tuple(sorted(sample.troubles)),
            pcie_width=calls.ask("pcie width", _width),
            pcie_width_max=calls.ask("pcie width max", _width_max),
            nvlinks=_nvlinks(calls),
            power_limit_w=sample.gauges.get(GpuGauge.power_limit_w),
            mig=bool(gpu.parts),
        )
    except GpuLostError as error:
        return replace(_lost(facts.index, error.code), uuid=facts.uuid, name=facts.name)


def _processes(nvml: Any, handle: Any) -> tuple[int, ...]:
    return tuple(int(one.pid) for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle))


def _width(nvml: Any, handle: Any) -> int:
    return int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))


def _width_max(nvml: Any, handle: Any) -> int:
    return int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))


def _link(nvml: Any, handle: Any, *, link: int) -> int:
    return int(nvml.nvmlDeviceGetNvLinkState(handle, link))


def _nvlinks(calls: NvmlCalls) -> int | None:
    """Return how many NVLinks are active; None if the GPU has none, or cannot say."""
    states = [
        calls.ask(f"nvlink {link}", partial(_link, link=link)) for link in range(MOST_NVLINKS)
    ]
    known = [one for one in states if one is not None]
    return sum(known) if known else None
