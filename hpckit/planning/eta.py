"""When a sweep will have ended, as far as its own runs tell: pure.

Responsible for the arithmetic; it must not read a clock or a record. It takes for granted that
what is to come is like what was: runs last as long as those that have completed, and as many go
on at once as do now.
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
    """`ended` of `total` runs have ended; `share` also counts what of others is done, 0 to 1.

    `remaining` is None where there is nothing to tell it by: no run has completed, or none runs.
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
    """Return how much longer a run goes on that has lasted so long: as those that lasted longer."""
    longer = [one for one in lasted if one > elapsed]
    return _mean(longer) - elapsed if longer else _NOTHING


def _part(elapsed: timedelta, rest: timedelta) -> float:
    """Return how much of a run is done, 0 where nothing tells how long it will go on."""
    return elapsed / (elapsed + rest) if rest else 0.0


def _remaining(
    lasted: Sequence[timedelta], rests: Sequence[timedelta], *, waiting: int
) -> timedelta | None:
    if not rests and not waiting:
        return _NOTHING
    if not lasted or not rests:
        return None
    work = sum(rests, _NOTHING) + waiting * _mean(lasted)
    # No run can be shared out: the longest one, or one more, is the least there is.
    least = _mean(lasted) if waiting else _NOTHING
    return max(work / len(rests), *rests, least)


def _mean(spans: Sequence[timedelta]) -> timedelta:
    return sum(spans, _NOTHING) / len(spans)
