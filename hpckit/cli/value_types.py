"""Types of the values of options, for argparse."""

from __future__ import annotations

from argparse import ArgumentTypeError

from hpckit.errors import UsageError
from hpckit.planning.faults import parse_delay


def seconds(text: str) -> float:
    """Return a time in seconds, as an argument's type: `90`, `90s`, `2m`."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parse_delay(text).total_seconds()
    except UsageError:
        raise ArgumentTypeError(f"is {text!r}; it takes a time, such as 60, 90s or 2m") from None


def is_time(word: str) -> bool:
    """Return whether a word is a time as `seconds` takes it."""
    try:
        seconds(word)
    except ArgumentTypeError:
        return False
    return True
