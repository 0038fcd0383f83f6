"""Types of the values of options, for argparse."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable

from hpckit.errors import UsageError
from hpckit.planning.faults import parse_delay

_DIGITS = re.compile(r"-?[0-9]{1,4000}")


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


def whole(of: str, example: str) -> Callable[[str], int]:
    """Return the type of an option that takes a whole number of something, written in digits.

    Example: `whole("sequences", "1024")("4M")` says that it takes a whole number of sequences.
    """

    def read(text: str) -> int:
        if _DIGITS.fullmatch(text):
            return int(text)
        raise ArgumentTypeError(
            f"is {text:.40}; it takes a whole number of {of} in digits, such as {example}"
        )

    return read
