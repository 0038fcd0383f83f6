"""The GPUs that `hpckit plan` knows: what each can compute, hold and send, and its power. Pure.

Peaks are dense, without sparsity; those of 32 bits are of plain fp32, as torch computes unless TF32
is allowed. None is of fp8, which is not planned with. Memory is what the driver reports.
`reachable` is the share of the peak that the best matrix product reaches, measured by others (Stas
Bekman, "Machine Learning Engineering", maximum achievable matmul FLOPS); those without a
measurement have that of their generation. `flash` is the share that flash attention reaches, its
mask counted: on A100, Dao 2023 ("FlashAttention-2") gives 50 to 73 %; on H100, 335 TFLOP/s, as
these kernels were made for A100 (Shah et al. 2024, "FlashAttention-3"). Others are assumed to reach
that part of the best product that A100 does.
"""

from __future__ import annotations

from typing import Any

from hpckit.model.capacity.gpu_spec import GpuSpec

_FLASH_OF_REACHABLE = 0.6
_GB = 1e9


def _gpu(
    name: str,
    mib: int,
    tera: float,
    tera_fp32: float,
    *,
    memory: float,
    bf16: bool = True,
    **more: Any,
) -> GpuSpec:
    """Return a GPU: MiB, TFLOP/s in 16 and 32 bits, GB/s of memory; the rest as GpuSpec has it."""
    defaults = {"node_source": "assumed: no data sheet of a node was taken"}
    links = {key: more.pop(key) * _GB for key in ("link", "network")}
    flash = more.pop("flash", _FLASH_OF_REACHABLE * more["reachable"])
    return GpuSpec(
        name=name,
        memory=mib * 2**20,
        flops_fp16=tera * 1e12,
        flops_bf16=tera * 1e12 if bf16 else None,
        flops_fp32=tera_fp32 * 1e12,
        bandwidth=memory * _GB,
        flash=flash,
        **links,
        **defaults | more,
    )


_A100: dict[str, Any] = {
    "link": 300,
    "network": 25,
    "power_w": 400,
    "node_w": 812,
    "reachable": 0.869,
    "source": "NVIDIA A100 data sheet (SXM); network of a DGX A100",
    "node_source": "6.5 kW of a DGX A100 over 8",
}
_HOPPER: dict[str, Any] = {
    "link": 450,
    "network": 50,
    "power_w": 700,
    "node_w": 1275,
    "reachable": 0.803,
    "flash": 0.34,
    "node_source": "10.2 kW of a DGX H100 over 8",
}

GPUS: dict[str, GpuSpec] = {
    one.name: one
    for one in (
        _gpu(
            *("V100", 32510, 125, 15.7),
            memory=900,
            bf16=False,  # its tensor cores multiply fp16 alone
            link=150,
            network=12.5,
            power_w=300,
            node_w=440,
            reachable=0.8,
            source="NVIDIA V100 data sheet (SXM2); network of a DGX-1",
            node_source="3.5 kW of a DGX-1 over 8",
        ),
        _gpu("A100-40", 40536, 312, 19.5, memory=1555, **_A100),
        _gpu("A100-80", 81920, 312, 19.5, memory=2039, **_A100),
        _gpu(
            *("H100-SXM", 81559, 989.4, 66.9),
            memory=3352,
            source="NVIDIA H100 data sheet (SXM5); network of a DGX H100",
            **_HOPPER,
        ),
        _gpu(
            *("H100-PCIe", 81559, 756, 51.2),
            memory=2039,
            link=63,
            network=25,
            power_w=350,
            node_w=600,
            reachable=0.8,
            flash=0.34,
            source="NVIDIA H100 PCIe product brief; PCIe 5.0 x16",
        ),
        _gpu(
            *("H200", 143771, 989.4, 66.9),
            memory=4800,
            source="NVIDIA H200 data sheet (SXM); network of a DGX H200",
            **_HOPPER,
        ),
        _gpu(
            *("B200", 183359, 2250, 75),
            memory=8000,
            link=900,
            network=50,
            power_w=1000,
            node_w=1790,
            reachable=0.776,
            source="NVIDIA DGX B200 data sheet",
            node_source="14.3 kW of a DGX B200 over 8",
        ),
        _gpu(
            *("GB200", 189471, 2500, 80),
            memory=8000,
            link=900,
            network=100,
            power_w=1200,
            node_w=1670,
            domain=72,
            reachable=0.776,
            source="NVIDIA GB200 NVL72 data sheet",
            node_source="120 kW of an NVL72 rack over 72",
        ),
        _gpu(
            *("L40S", 46068, 362, 91.6),
            memory=864,
            link=31,
            network=25,
            power_w=350,
            node_w=600,
            reachable=0.8,
            source="NVIDIA L40S data sheet; PCIe 4.0 x16",
        ),
        _gpu(
            *("RTX-4090", 24564, 165.2, 82.6),
            memory=1008,
            link=31,
            network=3.1,
            power_w=450,
            node_w=600,
            domain=4,
            reachable=0.8,
            source="NVIDIA Ada GPU architecture white paper; PCIe 4.0 x16",
        ),
        _gpu(
            *("MI300X", 196592, 1307.4, 163.4),
            memory=5300,
            link=448,
            network=50,
            power_w=750,
            node_w=1400,
            reachable=0.514,
            source="AMD Instinct MI300X data sheet",
        ),
    )
}
"""The catalogue by name; docs/reference/gpus.md is made from it."""
