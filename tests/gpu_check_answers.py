"""What `scripts/gpu-check` measures on a healthy GPU, item by item: rounded figures of an H100."""

from __future__ import annotations

from typing import Any

_GIB = 2**30
_GPU_BYTES = 85_520_809_984
_SUPPORTED = [
    *("busy_share", "memory_used_bytes", "temperature_c", "power_w", "power_limit_w"),
    *("energy_j", "ecc_uncorrected"),
]
_LINK = {"pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16}


def right_answers() -> dict[str, dict[str, Any]]:
    """Return the measured values of every item, for a test to make one of them wrong."""
    return {
        "nvml": _nvml(),
        "energy": _energy(),
        "memory": {"gpu": "H100-SXM", "on_gpu": True, "left_out": [], "rows": [_training()]},
        "charlm": {"on_gpu": True, **_training()},
        "layouts": _layouts(),
        "preflight": {level: _inspection(level) for level in ("fast", "medium")},
        "transfers": _transfers(),
        "comm": _comm(),
        "profile": _profile(),
        "oom": _oom(),
        "recorder": {
            "on_gpu": True,
            "ways": {
                **{name: _way("hang") for name in ("gloo", "nccl")},
                **{name: _way("communication") for name in ("nccl timeout", "nccl alone")},
            },
        },
    }


def _sample(busy: float, watts: float, joules: float) -> dict[str, Any]:
    gauges = {"busy_share": busy, "power_w": watts, "power_limit_w": 700, "temperature_c": 40}
    gauges |= {"sm_clock_mhz": 1980, "memory_used_bytes": 1e9}
    return {"gauges": gauges, "counters": {"energy_j": joules}, "reasons": [], "troubles": []}


def _nvml() -> dict[str, Any]:
    name = "NVIDIA H100 80GB HBM3"
    device = {"name": name, "memory_bytes": _GPU_BYTES, "driver": "580.159.04"}
    return {
        "torch": {"name": name, "memory_bytes": _GPU_BYTES},
        "devices": [{**device, "supported": list(_SUPPORTED)}],
        "idle": _sample(0.0, 70, 1000),
        "loaded": _sample(1.0, 650, 4000),
        "health": [{}],
        "events": [],
        "calls": 205,
    }


def _energy() -> dict[str, Any]:
    span = {"seconds": 10.0, "counter_j": 6500.0, "power_times_time_j": 6480.0}
    return {
        "failure": "",
        "whole": dict(span),
        "load": dict(span),
        "recorded": {"total_j": 6490.0, "estimated_share": 0.0},
        "window_counter_j": 6500.0,
        "window_s": 12.0,
    }


def _training() -> dict[str, Any]:
    return {
        "case": "gpt2, 4 rows",
        "failure": "",
        "used_bytes": 10 * _GIB,
        "low_bytes": 9 * _GIB,
        "planned_bytes": 10 * _GIB,
        "high_bytes": 11 * _GIB,
        "step_s": 0.15,
        "planned_step_s": 0.1,
    }


def _layouts() -> dict[str, Any]:
    row = {"failure": "", "first_loss": 5.6, "loss": 4.0, "step_s": 0.02, "graphs": 0}
    names = ("none, fp32", "none, bf16", "fsdp, bf16", "tensor, bf16")
    rows = {name: {**row, "peak_bytes": _GIB} for name in names}
    rows["fsdp, bf16, compiled"] = {**row, "graphs": 2}
    return {"on_gpu": True, "left_out": [], "rows": rows}


def _inspection(level: str) -> dict[str, Any]:
    return {
        "failure": "",
        "inspections": [{"level": level, "took_s": 4.0, "fine": ["n1"], "lost": []}],
        "nodes": [{"node": "n1", "level": level, "verdict": "ok", "findings": []}],
        "warnings": [],
    }


def _transfers() -> dict[str, Any]:
    return {
        "idle_link": {**_LINK, "pcie_generation": 1},
        "speed": {
            "problem": "",
            "repeats": True,
            "matmul_flops": 7e14,
            "copy_bytes_s": 2.5e12,
            "to_device_bytes_s": 5.4e10,
            "to_host_bytes_s": 5.3e10,
            "pcie": dict(_LINK),
        },
        "loaded": {"bytes_s": 5.2e10, "nvml_bytes_s": 5.4e10, "link": dict(_LINK)},
    }


def _comm() -> dict[str, Any]:
    one = {"share": 1.1, "wrong_ranks": [], "bus_bytes_per_s": 5e10, "promise": "16 lanes"}
    names = ("host_to_device", "device_to_host")
    return {"healthy": True, "findings": [], "operations": [{**one, "operation": name} for name in names]}


def _profile() -> dict[str, Any]:
    summary: dict[str, Any] = {"on_gpu": True, "steps": 5, "wall_s": 0.2, "compute_s": 0.15, "exposed_s": 0.0}
    summary |= {"copy_s": 0.01, "idle_s": 0.04, "communication_s": 0.0}
    summary["top"] = [{"name": "sm90_xmma_gemm", "count": 50, "seconds": 0.05}]
    return {"on_gpu": True, "done": True, "problem": None, "bytes": 10**6, "summary": summary}


def _oom() -> dict[str, Any]:
    return {
        "state": "failed",
        "cause": "cuda_oom",
        "message": "OutOfMemoryError\nGPU memory: of 85.0 GB, this rank had allocated 80.0 GB",
        "figures": {"total_bytes": _GPU_BYTES, "allocated_bytes": 80 * 10**9, "reserved_bytes": 81 * 10**9},
        "snapshot": {"segment_bytes": 81 * 10**9, "entries_of_our_line": 26},
        "gpu_bytes": _GPU_BYTES,
    }


def _way(cause: str) -> dict[str, Any]:
    return {
        "wanted": cause,
        "cause": cause,
        "message": "rank 1 has not entered all_reduce #41",
        "verdicts": [],
        "dump_bytes": 4000,
        "collectives": {"rank": 0, "latest": "all_reduce"},
        "log": "",
    }
