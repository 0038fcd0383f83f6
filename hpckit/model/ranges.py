"""Numbers written as ranges: `0-3, 7`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PIECE = re.compile(r"(?P<first>\d{1,9})(?P<dash>-(?P<last>\d{1,9})?)?", re.ASCII)


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, smallest first: `0-3, 7`."""
    pieces: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if pieces and pieces[-1][1] == number - 1:
            pieces[-1] = (pieces[-1][0], number)
        else:
            pieces.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in pieces)


def parse_ranges(text: str, end: int) -> frozenset[int]:
    """Return the numbers in a text such as `3-7,12`, all below `end`.

    A range may be open (`5-`: to the last one). Raises ValueError with a message for the user.
    """
    found: set[int] = set()
    for piece in text.split(","):
        matched = _PIECE.fullmatch(piece.strip())
        if matched is None:
            raise ValueError(f"{piece.strip()!r} is neither a number nor a range")
        first = int(matched["first"])
        last = first if matched["dash"] is None else int(matched["last"] or end - 1)
        if last < first and matched["last"]:
            raise ValueError(f"{piece.strip()!r} ends before it begins")
        if max(first, last) >= end:
            raise ValueError(f"there is no {max(first, last)}")
        found.update(range(first, last + 1))
    return frozenset(found)
