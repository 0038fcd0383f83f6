"""When a run did what: the parts of its account as stretches of time, which add up to them. Pure.

What the account only knows as a sum is drawn where it most likely was: the standstill of a save
ends with the save, and the steps that were lost are the last ones of their round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from hpckit.model.goodput import StepProgress, TimePart, TimeSpan
from hpckit.planning.goodput.account import Attempts, lost_times, read_timeline, stall
from hpckit.planning.goodput.phases import ZERO, Phase, RoundTime, Stretch
from hpckit.values import replace

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


def time_spans(
    attempts: Attempts,
    *,
    submissions: Iterable[datetime] = (),
    progress: Mapping[int, StepProgress] | None = None,
    until: datetime | None = None,
    alive: bool = False,
) -> tuple[TimeSpan, ...]:
    """Return the spans of a run in order, without gaps; the arguments are those of `account`."""
    timeline = read_timeline(
        attempts, submissions=submissions, progress=progress, until=until, alive=alive
    )
    lost = lost_times(timeline.rounds)
    saving = sum(bool(one.saves) for one in timeline.rounds)
    blocks = max(MOST_SAVES // saving, 1) if saving else 0
    pieces = {
        id(one): _pieces(one, lost[place], blocks) for place, one in enumerate(timeline.rounds)
    }
    passed: dict[int, timedelta] = {}
    found: list[TimeSpan] = []
    for stretch in timeline.stretches:
        for span in _spans(stretch, pieces, passed):
            _add(found, span)
    return tuple(found)


def _spans(
    one: Stretch, pieces: Mapping[int, Sequence[_Piece]], passed: dict[int, timedelta]
) -> Iterator[TimeSpan]:
    """Yield the spans of a stretch; `passed` is how much of each round's training came before."""
    if one.phase is not Phase.training or one.round is None:
        yield _span(one, _PARTS.get(one.phase, TimePart.productive), one.begin, one.end)
        return
    start = passed.get(id(one.round), ZERO)
    end = start + one.length
    passed[id(one.round)] = end
    for low, high, part in pieces[id(one.round)]:
        begin, stop = max(low, start), min(high, end)
        if stop > begin:
            yield _span(one, part, one.begin + (begin - start), one.begin + (stop - start))


def _span(one: Stretch, part: TimePart, begin: datetime, end: datetime) -> TimeSpan:
    number = None if one.round is None else one.round.number
    return TimeSpan(part=part, begin=begin, end=end, attempt=one.attempt, round=number)


def _add(found: list[TimeSpan], span: TimeSpan) -> None:
    last = found[-1] if found else None
    if (
        last is not None
        and last.end == span.begin
        and replace(span, begin=last.begin) == replace(last, end=span.end)
    ):
        found[-1] = replace(last, end=span.end)
    else:
        found.append(span)


def _pieces(one: RoundTime, lost: timedelta, blocks: int) -> list[_Piece]:
    """Return the parts of a round's training time, in order; their sums are the account's."""
    stalls = _stalls(one, blocks)
    free = list(_between(stalls, one.trained))
    pieces: list[_Piece] = [(begin, end, TimePart.checkpoint) for begin, end in stalls]
    for begin, end in reversed(free):
        kept = max(end - begin - lost, ZERO)
        lost -= end - begin - kept
        pieces.append((begin, begin + kept, TimePart.productive))
        pieces.append((begin + kept, end, TimePart.lost))
    return sorted(piece for piece in pieces if piece[1] > piece[0])


def _between(
    stalls: Sequence[tuple[timedelta, timedelta]], whole: timedelta
) -> Iterator[tuple[timedelta, timedelta]]:
    at = ZERO
    for begin, end in stalls:
        yield at, begin
        at = end
    yield at, whole


def _stalls(one: RoundTime, blocks: int) -> list[tuple[timedelta, timedelta]]:
    """Return where a round stood still: together as long as the account has it, no two at once."""
    left, grouped = stall(one), list[tuple[timedelta, timedelta]]()
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
