"""Counts, shares, sizes and ranges of numbers (`0-3, 7`, or with steps: `0-4088:8`) as text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from hpckit.patterns import lazy_pattern

_KIB = 1024


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural: `1 run`, `2 runs`, `2 launches`."""
    plural = "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def format_short_list(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def format_whole_percent(share: float | None) -> str:
    """Return a share of 1 without decimals, as `94 %`; empty if it is unknown."""
    return "" if share is None else f"{share:.0%}".replace("%", " %")


def format_step_of_total(step: int | None, total: int | None = None) -> str:
    """Return a step as people count it, `600 of 600`; `step` is as recorded, from 0, or unknown."""
    if step is None:
        return ""
    return f"{step + 1} of {total}" if total is not None and step < total else str(step + 1)


def format_byte_size(size: int) -> str:
    """Return a number of bytes in a suitable unit: `1.2 GiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < _KIB:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KIB
    return f"{amount:.1f} TiB"


_STEPPED = lazy_pattern(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_MOST = 10_000_000
_PIECE = lazy_pattern(r"(?P<first>\d{1,9})(?P<dash>-(?P<last>\d{1,9})?)?", re.ASCII)


def format_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, smallest first: `0-3, 7`."""
    pieces = _group_consecutive_numbers(numbers)
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in pieces)


def format_first_ranges(numbers: Collection[int], most: int = 8) -> str:
    """Return numbers as ranges; of more than `most` only the first, and how many numbers there are.

    ```python
    format_first_ranges(range(0, 4096, 8), 3)  # 0, 8, 16, … (512 in all)
    ```
    """
    pieces = format_ranges(numbers).split(", ")
    if len(pieces) <= most:
        return ", ".join(pieces)
    return f"{', '.join(pieces[:most])}, … ({len(numbers)} in all)"


def _group_consecutive_numbers(numbers: Iterable[int]) -> list[tuple[int, int]]:
    pieces: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if pieces and pieces[-1][1] == number - 1:
            pieces[-1] = (pieces[-1][0], number)
        else:
            pieces.append((number, number))
    return pieces


def format_stepped_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges with steps, as Slurm writes them: `0-4088:8` is 0, 8, …, 4088.

    A group of parallel ranks is a few of these, whatever the size of the world.
    """
    return ", ".join(
        map(_format_stepped_range, _merge_into_stepped_ranges(_group_consecutive_numbers(numbers)))
    )


def _format_stepped_range(one: range) -> str:
    if len(one) == 1:
        return str(one.start)
    return f"{one.start}-{one[-1]}" + (f":{one.step}" if one.step > 1 else "")


def _merge_into_stepped_ranges(pieces: list[tuple[int, int]]) -> Iterator[range]:
    """Yield the numbers of pieces of one length at equal distances, all first ones, all second."""
    at = 0
    while at < len(pieces):
        (first, last), end, step = pieces[at], at + 1, 1
        if end < len(pieces):
            step = pieces[end][0] - first
        while end < len(pieces):
            moved = step * (end - at)
            if pieces[end] != (first + moved, last + moved):
                break
            end += 1
        if end == at + 1:
            yield range(first, last + 1)
        else:
            for offset in range(last - first + 1):
                yield range(first + offset, pieces[end - 1][0] + offset + 1, step)
        at = end


def parse_stepped_ranges(text: str) -> frozenset[int]:
    """Return the numbers that `format_stepped_ranges` wrote; raises ValueError for another text."""
    found: set[int] = set()
    for piece in text.split(", "):
        matched = _STEPPED.fullmatch(piece)
        if matched is None:
            raise ValueError(f"{piece!r} is not a range")
        first = int(matched[1])
        numbers = range(first, int(matched[2] or first) + 1, max(int(matched[3] or 1), 1))
        if len(numbers) > _MOST:
            raise ValueError(f"{piece!r} has more than {_MOST} numbers")
        found.update(numbers)
    return frozenset(found)


def parse_number_ranges(text: str, end: int) -> frozenset[int]:
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
