"""How many of something, in words. It must not know of what."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s for more than one: `1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
