"""Counts, shares and sizes as text for people."""

from __future__ import annotations

from collections.abc import Sequence

_KIB = 1024


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural: `1 run`, `2 runs`, `2 launches`."""
    plural = "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def whole_percent(share: float | None) -> str:
    """Return a share of 1 without decimals, as `94 %`; empty if it is unknown."""
    return "" if share is None else f"{share:.0%}".replace("%", " %")


def steps_text(step: int | None, total: int | None = None) -> str:
    """Return a step as people count it, `600 of 600`; `step` is as recorded, from 0, or unknown."""
    if step is None:
        return ""
    return f"{step + 1} of {total}" if total is not None and step < total else str(step + 1)


def size_text(size: int) -> str:
    """Return a number of bytes in a suitable unit: `1.2 GiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < _KIB:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KIB
    return f"{amount:.1f} TiB"
