"""How old may be what is only shown: the options and the variable that say so.

Responsible for what verbs that show have in common here; verbs that decide have none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from hpckit.context import Context
from hpckit.errors import UsageError

VARIABLE = "HPCKIT_QUEUE_AGE_S"
LEAST = timedelta(seconds=10)
"""Slurm's answer may be this old without being asked for again, unless the variable says else."""

TOLD = timedelta(seconds=3)
"""Above this, the age of an answer is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How old Slurm's answer may be: asked `now`, or not before a moment. Else as old as allowed.

    With `now`, nothing is taken from the index of the launch either.
    """

    now: bool = False
    not_before: datetime | None = None


def least_age(context: Context) -> timedelta:
    """Return how old an answer may always be; zero where every process is to ask for itself."""
    text = context.environ.get(VARIABLE, "")
    if not text:
        return LEAST
    try:
        age = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        age = timedelta(-1)
    if age < timedelta(0):
        raise UsageError(
            f"${VARIABLE} is {text!r}; it has to be a number of seconds, 0 or more",
            hint="with 0, Slurm is asked every time",
        )
    return age
