"""How far training is: in steps, in samples, and in batches. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of training: steps done, and samples seen by all ranks together.

    `batches` is how many batches of the size that was asked for the steps had; steps may have had
    smaller ones (`parallel.batch`).
    """

    step: int
    samples: int = 0
    batches: Fraction = Fraction(0)
