"""How old displayed information may be: the options and the variable that set it.

For verbs that only show; verbs that decide always ask.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.values import dataclass

VARIABLE = "HPCKIT_QUEUE_AGE_S"
LEAST = timedelta(seconds=10)
"""The usual maximum age of a cached Slurm answer, unless the variable is set."""

TOLD = timedelta(seconds=3)
"""The age of an answer is shown if it is above this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How old Slurm's answer may be: asked `now`, or not before a moment, else up to the usual age.

    With `now`, the index of the launch is not used either.
    """

    now: bool = False
    not_before: datetime | None = None


def read_max_slurm_cache_age(context: Context) -> timedelta:
    """Return the age up to which answers are always valid; zero if every process has to ask."""
    text = context.environ.get(VARIABLE, "")
    if not text:
        return LEAST
    try:
        age = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        age = timedelta(-1)
    if age < timedelta(0):
        raise UsageError(
            f"${VARIABLE} is {text!r}; it must be a number of seconds, 0 or more",
            hint="with 0, Slurm is asked every time",
        )
    return age
