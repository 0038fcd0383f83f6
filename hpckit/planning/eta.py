"""When a sweep will end, estimated from its own runs. Pure.

It assumes that the future is like the past: runs last as long as those that have completed, and as
many run at a time as now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from hpckit.model.states import RunState

_NOTHING = timedelta(0)
_OPEN = frozenset({RunState.pending, RunState.running})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDuration:
    """A run: its state, and how long its latest attempt has lasted (None: not known)."""

    state: RunState
    elapsed: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionEstimate:
    """`ended` of `total` runs have ended; `share` also counts the finished part of others, 0 to 1.

    `remaining` is None if there is no basis for it: no run has completed, or none is running.
    """

    ended: int
    total: int
    share: float
    remaining: timedelta | None


def estimate_completion(runs: Sequence[RunDuration]) -> CompletionEstimate:
    """Return how far these runs are, and how long they will still take."""
    lasted = sorted(
        one.elapsed for one in runs if one.state is RunState.completed and one.elapsed is not None
    )
    ended = sum(one.state not in _OPEN for one in runs)
    going = [one.elapsed or _NOTHING for one in runs if one.state is RunState.running]
    rests = [_rest(elapsed, lasted) for elapsed in going]
    parts = [_part(elapsed, rest) for elapsed, rest in zip(going, rests, strict=True)]
    return CompletionEstimate(
        ended=ended,
        total=len(runs),
        share=(ended + sum(parts)) / len(runs) if runs else 1.0,
        remaining=_remaining(lasted, rests, waiting=len(runs) - ended - len(going)),
    )


def _rest(elapsed: timedelta, lasted: Sequence[timedelta]) -> timedelta:
    """Return the time a run still needs, from the mean of the runs that lasted longer."""
    longer = [one for one in lasted if one > elapsed]
    return _mean(longer) - elapsed if longer else _NOTHING


def _part(elapsed: timedelta, rest: timedelta) -> float:
    """Return how much of a run is done, 0 if its remaining time is not known."""
    return elapsed / (elapsed + rest) if rest else 0.0


def _remaining(
    lasted: Sequence[timedelta], rests: Sequence[timedelta], *, waiting: int
) -> timedelta | None:
    if not rests and not waiting:
        return _NOTHING
    if not lasted or not rests:
        return None
    work = sum(rests, _NOTHING) + waiting * _mean(lasted)
    # A run cannot be split: the longest rest, or one whole run more, is the minimum.
    least = _mean(lasted) if waiting else _NOTHING
    return max(work / len(rests), *rests, least)


def _mean(spans: Sequence[timedelta]) -> timedelta:
    return sum(spans, _NOTHING) / len(spans)
