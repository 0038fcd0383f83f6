"""When a sweep will end, estimated from its own runs. Pure.

It assumes that the future is like the past: a run continues at the pace of its steps; one that has
no known pace lasts as long as those that have completed; and as many run at a time as now.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from hpckit.model.states import RunState
from hpckit.values import dataclass

_NOTHING = timedelta(0)
_OPEN = frozenset({RunState.pending, RunState.running})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDuration:
    """A run: its state, and how long its latest attempt has lasted (None: not known).

    `done` is the share of its steps that are done, `left` how long the others will take; None if
    the run does not tell.
    """

    state: RunState
    elapsed: timedelta | None
    done: float | None = None
    left: timedelta | None = None


class CompletionEstimate(NamedTuple):
    """`share` is how much of all runs is done (0 to 1), the finished part of those that run too.

    `remaining` is None if there is no basis for it: none is running, or no run has completed and
    not all that run tell their pace.
    """

    share: float
    remaining: timedelta | None


def estimate_completion(runs: Sequence[RunDuration]) -> CompletionEstimate:
    """Return how far these runs are, and how long they will still take."""
    lasted = sorted(
        run.elapsed for run in runs if run.state is RunState.completed and run.elapsed is not None
    )
    ended = sum(run.state not in _OPEN for run in runs)
    going = [run for run in runs if run.state is RunState.running]
    rests = [_estimate_time_left(progress, lasted) for progress in going]
    parts = [_estimate_share_done(one, rest) for one, rest in zip(going, rests, strict=True)]
    parts += [run.done or 0.0 for run in runs if run.state is RunState.pending]
    known = bool(lasted) or all(duration.left is not None for duration in going)
    return CompletionEstimate(
        share=(ended + sum(parts)) / len(runs) if runs else 1.0,
        remaining=_estimate_total_time_left(
            lasted or [_elapsed_or_zero(progress) + (progress.left or _NOTHING) for progress in going],
            rests if known else (),
            waiting=len(runs) - ended - len(going),
            over=ended == len(runs),
        ),
    )


def _elapsed_or_zero(one: RunDuration) -> timedelta:
    return one.elapsed or _NOTHING


def _estimate_time_left(one: RunDuration, lasted: Sequence[timedelta]) -> timedelta:
    """Return the time a run still needs, at its own pace or from the runs that lasted longer."""
    if one.left is not None:
        return one.left
    longer = [other for other in lasted if other > _elapsed_or_zero(one)]
    return _mean_duration(longer) - _elapsed_or_zero(one) if longer else _NOTHING


def _estimate_share_done(one: RunDuration, rest: timedelta) -> float:
    """Return how much of a run is done, 0 if neither its steps nor other runs show it."""
    if one.done is not None:
        return one.done
    return _elapsed_or_zero(one) / (_elapsed_or_zero(one) + rest) if rest else 0.0


def _estimate_total_time_left(
    lasted: Sequence[timedelta], rests: Sequence[timedelta], *, waiting: int, over: bool
) -> timedelta | None:
    if over:
        return _NOTHING
    if not rests:
        return None
    work = sum(rests, _NOTHING) + waiting * _mean_duration(lasted)
    # A run cannot be split: the longest rest, or one whole run more, is the minimum.
    least = _mean_duration(lasted) if waiting else _NOTHING
    return max(work / len(rests), *rests, least)


def _mean_duration(spans: Sequence[timedelta]) -> timedelta:
    return sum(spans, _NOTHING) / len(spans)
