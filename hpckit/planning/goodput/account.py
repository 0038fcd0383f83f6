"""How the wall time of a run was spent, from the events of all its attempts. Pure.

The arithmetic is that of docs/reference/goodput.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median_low
from typing import TypedDict, Unpack

from hpckit.model import events
from hpckit.model.goodput import Goodput, MeasuredTimes, StepProgress, TimePart, TimeParts, TimeSpan
from hpckit.model.plan import JobSpec
from hpckit.planning.goodput.phases import ZERO, Phase, RoundTime, Stretch, assume_utc
from hpckit.planning.goodput.timeline import Timeline
from hpckit.values import replace

Attempts = Iterable[tuple[int, Sequence[events.Event]]]
"""Attempts, oldest first: the number of each, and its events (record.launches.read_events_by_attempt)."""


class ToldOfRun(TypedDict, total=False):
    """What is known of a run besides its attempts.

    `submissions` are the times at which it was given to an executor, `progress` the latest step of
    each attempt. `until` is now for a run that continues or waits, null for one that is over.
    `alive` is whether its latest attempt continues.
    """

    submissions: Iterable[datetime]
    progress: Mapping[int, StepProgress]
    until: datetime | None
    alive: bool


_TICK = timedelta(microseconds=1)


def compute_goodput(attempts: Attempts, **told: Unpack[ToldOfRun]) -> Goodput:
    """Return the goodput of a run; never raises, whatever is in its record.

    An attempt without a final event ends with its last sign of life. The parts add up to the time
    from the first submission (or attempt) to the end.
    """
    timeline, until = _build_timeline(attempts, told), told.get("until")
    still = timeline.measure_unusual_standstill(until) if until is not None and told.get("alive") else None
    return replace(_build_goodput(timeline), standstill=still)


def _build_timeline(attempts: Attempts, told: ToldOfRun) -> Timeline:
    given = sorted(map(assume_utc, told.get("submissions", ())))
    timeline = Timeline(submissions=given, progress=told.get("progress", {}))
    for number, history in attempts:
        timeline.begin_attempt(number, history[0].at if history else None)
        for event in history:
            timeline.add_event(event)
    timeline.add_remaining_time(told.get("until"), alive=told.get("alive", False))
    return timeline


def list_submission_times(
    jobs: Sequence[JobSpec], history: Iterable[events.Event]
) -> Mapping[int, tuple[datetime, ...]]:
    """Return when each run (index) was given to an executor, from the events of its launch."""
    times: dict[int, list[datetime]] = {}
    for event in history:
        for run in _list_submitted_runs(jobs, event):
            times.setdefault(run, []).append(event.at)
    return {run: tuple(moments) for run, moments in times.items()}


def _list_submitted_runs(jobs: Sequence[JobSpec], event: events.Event) -> Iterable[int]:
    match event:
        case events.Submitted() if 0 <= event.job_index < len(jobs):
            return jobs[event.job_index].runs
        case events.JobAdded():
            return event.job.runs
        case events.LocalStarted():
            mine = [job for job in jobs if not event.jobs or job.index in event.jobs]
            return [run for job in mine for run in job.runs]
        case _:
            return ()


def _build_goodput(timeline: Timeline) -> Goodput:
    worth = [
        _split_kept_and_lost_time(one, floor)
        for one, floor in _pair_rounds_with_first_lost_step(timeline.rounds)
    ]
    spent = timeline.spent
    parts = TimeParts(
        productive=sum((productive for productive, _, _ in worth), ZERO),
        checkpoint=sum((time_stalled_by_saves(round_) for round_ in timeline.rounds), ZERO),
        lost=sum((lost for _, lost, _ in worth), ZERO),
        start=spent[Phase.start],
        restart=spent[Phase.restart] + spent[Phase.trouble],
        suspended=spent[Phase.suspended],
        queue=spent[Phase.queue],
        idle=spent[Phase.idle],
    )
    measured = _build_measured_times(timeline, parts)
    # Without steps it is unknown what a further round repeated.
    stepped = any(round_.first is not None for round_ in timeline.rounds) or (
        timeline.completed and len(timeline.rounds) == 1
    )
    return Goodput(
        parts=parts,
        stepped=stepped,
        attempts=timeline.attempts,
        rounds=len(timeline.rounds),
        lost_steps=sum(steps for _, _, steps in worth) if stepped else None,
        saves=len(timeline.stalls),
        saved_bytes=timeline.saved_bytes,
        writing=timeline.writing,
        interruptions=tuple(timeline.interruptions),
        first_wait=timeline.first_wait if timeline.attempts else parts.queue,
        measured=measured,
        ettr_expected=compute_expected_ettr(measured),
    )


def _pair_rounds_with_first_lost_step(rounds: Sequence[RoundTime]) -> Iterator[tuple[RoundTime, int | None]]:
    """Yield each round, the last first, with the lowest first step of later ones.

    Work from there is lost.
    """
    floor: int | None = None
    for round_ in reversed(rounds):
        yield round_, floor
        if round_.first is not None:
            floor = round_.first if floor is None else min(floor, round_.first)


def _split_kept_and_lost_time(one: RoundTime, floor: int | None) -> tuple[timedelta, timedelta, int]:
    """Return a round's kept time, its lost time, and how many steps were lost.

    A lost step took as long as the mean step of its own round.
    """
    work = one.trained - time_stalled_by_saves(one)
    if floor is None or one.last is None:
        return work, ZERO, 0
    steps = min(max(one.last - floor + 1, 0), one.steps)
    # In whole microseconds: timedelta times the step number of a damaged record may overflow.
    lost = _TICK * ((work // _TICK) * steps // one.steps)
    return work - lost, lost, steps


def time_stalled_by_saves(one: RoundTime) -> timedelta:
    """Return how long a round stood still for saves."""
    return min(one.stalled, one.trained)


def _build_measured_times(timeline: Timeline, parts: TimeParts) -> MeasuredTimes:
    failures = sum(not interruption.planned for interruption in timeline.interruptions)
    planned = len(timeline.interruptions) - failures
    waited = parts.queue + parts.idle - timeline.first_wait
    restart = _divide_or_none(timeline.spent[Phase.restart], timeline.restarts)
    return MeasuredTimes(
        mtbf=_divide_or_none(parts.running, failures),
        stall=_divide_or_none(sum(timeline.stalls, ZERO), len(timeline.stalls)),
        interval=median_low(timeline.intervals) if timeline.intervals else None,
        restart=restart or (parts.start if timeline.rounds else None),
        queue=_divide_or_none(waited, failures + planned),
        detection=_divide_or_none(timeline.spent[Phase.trouble], failures),
        between_planned=_divide_or_none(parts.running, planned),
    )


def _divide_or_none(whole: timedelta, count: int) -> timedelta | None:
    return whole / count if count else None


def compute_expected_ettr(measured: MeasuredTimes) -> float | None:
    """Return the expected ETTR, null if nothing was saved, because there is no interval then.

    dt / (M e^(u0/M) (e^((dt+w)/M) - 1)) / (1 + (q+d)/M), in the limit dt/(dt+w) without a failure;
    times 1 / (1 + (w+u0+q)/P) if there is a planned interruption every P. That is Daly's complete
    model (Future Generation Computer Systems 22, 2006) for exponentially distributed failures, with
    a term for what it leaves out: noticing a failure (d) and waiting for nodes (q).
    """
    if measured.interval is None or measured.stall is None:
        return None
    dt, w = measured.interval.total_seconds(), measured.stall.total_seconds()
    if dt <= 0:
        return None
    u0 = 0.0 if measured.restart is None else measured.restart.total_seconds()
    q = 0.0 if measured.queue is None else measured.queue.total_seconds()
    d = 0.0 if measured.detection is None else measured.detection.total_seconds()
    share = dt / (dt + w)
    if measured.mtbf is not None:
        share = _compute_ettr_with_failures(dt, w, u0, waits=q + d, m=measured.mtbf.total_seconds())
    if measured.between_planned:
        share /= 1 + (w + u0 + q) / measured.between_planned.total_seconds()
    return share


def _compute_ettr_with_failures(dt: float, w: float, u0: float, *, waits: float, m: float) -> float:
    """Return the model's share; 0 if failures come too fast for any interval to finish."""
    try:
        return dt / (m * math.exp(u0 / m) * math.expm1((dt + w) / m)) / (1 + waits / m)
    except (OverflowError, ZeroDivisionError):
        return 0.0


MOST_SAVES = 50
"""More saves of a run are drawn together, so that a month of training stays a few lines."""

_PARTS = {
    Phase.queue: TimePart.queue,
    Phase.idle: TimePart.idle,
    Phase.start: TimePart.start,
    Phase.trouble: TimePart.restart,
    Phase.restart: TimePart.restart,
    Phase.suspended: TimePart.suspended,
}

_Piece = tuple[timedelta, timedelta, TimePart]
"""From where to where of a round's training time, and the part that it belongs to."""


def list_time_spans(attempts: Attempts, **told: Unpack[ToldOfRun]) -> tuple[TimeSpan, ...]:
    """Return the spans of a run in order, without gaps.

    They add up to the parts of the account. What that only knows as a sum is drawn where it most
    likely was: the standstill of a save ends with the save, and the steps that were lost are the
    last ones of their round.
    """
    timeline = _build_timeline(attempts, told)
    lost = [
        _split_kept_and_lost_time(one, floor)[1]
        for one, floor in _pair_rounds_with_first_lost_step(timeline.rounds)
    ][::-1]
    saving = sum(bool(round_.saves) for round_ in timeline.rounds)
    blocks = max(MOST_SAVES // saving, 1) if saving else 0
    pieces = {
        id(one): _split_training_time_by_kind(one, lost[place], blocks)
        for place, one in enumerate(timeline.rounds)
    }
    passed: dict[int, timedelta] = {}
    found: list[TimeSpan] = []
    for stretch in timeline.stretches:
        for span in _split_stretch_into_spans(stretch, pieces, passed):
            _append_or_extend_span(found, span)
    return tuple(found)


def _split_stretch_into_spans(
    one: Stretch, pieces: Mapping[int, Sequence[_Piece]], passed: dict[int, timedelta]
) -> Iterator[TimeSpan]:
    """Yield the spans of a stretch; `passed` is how much of each round's training came before."""
    if one.phase is not Phase.training or one.round is None:
        yield _build_time_span(one, _PARTS.get(one.phase, TimePart.productive), one.begin, one.end)
        return
    start = passed.get(id(one.round), ZERO)
    end = start + one.length
    passed[id(one.round)] = end
    for low, high, part in pieces[id(one.round)]:
        begin, stop = max(low, start), min(high, end)
        if stop > begin:
            yield _build_time_span(one, part, one.begin + (begin - start), one.begin + (stop - start))


def _build_time_span(one: Stretch, part: TimePart, begin: datetime, end: datetime) -> TimeSpan:
    number = None if one.round is None else one.round.number
    return TimeSpan(part=part, begin=begin, end=end, attempt=one.attempt, round=number)


def _append_or_extend_span(found: list[TimeSpan], span: TimeSpan) -> None:
    last = found[-1] if found else None
    if (
        last is not None
        and last.end == span.begin
        and replace(span, begin=last.begin) == replace(last, end=span.end)
    ):
        found[-1] = replace(last, end=span.end)
    else:
        found.append(span)


def _split_training_time_by_kind(one: RoundTime, lost: timedelta, blocks: int) -> list[_Piece]:
    """Return the parts of a round's training time, in order; their sums are the account's."""
    stalls = _locate_save_stalls_in_round(one, blocks)
    begins = [ZERO, *(end for _, end in stalls)]
    ends = [*(begin for begin, _ in stalls), one.trained]
    pieces: list[_Piece] = [(begin, end, TimePart.checkpoint) for begin, end in stalls]
    for begin, end in zip(reversed(begins), reversed(ends), strict=True):
        kept = max(end - begin - lost, ZERO)
        lost -= end - begin - kept
        pieces.append((begin, begin + kept, TimePart.productive))
        pieces.append((begin + kept, end, TimePart.lost))
    return sorted(piece for piece in pieces if piece[1] > piece[0])


def _locate_save_stalls_in_round(one: RoundTime, blocks: int) -> list[tuple[timedelta, timedelta]]:
    """Return where a round stood still: together as long as the account has it, no two at once."""
    left, grouped = time_stalled_by_saves(one), list[tuple[timedelta, timedelta]]()
    size = max(-(-len(one.saves) // max(blocks, 1)), 1)
    for first in range(0, len(one.saves), size):
        some = one.saves[first : first + size]
        length = min(sum((took for _, took in some), ZERO), left)
        left -= length
        grouped.append((some[-1][0], length))
    placed, at = list[tuple[timedelta, timedelta]](), ZERO
    for end, length in grouped:
        begin = max(end - length, at)
        at = begin + length
        placed.append((begin, at))
    limit = one.trained
    for place in range(len(placed) - 1, -1, -1):
        begin, end = placed[place]
        end = min(end, limit)
        limit = end - (placed[place][1] - begin)
        placed[place] = (limit, end)
    return placed
