"""Whether a user's loss is a mean over rows: another one would follow from the layout, silently."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger("hpckit.rank")
_LEAST = 2


@dataclass(slots=True, kw_only=True)
class RowMeanCheck:
    """Compares the loss of some rows with those of their halves; looks at the first two or more.

    `problem` says what was found. It is empty if the loss is a mean over rows, or if nothing can be
    said: its value is drawn, or what it takes cannot be cut into rows.
    """

    problem: str = ""
    _kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _done: bool = False

    def see(self, function: Callable[[Any, Any], Any], outputs: Any, targets: Any) -> None:
        """Look at a part of a batch; a single row is kept until the next one comes."""
        if self._done:
            return
        if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or not outputs.dim():
            self._done = True
            return
        self._kept.append((outputs.detach(), targets))
        if sum(len(one) for one, _ in self._kept) >= _LEAST:
            self._compare(function)

    def end(self, function: Callable[[Any, Any], Any]) -> None:
        """Look at a single row, if there was no more: twice the row has to have its loss, too."""
        if self._kept and not self._done:
            self._kept *= 2
            self._compare(function)

    def _compare(self, function: Callable[[Any, Any], Any]) -> None:
        outputs, targets = (torch.cat(ones) for ones in zip(*self._kept, strict=True))
        self._kept, self._done = [], True
        rows, half = len(outputs), len(outputs) // 2
        cuts = [slice(0, rows), slice(0, rows), slice(0, half), slice(half, rows)]
        on_gpu = [outputs.device] if outputs.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices=on_gpu), torch.no_grad():
                values = [function(outputs[cut], targets[cut]) for cut in cuts]
        except Exception as error:  # noqa: BLE001  # the user's code, in a way it was not made for
            _log.debug("the loss could not be compared with that of its rows: %s", error)
            return
        coarse = min((outputs.dtype, values[0].dtype), key=_digits)
        whole, again, first, second = map(float, values)
        if whole == again:
            self.problem = _difference(rows, whole, first, second, _tolerance(coarse))


def _difference(rows: int, whole: float, first: float, second: float, tolerance: float) -> str:
    half = rows // 2
    mean = (first * half + second * (rows - half)) / rows
    if not abs(whole - mean) > tolerance * max(abs(whole), abs(first), abs(second)):
        return ""
    return (
        f"it is {whole:.6g} for {rows} rows, and the mean of its values for their halves is "
        f"{mean:.6g}"
    )


def _digits(dtype: torch.dtype) -> float:
    return -torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def _tolerance(dtype: torch.dtype) -> float:
    """Return the relative difference that rounding may make: half of the digits."""
    return float(torch.finfo(dtype).eps) ** 0.5 if dtype.is_floating_point else 0.0
