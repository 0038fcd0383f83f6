"""What runs did, as a Chrome trace that Perfetto opens: attempts, rounds, saves, failures.

The format is "Trace Event Format", JSON: a process for each run, a thread for each kind, times in
microseconds since the earliest event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from hpckit.features.exporting.exported_run import ExportedRun
from hpckit.model import events
from hpckit.model.failure import Failure
from hpckit.model.plain import is_within_limit
from hpckit.record.attempts import read_events_by_attempt
from hpckit.report.escape import escape_json

_ATTEMPTS, _ROUNDS, _SAVES, _TROUBLE = range(4)
_THREADS = ("attempts", "rounds", "saves", "failures and notices")
_MICROSECOND = timedelta(microseconds=1)
_LONGEST_S = 1e9


class _Span(NamedTuple):
    """Something of a run that takes time, or none if it has no end."""

    thread: int
    name: str
    began: datetime
    ended: datetime | None
    about: Mapping[str, Any]


def build_chrome_trace(runs: Sequence[ExportedRun], now: datetime) -> str:
    """Return the JSON document; its `otherData.start` is the moment 0 as UTC, if there is one.

    `now` ends what is open in a run that goes on; in another it ends at its last sign of life.
    """
    spans = [list(_list_run_spans(run, now)) for run in runs]
    start = min((span.began for found in spans for span in found), default=None)
    named = (line for number, run in enumerate(runs) for line in _build_process_name_events(number, run.id))
    drawn = (
        _span_to_event(number, span, start)
        for number, found in enumerate(spans)
        for span in found
        if start is not None
    )
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"by": "hpckit", "start": None if start is None else start.isoformat()},
        "traceEvents": [*named, *drawn],
    }
    return escape_json(json.dumps(document, ensure_ascii=False, allow_nan=False)) + "\n"


def _build_process_name_events(number: int, run: str) -> Iterator[dict[str, Any]]:
    head = {"ph": "M", "pid": number, "ts": 0}
    yield {**head, "tid": 0, "name": "process_name", "args": {"name": run}}
    for thread, name in enumerate(_THREADS):
        yield {**head, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _span_to_event(number: int, one: _Span, start: datetime) -> dict[str, Any]:
    head = {
        "name": one.name,
        "cat": _THREADS[one.thread],
        "pid": number,
        "tid": one.thread,
        "ts": (one.began - start) // _MICROSECOND,
        "args": dict(one.about),
    }
    if one.ended is None:
        return {**head, "ph": "i", "s": "p"}
    return {**head, "ph": "X", "dur": max((one.ended - one.began) // _MICROSECOND, 0)}


def _list_run_spans(run: ExportedRun, now: datetime) -> Iterator[_Span]:
    attempts = list(read_events_by_attempt(run.launch.paths.run(run.view.record.index)))
    for place, (number, history) in enumerate(attempts):
        last = place == len(attempts) - 1
        open_until = now if last and not run.view.can_no_longer_change else None
        if history:
            yield from _list_attempt_spans(number, history, open_until or history[-1].at)


def _list_attempt_spans(number: int, history: Sequence[events.Event], until: datetime) -> Iterator[_Span]:
    ends = [event for event in history if isinstance(event, events.AttemptEnded)]
    ended = ends[-1].at if ends else until
    about = {"state": ends[-1].state.value} if ends else {}
    yield _Span(_ATTEMPTS, f"attempt {number}", history[0].at, ended, about)
    yield from _list_round_spans(number, history, ended)
    for event in history:
        yield from _list_save_and_failure_spans(event)


def _list_round_spans(attempt: int, history: Iterable[events.Event], until: datetime) -> Iterator[_Span]:
    begun: dict[int, events.RoundStarted] = {}
    for event in history:
        if isinstance(event, events.RoundStarted):
            begun[event.round] = event
        elif isinstance(event, events.RoundEnded) and event.round in begun:
            about = {"first_step": event.first_step, "step": event.step}
            yield _build_round_span(attempt, begun.pop(event.round), event.at, about)
    for left in begun.values():
        yield _build_round_span(attempt, left, until, {})


def _build_round_span(
    attempt: int, begun: events.RoundStarted, ended: datetime, about: Mapping[str, Any]
) -> _Span:
    about = {"world_size": begun.world_size, "nodes": list(begun.nodes), **about}
    return _Span(_ROUNDS, f"attempt {attempt}, round {begun.round}", begun.at, ended, about)


def _list_save_and_failure_spans(event: events.Event) -> Iterator[_Span]:
    """Yield the saves, failures and notices."""
    match event:
        case events.CheckpointSaved():
            began = event.at - timedelta(seconds=_zero_impossible_duration(event.duration_s))
            about = {"bytes": event.size, "stall_s": _zero_impossible_duration(event.stall_s)}
            yield _Span(_SAVES, f"save of step {event.step}", began, event.at, about)
        case (
            events.RoundEnded(failure=Failure() as failure)
            | events.AttemptEnded(failure=Failure() as failure)
        ):
            yield _build_failure_or_signal_span(
                event, failure.cause.value, message=failure.message, step=failure.step
            )
        case events.NodeLost():
            yield _build_failure_or_signal_span(event, "node lost", node=event.node)
        case events.NoticeHeard():
            yield _build_failure_or_signal_span(event, f"notice: {event.cause.value}", signal=event.signal)
        case _:
            pass


def _zero_impossible_duration(recorded: float) -> float:
    return min(max(recorded, 0.0), _LONGEST_S) if is_within_limit(recorded) else 0.0


def _build_failure_or_signal_span(event: events.Event, name: str, **about: Any) -> _Span:
    return _Span(_TROUBLE, name, event.at, None, about)
