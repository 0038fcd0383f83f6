"""Promises of records: a number is refused for what it means, not for how its name ends.

And of documents: they are made of names of fields.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import hpckit.model
from hpckit.model.environment.health import DeviceSpeed
from hpckit.model.plain import LONGEST_S, attributes_to_json, from_plain

OF_A_GPU = {
    "device": "GPU-1",
    "name": "NVIDIA H200",
    "matmul_flops": 7.9e14,
    "copy_bytes_s": 4.3e12,
    "to_device_bytes_s": 5.5e10,
    "to_host_bytes_s": 5.5e10,
    "all_reduce_bytes_s": 4.8e11,
}
"""As measured on an H200, and by others between eight of them."""


def test_speed_of_a_large_gpu_is_read() -> None:
    """Bytes a second are no seconds: the rates of a GPU are far above the longest time."""
    speed = from_plain(DeviceSpeed, OF_A_GPU)
    assert {key: getattr(speed, key) for key in OF_A_GPU} == OF_A_GPU


def rates() -> set[str]:
    """Return the names of the fields of the model that are rates of bytes or bits."""
    names: set[str] = set()
    modules = [package.name for package in pkgutil.walk_packages(hpckit.model.__path__, "hpckit.model.")]
    for module in (*modules, "hpckit.features.interconnect.model"):
        for kind in vars(importlib.import_module(module)).values():
            if inspect.isclass(kind) and dataclasses.is_dataclass(kind):
                names |= {field.name for field in dataclasses.fields(kind)}
    return {name for name in names if re.search(r"(bytes|bit)(_per)?_s$", name)}


def test_no_rate_of_the_model_is_bounded_as_a_time() -> None:
    """Each takes what eight linked GPUs carry."""
    found = rates()
    assert found >= {"copy_bytes_s", "bytes_per_s", "gbit_per_s"}
    for name in found:
        kind = dataclasses.make_dataclass("Rate", [(name, float)])
        assert from_plain(kind, {name: 1e13}) == kind(1e13)


def test_time_of_a_thousand_years_is_refused() -> None:
    """A time beyond what a calendar has would end what computes with it."""

    @dataclasses.dataclass(frozen=True)
    class Timed:
        took_s: float

    with pytest.raises(ValueError, match=r"took_s: .* is out of range"):
        from_plain(Timed, {"took_s": LONGEST_S * 2})


def test_document_is_made_of_names_of_fields() -> None:
    """In their order, with names of its own; what is within a None, or of one, is null."""

    @dataclasses.dataclass(frozen=True)
    class Inner:
        folder: Path

    @dataclasses.dataclass(frozen=True)
    class Outer:
        size: int
        inner: Inner | None

    found = attributes_to_json(Outer(7, Inner(Path("/data"))), "dir=inner.folder bytes=size", "inner")
    assert list(found.items()) == [("dir", "/data"), ("bytes", 7), ("inner", {"folder": "/data"})]
    assert attributes_to_json(Outer(7, None), "dir=inner.folder size") == {"dir": None, "size": 7}
    assert attributes_to_json(None, "size dir=inner.folder") == {"size": None, "dir": None}
    with pytest.raises(AttributeError, match="length"):
        attributes_to_json(Outer(7, None), "length")
