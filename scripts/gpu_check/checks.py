"""Collects what is wrong with measured values, and what they should have been. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Checks:
    """The judgement of an item: `problems` is empty if it passed."""

    problems: list[str] = field(default_factory=list)
    expected: dict[str, str] = field(default_factory=dict)
    figures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def between(self, name: str, value: Any, low: float, high: float, unit: str = "") -> None:
        """Expect a finite number from `low` to `high`."""
        wanted = f"{low:.6g} to {high:.6g}{unit and ' ' + unit}"
        self.expected[name] = wanted
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.problems.append(f"{name} was not measured: {value!r}")
        elif not low <= value <= high:
            self.problems.append(f"{name} is {value:.6g}, expected is {wanted}")

    def at_least(self, name: str, value: Any, low: float, unit: str = "") -> None:
        """Expect a number that is not smaller."""
        self.between(name, value, low, math.inf, unit)

    def close(self, name: str, value: Any, other: Any, tolerance: float, unit: str = "") -> None:
        """Expect a number within a share of another one."""
        if not isinstance(other, int | float) or not math.isfinite(other):
            self.problems.append(f"what {name} is compared with was not measured: {other!r}")
            return
        around = abs(other) * tolerance
        self.between(name, value, other - around, other + around, unit)

    def equal(self, name: str, value: Any, wanted: Any) -> None:
        """Expect a value."""
        self.expected[name] = repr(wanted)
        if value != wanted:
            self.problems.append(f"{name} is {value!r}, expected is {wanted!r}")

    def one_of(self, name: str, value: Any, wanted: Iterable[Any]) -> None:
        """Expect one of some values."""
        allowed = tuple(wanted)
        self.expected[name] = f"one of {allowed}"
        if value not in allowed:
            self.problems.append(f"{name} is {value!r}, expected is one of {allowed}")

    def true(self, name: str, value: Any) -> None:
        """Expect something to hold."""
        self.expected[name] = "yes"
        if not value:
            self.problems.append(f"{name}: no")
