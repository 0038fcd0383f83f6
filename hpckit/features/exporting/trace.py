"""What runs did, as a Chrome trace that Perfetto opens: attempts, rounds, saves, failures. Pure.

The format is "Trace Event Format", JSON: a process for each run, a thread for each kind, times in
microseconds since the earliest event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from hpckit.model import events
from hpckit.model.failure import Failure
from hpckit.model.plain import is_within
from hpckit.report.escape import escaped_json
from hpckit.values import dataclass

_ATTEMPTS, _ROUNDS, _SAVES, _TROUBLE = range(4)
_THREADS = ("attempts", "rounds", "saves", "failures and notices")
_MICROSECOND = timedelta(microseconds=1)
_LONGEST_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    """A run's id, number and attempts; `until` ends what is open: now, or its last sign of life."""

    id: str
    number: int
    attempts: Sequence[tuple[int, Sequence[events.Event]]]
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Something of a run that takes time, or none if it has no end."""

    thread: int
    name: str
    began: datetime
    ended: datetime | None
    about: Mapping[str, Any]


def trace_text(runs: Sequence[TracedRun]) -> str:
    """Return the JSON document; its `otherData.start` is the moment 0 as UTC, if there is one."""
    spans = [(run, list(_spans(run))) for run in runs]
    began = [one.began for _, found in spans for one in found]
    start = min(began, default=None)
    named = chain.from_iterable(map(_names, runs))
    drawn = (_drawn(run, one, start) for run, found in spans for one in found if start)
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"by": "hpckit", "start": None if start is None else start.isoformat()},
        "traceEvents": [*named, *drawn],
    }
    return escaped_json(json.dumps(document, ensure_ascii=False, allow_nan=False)) + "\n"


def _names(run: TracedRun) -> Iterator[dict[str, Any]]:
    head = {"ph": "M", "pid": run.number, "ts": 0}
    yield {**head, "tid": 0, "name": "process_name", "args": {"name": run.id}}
    for thread, name in enumerate(_THREADS):
        yield {**head, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _drawn(run: TracedRun, one: _Span, start: datetime) -> dict[str, Any]:
    head = {
        "name": one.name,
        "cat": _THREADS[one.thread],
        "pid": run.number,
        "tid": one.thread,
        "ts": (one.began - start) // _MICROSECOND,
        "args": dict(one.about),
    }
    if one.ended is None:
        return {**head, "ph": "i", "s": "p"}
    return {**head, "ph": "X", "dur": max((one.ended - one.began) // _MICROSECOND, 0)}


def _spans(run: TracedRun) -> Iterator[_Span]:
    for place, (number, history) in enumerate(run.attempts):
        open_until = run.until if place == len(run.attempts) - 1 else None
        if history:
            yield from _attempt(number, history, open_until or history[-1].at)


def _attempt(number: int, history: Sequence[events.Event], until: datetime) -> Iterator[_Span]:
    ends = [event for event in history if isinstance(event, events.AttemptEnded)]
    ended = ends[-1].at if ends else until
    about = {"state": ends[-1].state.value} if ends else {}
    yield _Span(
        thread=_ATTEMPTS,
        name=f"attempt {number}",
        began=history[0].at,
        ended=ended,
        about=about,
    )
    yield from _rounds(number, history, ended)
    for event in history:
        yield from _moments(event)


def _rounds(attempt: int, history: Iterable[events.Event], until: datetime) -> Iterator[_Span]:
    begun: dict[int, events.RoundStarted] = {}
    for event in history:
        if isinstance(event, events.RoundStarted):
            begun[event.round] = event
        elif isinstance(event, events.RoundEnded) and event.round in begun:
            about = {"first_step": event.first_step, "step": event.step}
            yield _round(attempt, begun.pop(event.round), event.at, about)
    for left in begun.values():
        yield _round(attempt, left, until, {})


def _round(
    attempt: int, begun: events.RoundStarted, ended: datetime, about: Mapping[str, Any]
) -> _Span:
    return _Span(
        thread=_ROUNDS,
        name=f"attempt {attempt}, round {begun.round}",
        began=begun.at,
        ended=ended,
        about={"world_size": begun.world_size, "nodes": list(begun.nodes), **about},
    )


def _moments(event: events.Event) -> Iterator[_Span]:
    """Yield the saves, failures and notices."""
    match event:
        case events.CheckpointSaved():
            yield _save(event)
        case events.RoundEnded(failure=Failure() as failure):
            yield _trouble(event, failure.cause.value, message=failure.message, step=failure.step)
        case events.AttemptEnded(failure=Failure() as failure):
            yield _trouble(event, failure.cause.value, message=failure.message, step=failure.step)
        case events.NodeLost():
            yield _trouble(event, "node lost", node=event.node)
        case events.NoticeHeard():
            yield _trouble(event, f"notice: {event.cause.value}", signal=event.signal)
        case _:
            pass


def _save(event: events.CheckpointSaved) -> _Span:
    took = _seconds(event.duration_s)
    return _Span(
        thread=_SAVES,
        name=f"save of step {event.step}",
        began=event.at - timedelta(seconds=took),
        ended=event.at,
        about={"bytes": event.size, "stall_s": _seconds(event.stall_s)},
    )


def _seconds(recorded: float) -> float:
    """Return a recorded duration; one that cannot be counts as zero."""
    return min(max(recorded, 0.0), _LONGEST_S) if is_within(recorded) else 0.0


def _trouble(event: events.Event, name: str, **about: Any) -> _Span:
    return _Span(thread=_TROUBLE, name=name, began=event.at, ended=None, about=about)
