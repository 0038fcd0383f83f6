"""What hpckit inspects before a run trains, and the way between host and GPU."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from gpu_check.scene import NotRunError, Scene, failure_words
from hpckit.model.plain import to_plain
from hpckit.observe.gpus import read_driver_and_gpus
from hpckit.observe.nvml.backend import read_pcie_link
from hpckit.observe.nvml.bindings import import_nvml_bindings
from hpckit.runtime.preflight.speeds import measure_device_speeds

_SPEEDS_S = 40.0
_COPY_S = 3.0
_COPY_BYTES = 2**28
_KIB = 1024


def measure_preflight(scene: Scene) -> dict[str, Any]:
    """Launch a run after a fast, and one after a medium inspection."""
    measured: dict[str, Any] = {}
    for level in ("fast", "medium"):
        launched = scene.launch(
            *("experiment=function", "entry_point=gpu_work:short", f"preflight={level}"),
            f"name=preflight-{level}",
        )
        run = launched.runs()[0]
        inspected = launched.events("nodes_inspected")
        measured[level] = {
            "failure": failure_words(run),
            "inspections": [
                {key: one[key] for key in ("level", "took_s", "fine", "lost")} for one in inspected
            ],
            "nodes": run["preflight"],
            "warnings": run["warnings"],
        }
        scene.keep(measured)
    return measured


def measure_transfers(scene: Scene) -> dict[str, Any]:
    """Run what a medium inspection runs on the GPU; then read its PCIe link while data flows."""
    if not scene.machine.on_gpu:
        raise NotRunError("torch sees no GPU to copy to")
    uuid = (read_driver_and_gpus({}).gpus or ())[0].uuid
    measured: dict[str, Any] = {"idle_link": to_plain(read_pcie_link(uuid))}
    speeds = measure_device_speeds(dict(os.environ), [uuid], cpus=8, limit_s=_SPEEDS_S)
    measured["speed"] = to_plain(speeds[0])
    scene.keep(measured)
    measured["loaded"] = _copying(uuid)
    return measured


def _copying(uuid: str) -> dict[str, Any]:
    """Copy to the GPU for some seconds; return the rate, and what NVML says meanwhile."""
    import torch  # noqa: PLC0415  # takes seconds

    host = torch.empty(_COPY_BYTES, dtype=torch.uint8).pin_memory()
    device = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    done, copied = threading.Event(), [0]

    def copy() -> None:
        while not done.is_set():
            device.copy_(host, non_blocking=True)
            torch.cuda.synchronize()
            copied[0] += _COPY_BYTES

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    began, said = time.monotonic(), list[int]()
    link = None
    nvml = import_nvml_bindings()
    nvml.nvmlInit()
    while time.monotonic() - began < _COPY_S:
        link = read_pcie_link(uuid)
        said += _throughput(nvml)
    done.set()
    thread.join()
    seconds = time.monotonic() - began
    return {
        "bytes_s": copied[0] / seconds,
        "link": to_plain(link),
        "nvml_bytes_s": sorted(said)[len(said) // 2] * _KIB if said else None,
    }


def _throughput(nvml: Any) -> list[int]:
    """Return the KiB a second that the GPU receives, over 20 ms; empty if NVML cannot say."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        return [nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)]
    except nvml.NVMLError:
        return []


def measure_comm(scene: Scene) -> dict[str, Any]:
    """Run `hpckit bench comm` with one GPU."""
    if not scene.machine.on_gpu:
        raise NotRunError("torch sees no GPU to copy to")
    words = ("cluster=local", "cluster.gpus_per_node=1", "resources=one_gpu", "--time-s", "10")
    text = scene.call("bench", "comm", *words, "--json", codes=(0, 1))
    said = json.loads(text)
    kept = ("operations", "findings", "healthy", "seconds", "links", "torch", "nccl")
    return {key: said.get(key) for key in kept}
