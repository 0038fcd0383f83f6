"""A count with its noun."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural: `1 run`, `2 runs`, `2 launches`."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"
