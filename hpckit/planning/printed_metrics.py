"""Metrics in what a program prints: patterns for them, and the row that a line makes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hpckit.errors import ConfigError
from hpckit.patterns import lazy_pattern

_UNITS = (
    r"(?-i:[munµ]?s|h|[kKMGTB]|[kKMGTP]i?[bB]|[kMG]W|[kMG]?Hz)"
    r"|(?:sec(?:ond)?|min(?:ute)?|hour|day|byte)s?\b"
    r"(?! [-+]?[.\d]+(?![.\d]| ?(?:m|s|sec\w*|min\w*)\b))"
)
"""Words for time and size may be names too: `loss 3 min 2 max 4`, but not `3 min 2 s`."""
_NUMBER = (
    r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?)"
    r"(?![\w/‰]|[-+.,:']\d| / ?\d| (?:out )?of \d| ?(?:[x\xd7·^]|\*\*?) ?\d| e[-+]?\d"
    rf"| (?:{_UNITS})\b(?!\s*[:=]))"
)
"""A whole number or none: not the 3 of `3.4s`, `3/10`, `3,25`, `3-5`, `3:20`, `3K`, `3 ms`."""
_OTHER = (
    r"(?:(?<!(?-i:[a-z])[ -])"
    + "".join(rf"|(?<=\b{word} )" for word in ("and", "with", "the", "is", "nan", "inf"))
    + ")"
)
"""Not behind a word: `val loss`, `Eval loss` and `val-loss` are other metrics than `loss`."""
_OF_ANOTHER = lazy_pattern(r"\b(?:best|lowest|highest|previous)\b[^,;|]*", re.IGNORECASE)
"""Its step is not the line's: `loss 3 (best: 2 at step 7), step 9`."""
_NO_STEP = "".join(
    f"(?<!{word}[ -])" for word in ("per", "total", "max", "maximum", "warmup", "accumulation")
)
_STEPS = tuple(
    lazy_pattern(
        rf"(?<![\w/]){_NO_STEP}{word}s?['\"]?\s*[=:#\[(]?\s*"
        r"(\d{1,3}(?:,\d{3})+|\d{1,15})(?![\w.])",
        re.IGNORECASE,
    )
    for word in ("global[_ ]step", "step", "iteration", "iter", "epoch")
)
_EXPRESSION = lazy_pattern(r"\\|\(\?|\[0-9|\.[*+]")
"""What stands in regular expressions, and in no name of a metric."""
_COLOURS = lazy_pattern(r"\x1b\[[\d;]*[A-Za-z]")
_LONGEST_LINE = 2000
_EXACT = 1e15
"""Whole numbers below it are the same as numbers of a computer."""
_TAKEN = frozenset({"at", "round", "run_step"})
_HOW = (
    "name what is printed in front of a number, observe.printed_metrics=[loss,accuracy], or give a "
    r"regular expression with named groups: ['val: (?P<accuracy>\S+)']"
)

Patterns = Sequence[tuple[re.Pattern[str], Mapping[str, int], str]]
"""Regular expressions, each with its metrics: the number of the group that holds the value.

The text is in small letters in each line that matches; empty if that is not known.
"""


def compile_metric_patterns(wanted: Sequence[str]) -> Patterns:
    """Return the patterns of `observe.printed_metrics`; raises ConfigError.

    Example: `compile_metric_patterns(["loss"])` finds 0.3 in `loss: 0.3`, `Loss=0.3` and
    `{'loss': 0.3}`.
    """
    found = []
    for text in wanted:
        is_expression = "(?P<" in text
        if not is_expression and _EXPRESSION.search(text):
            raise ConfigError(
                f"observe.printed_metrics holds {text!r}, a regular expression without a named "
                "group: its metric has no name",
                hint=_HOW,
            )
        if not is_expression and text.rstrip().endswith((":", "=")):
            raise ConfigError(
                f"observe.printed_metrics holds {text!r}, which ends in : or =",
                hint=f"name {text.rstrip(' :=')!r} alone: `:` and `=` after it are found",
            )
        plain = rf"(?<![\w./]){_OTHER}{re.escape(text)}['\"]?(?:\s*[=:]\s*|\s+)({_NUMBER})"
        try:
            pattern = re.compile(text if is_expression else plain, re.IGNORECASE)  # noqa: TID251
        except re.error as error:
            raise ConfigError(
                f"observe.printed_metrics holds {text!r}, not a regular expression: {error}", hint=_HOW
            ) from None
        groups = dict(pattern.groupindex) or {text: 1}
        wrong = [name for name in groups if not name.strip() or name in _TAKEN]
        if wrong or groups == {"step": 1}:
            raise ConfigError(f"observe.printed_metrics holds {text!r}, which names no metric", hint=_HOW)
        found.append((pattern, groups, "" if is_expression else text.lower()))
    return tuple(found)


def parse_printed_metrics(line: str, patterns: Patterns) -> dict[str, Any]:
    """Return the metrics in a printed line, and its `step`; empty if there are none.

    A metric with several values in the line is left out. Of a line drawn again the latest counts.
    """
    text = next((part for part in line.split("\r")[::-1] if part.strip()), "")[:_LONGEST_LINE]
    text = _COLOURS.sub("", text) if "\x1b" in text else text
    small = text.lower()
    values: dict[str, Any] = {}
    for pattern, groups, part in patterns:
        if part not in small:
            continue  # most lines hold no metric, and to look for a text is far quicker
        matches = list(pattern.finditer(text))
        for name, group in groups.items():
            found = {_parse_metric_number(match[group]) for match in matches}
            if len(found) == 1 and (value := found.pop()) is not None:
                values[name] = value  # of several values nothing says which is meant
    if not values.keys() - {"step"}:
        return {}
    if not isinstance(values.get("step"), int):
        texts = (_OF_ANOTHER.sub("", text), text)
        steps = (match for part in texts for step in _STEPS if (match := step.search(part)))
        values["step"] = next((int(match[1].replace(",", "")) for match in steps), None)
    return values


def _parse_metric_number(text: str | None) -> float | int | str | None:
    """Return a number as a row holds it: one that is not finite is a text."""
    try:
        value = float(re.sub(r",(\d{3})(?!\d)", r"\1", text or "").rstrip(",;%"))
    except ValueError:
        return None
    if not math.isfinite(value):
        return str(value)
    is_whole = value.is_integer() and abs(value) < _EXACT and "." not in (text or "")
    return int(value) if is_whole else value
