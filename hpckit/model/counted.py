"""Counts and shares as text for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural: `1 run`, `2 runs`, `2 launches`."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def whole_percent(share: float | None) -> str:
    """Return a share of 1 without decimals, as `94 %`; empty if it is unknown."""
    return "" if share is None else f"{share:.0%}".replace("%", " %")
