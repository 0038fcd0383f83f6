"""Says in plain words what argparse refuses. Pure."""

from __future__ import annotations

import difflib
import re

_INVALID = re.compile(
    r"argument (?P<name>\S+): invalid (?P<kind>int|float) value: (?P<value>.*)", re.DOTALL
)
_CHOICE = re.compile(
    r"argument (?P<name>\S+): invalid choice: (?P<value>.*?) \(choose from (?P<known>.*)\)",
    re.DOTALL,
)
_OTHER = re.compile(r"argument (?P<name>\S+): (?P<why>.*)", re.DOTALL)
_WORDS = {"int": "a whole number, such as 3", "float": "a number, such as 1.5"}
_MISSING = re.compile(r"the following arguments are required: (?P<names>.*)", re.DOTALL)
_ALIKE = 0.6
_NO_VALUE = "expected one argument"


def plain(message: str) -> tuple[str, str]:
    """Return a message of argparse in words, and a hint, which is empty if there is none."""
    if found := _INVALID.fullmatch(message):
        return f"{_name(found)} is {found['value']}; it takes {_WORDS[found['kind']]}", ""
    if found := _CHOICE.fullmatch(message):
        known = [one.strip(" '\"") for one in found["known"].split(",")]
        near = difflib.get_close_matches(found["value"].strip("'\""), known, n=1, cutoff=_ALIKE)
        hint = f"did you mean {near[0]}?" if near else ""
        return f"{_name(found)} is {found['value']}; it is one of {', '.join(known)}", hint
    if found := _MISSING.fullmatch(message):
        names = [one.split("/")[0] for one in found["names"].split(", ")]
        return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing", ""
    if found := _OTHER.fullmatch(message):
        why = found["why"]
        return f"{_name(found)} {'needs a value' if why == _NO_VALUE else why}", ""
    return message, ""


def _name(found: re.Match[str]) -> str:
    return found["name"].split("/")[-1]
