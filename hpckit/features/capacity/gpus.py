"""GPUs by name: of the catalogue, as a driver calls them, and a site's own by numbers. Pure.

The catalogue is gpus.toml, with its sources.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpckit.errors import ConfigError
from hpckit.features.capacity.model_setup import GpuSpec
from hpckit.features.capacity.presets import suggest_near_names
from hpckit.patterns import lazy_pattern
from hpckit.values import replace

_FLASH_OF_REACHABLE = 0.6

_NUMBERS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "memory_gib": (2**30, ("memory",)),
    "tflops": (1e12, ("flops_fp16", "flops_bf16")),
    "tflops_fp32": (1e12, ("flops_fp32",)),
    "memory_gb_per_s": (1e9, ("bandwidth",)),
    "link_gb_per_s": (1e9, ("link",)),
    "network_gb_per_s": (1e9, ("network",)),
    "power_w": (1, ("power_w",)),
    "node_w": (1, ("node_w",)),
}
"""What a site says of its own GPU: the factor to GpuSpec's unit, and the fields that it sets."""
_NEEDED = tuple(number for number in _NUMBERS if number != "node_w")
"""Without a GPU of the catalogue that it is like."""
LINKED = "gpus_per_link"
_NAME = "name"
_KNOWN = (*_NUMBERS, LINKED, _NAME)
_MOST = 1e9
_MOST_JOINED = 1024
_NUMBER = lazy_pattern(r"[0-9]{1,9}(\.[0-9]{1,9})?(e[0-9]{1,2})?")
_NAMED = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_USUAL_NODE = 1.8
"""Power of a GPU with its part of the node, of that of the GPU, if nothing is said."""
_EXAMPLE = "'H100-SXM memory_gib=94 network_gb_per_s=25'"


_CATALOGUE = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))


def _build_catalogue_gpu(name: str, about: Mapping[str, Any]) -> GpuSpec:
    values: dict[str, Any] = {
        "memory": about["memory_mib"] * 2**20,
        "domain": about.get(LINKED, 8),
        "flash": _FLASH_OF_REACHABLE * about["reachable"],
        "node_source": "assumed: no data sheet of a node was taken",
    }
    for key, value in about.items():
        factor, fields = _NUMBERS.get(key, (None, (key,)))
        if key not in ("memory_mib", LINKED, "driver", "bf16"):
            values |= dict.fromkeys(fields, value if factor is None else value * factor)
    if not about.get("bf16", True):
        values["flops_bf16"] = None
    return GpuSpec(name=name, **values)


GPUS = {name: _build_catalogue_gpu(name, about) for name, about in _CATALOGUE.items()}
"""The catalogue by name."""


def parse_gpu(text: str) -> GpuSpec:
    """Return a GPU by its name or by numbers; raises ConfigError.

    Numbers follow the GPU of the catalogue that it is like, if any: of that it has the rest. Units
    are in their names; rates of links are those of one direction. `tflops` is the dense peak in 16
    bits, `gpus_per_link` how many GPUs the fast link joins.

    Example: `parse_gpu("A100-80 network_gb_per_s=12.5")` has half the network of a DGX A100.
    """
    words = text.split()
    if not words or (len(words) == 1 and "=" not in words[0]):
        return find_catalogue_gpu(text.strip())
    like = None if "=" in words[0] else find_catalogue_gpu(words[0])
    given = _parse_gpu_words(words if like is None else words[1:])
    name = given.pop(_NAME, None)
    if name is not None and not _NAMED.fullmatch(name):
        raise ConfigError(
            f"GPU: name={name!r} is not a name", hint="letters, digits, dots and dashes, 40 at most"
        )
    joined = given.pop(LINKED, None)
    values: dict[str, Any] = {}
    for key, value in given.items():
        factor, fields = _NUMBERS[key]
        values |= dict.fromkeys(fields, _parse_gpu_number(key, value) * factor)
    if joined is not None:
        values["domain"] = _parse_gpus_per_fast_link(joined)
    if "node_w" in given:
        values["node_source"] = "given with the GPU"
    shown = name or " ".join(words)
    if like is not None:
        return _modify_catalogue_gpu(like, shown, values)
    missing = [key for key in _NEEDED if key not in given]
    if missing:
        raise ConfigError(
            f"GPU {text!r}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            hint=f"give them, or name the GPU of the catalogue that it is like first: {_EXAMPLE}",
        )
    usual: dict[str, Any] = {
        "node_w": values["power_w"] * _USUAL_NODE,
        "node_source": f"assumed: {_USUAL_NODE:g} times the GPU",
    }
    return _check_node_power_covers_gpu(GpuSpec(name=shown, source="given by numbers", **usual | values))


def _modify_catalogue_gpu(like: GpuSpec, name: str, values: Mapping[str, Any]) -> GpuSpec:
    more = {}
    if "power_w" in values and "node_w" not in values:
        more["node_w"] = like.node_w - like.power_w + values["power_w"]
        more["node_source"] = f"{like.node_source}, with another GPU"
    found = replace(like, name=name, like=like.name, source=f"as {like.name}, with what was given")
    if like.flops_bf16 is None:
        values = {**values, "flops_bf16": None}
    return _check_node_power_covers_gpu(replace(found, **{**more, **values}))


def _check_node_power_covers_gpu(gpu: GpuSpec) -> GpuSpec:
    if gpu.node_w < gpu.power_w:
        raise ConfigError(
            f"GPU {gpu.name}: node_w={gpu.node_w:g} is less than power_w={gpu.power_w:g}",
            hint="node_w is the power of a GPU with its part of the node",
        )
    return gpu


def _parse_gpu_words(words: list[str]) -> dict[str, str]:
    """Return what key=value words say; raises ConfigError."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key in found:
            raise ConfigError(f"GPU: {key} is given twice", hint="give each number once")
        if not equals or key not in _KNOWN:
            near = suggest_near_names(key, _KNOWN)
            raise ConfigError(
                f"GPU: {word!r} is not a known number of a GPU{near}",
                hint=f"known are {', '.join(_KNOWN)}; for example {_EXAMPLE}",
            )
        found[key] = value
    return found


def _parse_gpu_number(key: str, value: str) -> float:
    number = float(value) if _NUMBER.fullmatch(value) else math.nan
    if not 0 < number <= _MOST:
        raise ConfigError(
            f"GPU: {key}={value!r} must be a number above 0",
            hint=f"the unit is in the name: {key}=80, without a suffix",
        )
    return number


def _parse_gpus_per_fast_link(value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:6]) <= _MOST_JOINED:
        raise ConfigError(
            f"GPU: {LINKED}={value!r} must be a whole number from 1 to {_MOST_JOINED}",
            hint="how many GPUs the fast link joins: those of a node, or of a rack",
        )
    return int(value)


def find_catalogue_gpu(name: str) -> GpuSpec:
    """Return a GPU of the catalogue; raises ConfigError. Capitals do not matter.

    Example: `find_catalogue_gpu("h100-sxm").power_w` is 700.
    """
    for known, spec in GPUS.items():
        if known.lower() == name.lower():
            return spec
    raise ConfigError(
        f"GPU {name!r} is not in the catalogue{suggest_near_names(name, GPUS)}",
        hint=f"known are {', '.join(GPUS)}; for another one give {', '.join(_NEEDED)}",
    )


def find_gpu_by_driver_name(device: str) -> GpuSpec | None:
    """Return the GPU that a driver calls so; None if none of the catalogue, or several, might be.

    Example: `find_gpu_by_driver_name("NVIDIA H100 80GB HBM3")` is H100-SXM.
    """
    words = device.upper().replace("-", " ").split()
    for name, about in _CATALOGUE.items():
        if all(any(word.startswith(prefix) for word in words) for prefix in about["driver"]):
            return GPUS[name]
    return None
