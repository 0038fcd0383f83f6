"""Slurm's syntax for hostlists and task counts: `n[01-03,7],gpu[0-1]x[0-3]` and `3,1(x2)`. Pure.

It does not ask Slurm: `scontrol show hostnames` does not exist inside containers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from hpckit.patterns import lazy_pattern

_GROUP = lazy_pattern(r"\[([^\]]*)\]")
_RANGE = lazy_pattern(r"([0-9]+)(?:-([0-9]+))?\Z")
_COUNT = lazy_pattern(r"([0-9]+)(?:\(x([0-9]+)\))?\Z")
_TAIL = lazy_pattern(r"(?P<head>.*?)(?P<digits>[0-9]+)\Z", re.DOTALL)


def expand_hostlist(hostlist: str) -> tuple[str, ...]:
    """Expand a hostlist in its order; several brackets in a name give all combinations.

    Raises ValueError with the offending part if the text is not a hostlist.
    """
    return tuple(
        itertools.chain.from_iterable(_expand_hostlist_item(item) for item in _split_hostlist(hostlist))
    )


def _split_hostlist(hostlist: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    depth, start = 0, 0
    for position, letter in enumerate(hostlist):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            break
        if letter == "," and depth == 0:
            yield hostlist[start:position]
            start = position + 1
    if depth != 0:
        raise ValueError(f"{hostlist!r} is not a hostlist: its brackets do not match")
    if hostlist:
        yield hostlist[start:]


def _expand_hostlist_item(item: str) -> Iterator[str]:
    if not item:
        raise ValueError("a hostlist has an empty item")
    parts = _GROUP.split(item)
    choices = [
        tuple(_expand_bracket_ranges(part)) if position % 2 else (part,)
        for position, part in enumerate(parts)
    ]
    return ("".join(choice) for choice in itertools.product(*choices))


def _expand_bracket_ranges(ranges: str) -> Iterator[str]:
    for piece in ranges.split(","):
        match = _RANGE.match(piece)
        if match is None:
            raise ValueError(f"[{ranges}] is not a hostlist range: {piece!r} is not N or N-M")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"[{ranges}] is not a hostlist range: {piece!r} runs backwards")
        width = len(first)
        yield from (f"{number:0{width}d}" for number in range(int(first), int(last) + 1))


def compress_to_hostlist(names: Iterable[str]) -> str:
    """Write names as a hostlist, order kept; `expand(compress(names)) == tuple(names)`."""
    items: list[str] = []
    for (head, width), group in itertools.groupby(names, key=_hostname_group_key):
        members = list(group)
        if width == 0 or len(members) == 1:
            items.extend(members)
        else:
            numbers = [member[len(head) :] for member in members]
            items.append(f"{head}[{','.join(_format_number_ranges(numbers))}]")
    return ",".join(items)


def _hostname_group_key(name: str) -> tuple[str, int]:
    """Return what two names must share to be in one bracket: the head and the number of digits."""
    match = _TAIL.match(name)
    return (name, 0) if match is None else (match["head"], len(match["digits"]))


def _format_number_ranges(numbers: list[str]) -> Iterator[str]:
    start = previous = numbers[0]
    for number in numbers[1:]:
        if int(number) != int(previous) + 1:
            yield _format_number_range(start, previous)
            start = number
        previous = number
    yield _format_number_range(start, previous)


def _format_number_range(start: str, end: str) -> str:
    return start if start == end else f"{start}-{end}"


def parse_task_counts(text: str) -> tuple[int, ...]:
    """Expand the syntax of SLURM_TASKS_PER_NODE: `3,1(x2)` is (3, 1, 1).

    Raises ValueError with the offending part.
    """
    counts: list[int] = []
    for piece in text.split(","):
        match = _COUNT.match(piece)
        if match is None:
            raise ValueError(f"{text!r} is not a list of task counts: {piece!r} is not N or N(xM)")
        counts.extend([int(match[1])] * int(match[2] or 1))
    return tuple(counts)
