"""Numbers in words: `0-3, 7`. It must not know what they count."""

from __future__ import annotations

from collections.abc import Iterable


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in words, smallest first: `0-3, 7`."""
    pieces: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if pieces and pieces[-1][1] == number - 1:
            pieces[-1] = (pieces[-1][0], number)
        else:
            pieces.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in pieces)
