"""What `hpckit bench comm` is asked to measure, from its options. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from hpckit.errors import UsageError
from hpckit.features.interconnect.model import CommOperation, SearchMode
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass

SMALLEST, LARGEST = 2**10, 2**32
LARGEST_ON_CPU = 2**26
"""Without --sizes: what two processes on one CPU exchange in a tenth of a second."""
LEAST_S, MOST_S = 1.0, 3600.0
_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "k": 2**10, "m": 2**20, "g": 2**30}
_SIZE = lazy_pattern(r"(\d{1,12})\s*([a-zA-Z]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommBenchRequest:
    """Which operations, in which sizes (bytes; None: what suits the device), and for how long.

    Sizes double from `smallest` to `largest`. `time_s` bounds all collectives together on each
    rank; the search for a slow node has half as much.
    """

    operations: tuple[CommOperation, ...] = tuple(CommOperation)
    smallest: int = SMALLEST
    largest: int | None = None
    time_s: float = 60.0
    search: SearchMode = SearchMode.auto


def sizes_between(smallest: int, largest: int) -> tuple[int, ...]:
    """Return doubling sizes; the last one is at most `largest`.

    Example: `sizes_between(1024, 5000)` is (1024, 2048, 4096).
    """
    found = [smallest]
    while found[-1] * 2 <= largest:
        found.append(found[-1] * 2)
    return tuple(found)


def read_sizes(text: str) -> tuple[int, int]:
    """Return the bounds that `1KiB:64MiB` names; raises UsageError."""
    first, colon, last = text.partition(":")
    smallest, largest = _size(first, text), _size(last if colon else first, text)
    if not SMALLEST <= smallest <= largest <= LARGEST:
        raise UsageError(
            f"--sizes {text}: from 1KiB to 4GiB, and the smallest first", hint="--sizes 1KiB:64MiB"
        )
    return smallest, largest


def _size(word: str, text: str) -> int:
    found = _SIZE.fullmatch(word.strip())
    unit = _UNITS.get(found[2].lower() or "b") if found else None
    if not found or unit is None:
        raise UsageError(
            f"--sizes {text}: {word!r} is no size",
            hint="numbers with B, KiB, MiB or GiB: --sizes 1KiB:64MiB",
        )
    return int(found[1]) * unit


def read_operations(words: Sequence[str]) -> tuple[CommOperation, ...]:
    """Return the operations of `all_reduce,broadcast`, each once; all without any word.

    Raises UsageError.
    """
    names = [name.strip() for word in words for name in word.split(",") if name.strip()]
    known = {operation.value: operation for operation in CommOperation}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            hint = f"{guess}known are {', '.join(known)}"
            raise UsageError(f"--ops {name}: there is no such operation", hint=hint)
    return tuple(dict.fromkeys(known[name] for name in names)) or tuple(CommOperation)


def read_time(seconds: float) -> float:
    """Return the time bound, from 1 second to an hour; raises UsageError."""
    if not LEAST_S <= seconds <= MOST_S:
        raise UsageError(f"--time-s {seconds:g}: it is in seconds, from {LEAST_S:g} to {MOST_S:g}")
    return seconds
