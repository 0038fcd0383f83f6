"""Finds the collective in which ranks wait, and the ranks that are missing in it. Pure.

Every rank numbers the collectives of a group alike, so a rank that is at a lower number than its
peers wait at has not entered theirs. torch's own analysis (`torchfrtrace`) compares all entries of
all ranks from their beginning, in a process with torch; this needs the latest of each rank alone,
so that they fit into a message, and the supervisor needs no torch. A test holds the two together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hpckit.model.counted import parse_stepped_ranges
from hpckit.model.diagnosis.collectives import (
    UNNAMED,
    CollectiveWait,
    GroupProgress,
    RankCollectives,
    RecordedCollective,
)
from hpckit.model.parallel.layout import Layout, format_ranks
from hpckit.values import dataclass, replace

_SAME_SIZES = frozenset({"all_reduce", "broadcast", "reduce"})
"""Operations to which every rank gives a tensor of one size."""

_Place = tuple[str, str, int]
"""A collective: backend, group, and number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Who does what at one place, where at least one rank waits."""

    place: _Place
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    other: tuple[int, ...]
    silent: tuple[int, ...]
    idle: tuple[int, ...]
    first: RecordedCollective
    name: str
    members: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Names ranks to people: by number, place in the layout, and node."""

    told: dict[int, RankCollectives]
    layout: Layout | None

    def format_ranks(self, numbers: Sequence[int], *, node: bool = True) -> str:
        """Return the name of some ranks; the node only if they are all on one."""
        nodes = {one.node for rank in numbers if (one := self.told.get(rank)) and one.node}
        where = nodes.pop() if node and len(nodes) == 1 else ""
        return format_ranks(numbers, self.layout, where)


def find_collective_wait(
    statements: Sequence[RankCollectives], world_size: int = 0, layout: Layout | None = None
) -> CollectiveWait | None:
    """Return the collective that explains why ranks wait; None if none of them waits in one.

    Among several it is the one whose missing ranks wait for no rank: all others follow from it.
    A group of which no rank knows the members is taken to be the whole world of `world_size`.
    `layout` names ranks by their places.
    """
    told = {statement.rank: statement for statement in statements}
    names = _Names(told=told, layout=layout)
    waits = {rank: [entry for entry in one.entries if not entry.finished] for rank, one in told.items()}
    places = {
        (entry.backend, entry.group, entry.sequence)
        for entries in waits.values()
        for entry in entries
        if not entry.to_one
    }
    found = [_find_waiting_and_missing_ranks(place, told, waits, world_size) for place in places]
    if not found:
        return _find_point_to_point_wait(names, waits)
    chosen = min(found, key=_wait_sort_key)
    return _build_collective_wait(chosen, names, waits)


def _wait_sort_key(one: _Found) -> tuple[bool, bool, bool, int, float, _Place]:
    waited = one.first.waited_s or 0.0
    return (
        not (one.missing or one.other or one.silent),  # no rank is known to be absent
        not one.idle,
        not (one.silent or one.other),
        -len(one.waiting),
        -waited,
        one.place,
    )


def _find_waiting_and_missing_ranks(
    place: _Place,
    told: dict[int, RankCollectives],
    waits: dict[int, list[RecordedCollective]],
    world_size: int,
) -> _Found:
    backend, group, sequence = place
    progress = {
        rank: found for rank, one in told.items() if (found := _find_group_progress(one, backend, group))
    }
    here = {
        rank: entry
        for rank, one in told.items()
        for entry in one.entries
        if (entry.backend, entry.group, entry.sequence) == place and not entry.to_one
    }
    waiting = tuple(sorted(rank for rank, entry in here.items() if not entry.finished))
    members = _parse_group_members(progress.values())
    if not members and any(group.ranks == UNNAMED for group in progress.values()):
        members = frozenset(progress)  # a part of the world, of which these are known
    members = members or frozenset(range(world_size)) or frozenset(told)
    entered = {rank for rank, one in progress.items() if one.entered >= sequence}
    missing = tuple(sorted(members & told.keys() - entered))
    first = max((here[rank] for rank in waiting), key=lambda one: one.waited_s or 0.0)
    return _Found(
        place=place,
        waiting=waiting,
        missing=missing,
        other=_find_ranks_with_other_operation(here),
        silent=tuple(sorted(members - told.keys())),
        idle=tuple(rank for rank in missing if not waits[rank]),
        first=first,
        name=next((group.name for group in progress.values() if group.name), ""),
        members=len(members),
    )


def _find_group_progress(one: RankCollectives, backend: str, group: str) -> GroupProgress | None:
    matching = [at for at in one.groups if (at.backend, at.group) == (backend, group)]
    return matching[0] if matching else None


def _parse_group_members(progress: Iterable[GroupProgress]) -> frozenset[int]:
    for group in progress:
        try:
            return parse_stepped_ranges(group.ranks)
        except ValueError:
            continue
    return frozenset()


def _find_ranks_with_other_operation(here: dict[int, RecordedCollective]) -> tuple[int, ...]:
    """Return the ranks whose operation differs from that of most; none if it is half and half."""
    calls = {
        rank: (entry.operation, entry.tensor if entry.operation in _SAME_SIZES else "")
        for rank, entry in here.items()
    }
    counts = Counter(calls.values()).most_common(2)
    if len(counts) < 2 or (counts[0][1] == counts[1][1] and len(calls) > 2):  # noqa: PLR2004
        # Two of two: one of them is wrong, and it does not matter which one is named first.
        return ()
    usual = counts[0][0]
    if counts[0][1] == counts[1][1]:
        usual = calls[min(calls)]
    return tuple(sorted(rank for rank, call in calls.items() if call != usual))


def _build_collective_wait(
    found: _Found, names: _Names, waits: dict[int, list[RecordedCollective]]
) -> CollectiveWait:
    backend, group, sequence = found.place
    suspects = found.idle or found.missing or found.other or found.silent
    culprit = suspects[0] if len(suspects) == 1 else None
    usual = found.first
    if found.other:
        kept = [rank for rank in found.waiting if rank not in found.other]
        usual = _find_collective_entry(names.told[kept[0]], found.place) if kept else usual
    wait = CollectiveWait(
        operation=usual.operation,
        sequence=sequence,
        group=found.name or group,
        backend=backend,
        tensor=usual.tensor,
        waiting=found.waiting,
        missing=found.missing,
        other=found.other,
        silent=found.silent,
        culprit=culprit,
        waited_s=found.first.waited_s,
        place=usual.place,
    )
    return replace(wait, words=_describe_wait(wait, names, waits, found))


def _find_collective_entry(one: RankCollectives, place: _Place) -> RecordedCollective:
    return next(entry for entry in one.entries if (entry.backend, entry.group, entry.sequence) == place)


def _describe_wait(
    wait: CollectiveWait, names: _Names, waits: dict[int, list[RecordedCollective]], found: _Found
) -> str:
    group = "the default group" if wait.group == "default_pg" else f"group {wait.group}"
    collective = f"{wait.operation} #{wait.sequence} of {group}"
    collective += f" ({wait.tensor})" if wait.tensor else ""
    at = f", at {wait.place}" if wait.place else ""
    long = f" for {wait.waited_s:.1f} s" if wait.waited_s is not None else ""
    inside = f"{names.format_ranks(wait.waiting)} {_conjugate_verb(wait.waiting, 'wait')} in it{long}{at}"
    if wait.missing:
        blocked = [rank for rank in wait.missing if waits[rank]]
        more = f"; {_describe_wait_of_missing_rank(blocked[0], names, waits)}" if blocked else ""
        return f"{names.format_ranks(wait.missing)} never entered {collective}; {inside}{more}"
    if wait.other:
        entry = _find_collective_entry(names.told[wait.other[0]], found.place)
        own = f"{entry.operation}" + (f" ({entry.tensor})" if entry.tensor else "")
        return f"{names.format_ranks(wait.other)} entered {own} instead of {collective}; {inside}"
    if wait.silent:
        said = _conjugate_verb(wait.silent, "has", "have")
        return f"{names.format_ranks(wait.silent)} {said} not reported entering {collective}; {inside}"
    if len(wait.waiting) == found.members:
        return f"all {found.members} ranks wait in {collective}{long}{at}; none of them is missing"
    return f"all ranks entered {collective}, and {inside}"


def _conjugate_verb(numbers: Sequence[int], many: str, others: str | None = None) -> str:
    if others is not None:
        return many if len(numbers) == 1 else others
    return f"{many}s" if len(numbers) == 1 else many


def _describe_wait_of_missing_rank(
    rank: int, names: _Names, waits: dict[int, list[RecordedCollective]]
) -> str:
    entry = waits[rank][0]
    words = f"{names.format_ranks((rank,), node=False)} waits in {entry.operation}"
    if entry.peer is not None:
        return f"{words} with {names.format_ranks((entry.peer,), node=False)}"
    return f"{words} #{entry.sequence} of group {entry.group}"


def _find_point_to_point_wait(
    names: _Names, waits: dict[int, list[RecordedCollective]]
) -> CollectiveWait | None:
    """Return the message between two ranks whose other side is not waiting."""
    alone = [
        (rank, entry)
        for rank, entries in waits.items()
        for entry in entries
        if entry.peer is not None and not waits.get(entry.peer)
    ]
    if not alone:
        return None
    rank, entry = max(alone, key=lambda one: one[1].waited_s or 0.0)
    peer = entry.peer
    assert peer is not None  # noqa: S101  # chosen so above
    long = f" for {entry.waited_s:.1f} s" if entry.waited_s is not None else ""
    words = (
        f"{names.format_ranks((rank,))} waits in {entry.operation} with "
        f"{names.format_ranks((peer,), node=False)}{long}"
    )
    return CollectiveWait(
        operation=entry.operation,
        sequence=entry.sequence,
        group=entry.group,
        backend=entry.backend,
        tensor=entry.tensor,
        waiting=(rank,),
        missing=(peer,) if peer in names.told else (),
        silent=() if peer in names.told else (peer,),
        culprit=peer,
        waited_s=entry.waited_s,
        place=entry.place,
        words=words + (f", at {entry.place}" if entry.place else ""),
    )
