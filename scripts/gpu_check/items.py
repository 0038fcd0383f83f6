"""The table of items, in the order of their worth: what measures and judges, and its limit."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_check import judging
from gpu_check.checks import Checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item. `measure` is `module:function` of `gpu_check.measuring`, imported where it runs.

    `limit_s` bounds it by itself; `usual_s` is what it takes on an H100.
    """

    name: str
    about: str
    measure: str
    judge: Callable[[Mapping[str, Any]], Checks]
    limit_s: int
    usual_s: int

    def measuring(self) -> Callable[[Any], dict[str, Any]]:
        """Import and return the function that measures."""
        module, name = self.measure.split(":")
        return getattr(importlib.import_module(f"gpu_check.measuring.{module}"), name)  # type: ignore[no-any-return]


def _item(name: str, about: str, measure: str, limit_s: int, usual_s: int) -> Item:
    judge = getattr(judging, f"judge_{name}")
    return Item(name=name, about=about, measure=measure, judge=judge, limit_s=limit_s, usual_s=usual_s)


ITEMS: Mapping[str, Item] = {
    one.name: one
    for one in (
        _item("nvml", "NVML's answers, idle and loaded, recorded", "nvml:measure_nvml", 40, 20),
        _item("energy", "energy of a known load", "energy:measure_energy", 60, 30),
        _item("memory", "GPT-2 beside its plan", "training:measure_memory", 150, 125),
        _item("layouts", "each layout of one rank", "training:measure_layouts", 100, 47),
        _item("preflight", "inspections, fast and medium", "node:measure_preflight", 70, 31),
        _item("transfers", "host to GPU, PCIe under load", "node:measure_transfers", 50, 17),
        _item("oom", "memory that runs out", "faults:measure_oom", 45, 20),
        _item("profile", "a profile of five steps", "training:measure_profile", 60, 28),
        _item("recorder", "a stopped rank, by NCCL and gloo", "faults:measure_recorder", 120, 96),
        _item("comm", "bench comm", "node:measure_comm", 60, 30),
        _item("charlm", "charlm beside its plan", "training:measure_charlm", 40, 14),
    )
}
