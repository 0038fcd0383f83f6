"""What a user gives for the loss of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

LossFunction = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor | float]]
"""Takes outputs and targets of some rows; returns a mean over them, or a sum and its weight."""
