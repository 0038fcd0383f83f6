"""What a run logged: rows, the rounds that wrote them, and which of their values were undone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hpckit.model.plain import LARGEST, is_within
from hpckit.values import dataclass

Step = int | float

RowPlace = tuple[int, int]
"""Who wrote a row: the attempt, from 1, and the round, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One call of `run.log(...)`: `at` is UTC as recorded; `step` is null if it has none.

    `run_step` is the step of the run in which it was logged, if `step` is another number, such as
    one that counts from 1, or samples.
    """

    place: RowPlace
    step: Step | None
    at: str
    values: Mapping[str, Any]
    run_step: Step | None = None

    @property
    def done_in(self) -> Step | None:
        """The step of the run in which it was logged, as far as is known."""
        return self.step if self.run_step is None else self.run_step


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStart:
    """A round whose ranks began at this step: what earlier rounds did from there is undone."""

    place: RowPlace
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRow:
    """A row, and the names of those of its values that were undone."""

    row: MetricRow
    undone: frozenset[str] = frozenset()

    def live(self) -> Mapping[str, Any]:
        """Return the values that still hold."""
        if not self.undone:
            return self.row.values
        return {name: one for name, one in self.row.values.items() if name not in self.undone}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """One value of a row, by itself."""

    place: RowPlace
    step: Step | None
    at: str
    key: str
    value: Any
    undone: bool


def each_value(judged: JudgedRow) -> Iterator[MetricValue]:
    """Yield the values of a row, undone ones as well."""
    row = judged.row
    for key, value in row.values.items():
        yield MetricValue(
            place=row.place,
            step=row.step,
            at=row.at,
            key=key,
            value=value,
            undone=key in judged.undone,
        )


def recorded_step(step: object) -> Step | None:
    """Return a step as recorded, a whole one as int; None for what is no number of 64 bits."""
    if not isinstance(step, int | float) or isinstance(step, bool) or not is_within(step, LARGEST):
        return None
    return int(step) if step == int(step) else step


_NOT_FINITE = frozenset({"nan", "inf", "-inf"})
"""How `run.log` writes numbers that JSON lacks."""


def number_of(value: object) -> float | int | None:
    """Return a value as a number, which may be NaN or infinite; None for texts and null.

    True is 1 and False is 0. What no float can hold is infinite.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and not is_within(value):
        return math.inf if value > 0 else -math.inf
    if isinstance(value, int | float):
        return value
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else None
