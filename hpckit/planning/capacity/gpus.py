"""GPUs by name: what each can compute, hold and send, and what power it takes. Pure.

Peaks are dense, without sparsity, from the vendors' data sheets; those of 32 bits are of plain
fp32, as torch computes unless TF32 is allowed. None is of fp8, which is not planned with. Memory is
what the driver reports. `reachable` is the share of the peak that the best matrix product reaches,
measured by others (Stas Bekman's list of "maximum achievable matmul FLOPS"); those without a
measurement have that of their generation.
"""

from __future__ import annotations

from hpckit.errors import ConfigError
from hpckit.model.capacity.gpu_spec import GpuSpec
from hpckit.planning.capacity.presets import near_names

# name, MiB, TFLOP/s in 16 and 32 bits, GB/s of memory, link and network, W alone and with its part
# of the node, GPUs that the link joins, reachable share
_ROWS = (
    ("V100", 32510, 125, 15.7, 900, 150, 12.5, 300, 440, 8, 0.8),
    ("A100-40", 40536, 312, 19.5, 1555, 300, 25, 400, 812, 8, 0.869),
    ("A100-80", 81920, 312, 19.5, 2039, 300, 25, 400, 812, 8, 0.869),
    ("H100-SXM", 81559, 989.4, 66.9, 3352, 450, 50, 700, 1275, 8, 0.803),
    ("H100-PCIe", 81559, 756, 51.2, 2039, 63, 25, 350, 600, 8, 0.8),
    ("H200", 143771, 989.4, 66.9, 4800, 450, 50, 700, 1275, 8, 0.803),
    ("B200", 183359, 2250, 75, 8000, 900, 50, 1000, 1790, 8, 0.776),
    ("GB200", 189471, 2500, 80, 8000, 900, 100, 1200, 1670, 72, 0.776),
    ("L40S", 46068, 362, 91.6, 864, 31, 25, 350, 600, 8, 0.8),
    ("RTX-4090", 24564, 165.2, 82.6, 1008, 31, 3.1, 450, 600, 4, 0.8),
    ("MI300X", 196592, 1307.4, 163.4, 5300, 448, 50, 750, 1400, 8, 0.514),
)
_WITHOUT_BF16 = ("V100",)
"""Their tensor cores multiply fp16 alone; all others have the same peak in both."""

_NODES = {
    "V100": "3.5 kW of a DGX-1 over 8",
    **dict.fromkeys(("A100-40", "A100-80"), "6.5 kW of a DGX A100 over 8"),
    **dict.fromkeys(("H100-SXM", "H200"), "10.2 kW of a DGX H100 over 8"),
    "B200": "14.3 kW of a DGX B200 over 8",
    "GB200": "120 kW of an NVL72 rack over 72",
}
"""Where the power with a part of the node comes from: the most that a data sheet says."""
_ASSUMED_NODE = "assumed: no data sheet of a node was taken"

GPUS: dict[str, GpuSpec] = {
    name: GpuSpec(
        name=name,
        memory=mib * 2**20,
        flops_fp16=tera16 * 1e12,
        flops_bf16=None if name in _WITHOUT_BF16 else tera16 * 1e12,
        flops_fp32=tera32 * 1e12,
        bandwidth=memory * 1e9,
        link=link * 1e9,
        network=network * 1e9,
        power_w=power_w,
        node_w=node_w,
        domain=domain,
        reachable=reachable,
        node_source=_NODES.get(name, _ASSUMED_NODE),
    )
    for (
        name,
        mib,
        tera16,
        tera32,
        memory,
        link,
        network,
        power_w,
        node_w,
        domain,
        reachable,
    ) in _ROWS
}
"""The catalogue by name."""


def gpu_named(name: str) -> GpuSpec:
    """Return a GPU of the catalogue; raises ConfigError. Capitals do not matter.

    Example: `gpu_named("h100-sxm").power_w` is 700.
    """
    for known, spec in GPUS.items():
        if known.lower() == name.lower():
            return spec
    raise ConfigError(
        f"GPU {name!r} is not in the catalogue{near_names(name, GPUS)}",
        hint=f"known are {', '.join(GPUS)}",
    )


def gpu_called(device: str) -> GpuSpec | None:
    """Return the GPU that a driver calls so; None if none of the catalogue, or several, might be.

    Example: `gpu_called("NVIDIA H100 80GB HBM3")` is H100-SXM.
    """
    words = device.upper().replace("-", " ").split()
    for name, needed in _DRIVER_WORDS:
        if all(any(word.startswith(one) for word in words) for one in needed):
            return GPUS[name]
    return None


_DRIVER_WORDS = (
    ("A100-40", ("A100", "40GB")),
    ("A100-80", ("A100", "80GB")),
    ("H100-PCIe", ("H100", "PCIE")),
    ("H100-SXM", ("H100", "80GB", "HBM3")),
    ("H200", ("H200",)),
    ("GB200", ("GB200",)),
    ("B200", ("B200",)),
    ("L40S", ("L40S",)),
    ("RTX-4090", ("RTX", "4090")),
    ("V100", ("TESLA", "V100", "32GB")),
    ("MI300X", ("MI300X",)),
)
"""What the names that drivers give have, the narrower first."""
