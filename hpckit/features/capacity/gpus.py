"""GPUs by name: of the catalogue, as a driver calls them, and a site's own by numbers. Pure.

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

import math
import re
from collections.abc import Mapping
from typing import Any

from hpckit.errors import ConfigError
from hpckit.features.capacity.model_setup import GpuSpec
from hpckit.features.capacity.presets import near_names
from hpckit.values import replace

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


_NUMBERS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "memory_gib": (2**30, ("memory",)),
    "tflops": (1e12, ("flops_fp16", "flops_bf16")),
    "tflops_fp32": (1e12, ("flops_fp32",)),
    "memory_gb_per_s": (1e9, ("bandwidth",)),
    "link_gb_per_s": (1e9, ("link",)),
    "network_gb_per_s": (1e9, ("network",)),
    "power_w": (1.0, ("power_w",)),
    "node_w": (1.0, ("node_w",)),
}
"""What a site says of its own GPU: the factor to GpuSpec's unit, and the fields that it sets."""
_NEEDED = tuple(one for one in _NUMBERS if one != "node_w")
"""Without a GPU of the catalogue that it is like."""
LINKED = "gpus_per_link"
_NAME = "name"
_KNOWN = (*_NUMBERS, LINKED, _NAME)
_MOST = 1e9
_MOST_JOINED = 1024
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?(e[0-9]{1,2})?")
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_USUAL_NODE = 1.8
"""Power of a GPU with its part of the node, of that of the GPU, if nothing is said."""
_EXAMPLE = "'H100-SXM memory_gib=94 network_gb_per_s=25'"


def read_gpu(text: str) -> GpuSpec:
    """Return a GPU by its name or by numbers; raises ConfigError.

    Numbers follow the GPU of the catalogue that it is like, if any: of that it has the rest. Units
    are in their names; rates of links are those of one direction. `tflops` is the dense peak in 16
    bits, `gpus_per_link` how many GPUs the fast link joins.

    Example: `read_gpu("A100-80 network_gb_per_s=12.5")` has half the network of a DGX A100.
    """
    words = text.split()
    if not words or (len(words) == 1 and "=" not in words[0]):
        return gpu_named(text.strip())
    like = None if "=" in words[0] else gpu_named(words[0])
    given = _pairs(words if like is None else words[1:])
    name = given.pop(_NAME, None)
    if name is not None and not _NAMED.fullmatch(name):
        raise ConfigError(
            f"GPU: name={name!r} is no name", hint="letters, digits, dots and dashes, 40 at most"
        )
    joined = given.pop(LINKED, None)
    values: dict[str, Any] = {}
    for key, value in given.items():
        factor, fields = _NUMBERS[key]
        values |= dict.fromkeys(fields, _number(key, value) * factor)
    if joined is not None:
        values["domain"] = _joined(joined)
    if "node_w" in given:
        values["node_source"] = "given with the GPU"
    shown = name or " ".join(words)
    if like is not None:
        return _changed(like, shown, values)
    missing = [one for one in _NEEDED if one not in given]
    if missing:
        raise ConfigError(
            f"GPU {text!r}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            hint=f"give them, or name the GPU of the catalogue that it is like first: {_EXAMPLE}",
        )
    usual: dict[str, Any] = {
        "node_w": values["power_w"] * _USUAL_NODE,
        "node_source": f"assumed: {_USUAL_NODE:g} times the GPU",
    }
    return _checked(GpuSpec(name=shown, source="given by numbers", **usual | values))


def _changed(like: GpuSpec, name: str, values: Mapping[str, Any]) -> GpuSpec:
    """Return a GPU that differs from one of the catalogue in these values."""
    more = {}
    if "power_w" in values and "node_w" not in values:
        more["node_w"] = like.node_w - like.power_w + values["power_w"]
        more["node_source"] = f"{like.node_source}, with another GPU"
    found = replace(like, name=name, like=like.name, source=f"as {like.name}, with what was given")
    if like.flops_bf16 is None:
        values = {**values, "flops_bf16": None}
    return _checked(replace(found, **{**more, **values}))


def _checked(gpu: GpuSpec) -> GpuSpec:
    if gpu.node_w < gpu.power_w:
        raise ConfigError(
            f"GPU {gpu.name}: node_w={gpu.node_w:g} is less than power_w={gpu.power_w:g}",
            hint="node_w is the power of a GPU with its part of the node",
        )
    return gpu


def _pairs(words: list[str]) -> dict[str, str]:
    """Return what key=value words say; raises ConfigError."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key in found:
            raise ConfigError(f"GPU: {key} is given twice", hint="give each number once")
        if not equals or key not in _KNOWN:
            near = near_names(key, _KNOWN)
            raise ConfigError(
                f"GPU: {word!r} is no number of a GPU{near}",
                hint=f"known are {', '.join(_KNOWN)}; for example {_EXAMPLE}",
            )
        found[key] = value
    return found


def _number(key: str, value: str) -> float:
    number = float(value) if _NUMBER.fullmatch(value) else math.nan
    if not 0 < number <= _MOST:
        raise ConfigError(
            f"GPU: {key}={value!r} is no number above 0",
            hint=f"the unit is in the name: {key}=80, without a suffix",
        )
    return number


def _joined(value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:6]) <= _MOST_JOINED:
        raise ConfigError(
            f"GPU: {LINKED}={value!r} is no whole number from 1 to {_MOST_JOINED}",
            hint="how many GPUs the fast link joins: those of a node, or of a rack",
        )
    return int(value)


def gpu_named(name: str) -> GpuSpec:
    """Return a GPU of the catalogue; raises ConfigError. Capitals do not matter.

    Example: `gpu_named("h100-sxm").power_w` is 700.
    """
    for known, spec in GPUS.items():
        if known.lower() == name.lower():
            return spec
    raise ConfigError(
        f"GPU {name!r} is not in the catalogue{near_names(name, GPUS)}",
        hint=f"known are {', '.join(GPUS)}; of another one give {', '.join(_NEEDED)}",
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
