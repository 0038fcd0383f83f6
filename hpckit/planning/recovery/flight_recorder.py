"""Reads a dump of torch's flight recorder into what a rank says of its collectives. Pure.

Dumps come from torch 2.4 to 2.13, as JSON or as a pickle that was read without running it. Their
form differs, and their content is not trusted: what has another type than it should is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, TypeGuard

from hpckit.model.counted import format_stepped_ranges
from hpckit.model.diagnosis.collectives import UNNAMED, GroupProgress, RankCollectives, RecordedCollective
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, replace

MOST_UNFINISHED = 32
"""Kept of each rank: a rank waits in its oldest ones."""
LATEST = 16
"""How many of the latest collectives are kept, whether finished or not: to compare ranks."""
MOST_GROUPS = 64
_LONGEST_TEXT = 100
_LONGEST_RANKS = 2000
_HIGHEST_RANK = 10_000_000
_RETIRES_EARLY = frozenset({"nccl", "ncclx", "rccl", "rcclx"})
"""Backends whose watchdog retires what it gives up; with others, retired means finished."""

_PEERS = lazy_pattern(r"^(?P<operation>\w+) (?P<own>\d{1,9})(?:->|<-)(?P<peer>\d{1,9})$")
_LIBRARY = lazy_pattern(r"/(site|dist)-packages/|/python3\.\d+t?/|/torch/|/hpckit/runtime/|^<")
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedBy:
    """Whose dump it is, the groups it knows (name → ranks), and when it was made (Unix time).

    `gave_up` is whether an exception of its latest collective has ended the rank: gloo counts what
    timed out as done.
    """

    rank: int
    at_s: float
    node: str = ""
    groups: Mapping[str, Iterable[int]] | None = None
    gave_up: bool = False


def parse_flight_dumps(dumps: Iterable[Any], by: DumpedBy) -> RankCollectives | None:
    """Return what the dumps of one rank say together; None if none of them is a dump.

    An empty one says that the rank has entered no collective.
    """
    whole = [dump for dump in dumps if isinstance(dump, Mapping) and isinstance(dump.get("version"), str)]
    members = _list_group_ranks(whole, by)
    found = {
        _collective_key(entry): entry for dump in whole for entry in _parse_dump_entries(dump, by, members)
    }
    if not whole:
        return None
    entries = list(found.values())
    if by.gave_up and entries:
        entries[-1] = replace(entries[-1], finished=False)
    kept = [entry for entry in entries if not entry.finished][:MOST_UNFINISHED]
    latest = {_collective_key(entry) for entry in entries[-LATEST:]} | {
        _collective_key(earlier) for earlier in kept
    }
    return RankCollectives(
        rank=by.rank,
        node=by.node,
        groups=_summarize_group_progress(entries, members, _list_group_names(whole)),
        entries=tuple(entry for entry in entries if _collective_key(entry) in latest),
    )


def _collective_key(one: RecordedCollective) -> tuple[str, str, bool, int | None, int, str]:
    return (one.backend, one.group, one.to_one, one.peer, one.sequence, one.operation)


def _summarize_group_progress(
    entries: Iterable[RecordedCollective], members: Mapping[str, list[int]], names: Mapping[str, str]
) -> tuple[GroupProgress, ...]:
    entered: dict[tuple[str, str], int] = {}
    for entry in entries:
        at = (entry.backend, entry.group)
        entered[at] = max(entered.get(at, 0), 0 if entry.to_one else entry.sequence)
    return tuple(
        GroupProgress(
            backend=backend,
            group=group,
            entered=number,
            name=names.get(group, ""),
            ranks=text
            if len(text := format_stepped_ranges(members.get(group, ()))) <= _LONGEST_RANKS
            else UNNAMED,
        )
        for (backend, group), number in list(entered.items())[:MOST_GROUPS]
    )


def _list_group_ranks(dumps: Iterable[Mapping[Any, Any]], by: DumpedBy) -> dict[str, list[int]]:
    """Return the ranks of each group, by its name; what the rank itself knows wins."""
    found: dict[str, list[int]] = {}
    for dump in dumps:
        for name, about in _mapping_or_empty(dump.get("pg_config")).items():
            numbers = _parse_rank_numbers(_mapping_or_empty(about).get("ranks"))
            if numbers:
                found[_short_text_or_empty(name)] = numbers
    for name, ranks in (by.groups or {}).items():
        found[name] = _parse_rank_numbers(list(ranks))
    return found


def _list_group_names(dumps: Iterable[Mapping[Any, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for dump in dumps:
        for entry in _sequence_or_empty(dump.get("entries")):
            group = _sequence_or_empty(_mapping_or_empty(entry).get("process_group"))
            if len(group) >= 2 and _short_text_or_empty(group[1]) != "undefined":  # noqa: PLR2004  # name, words
                found[_short_text_or_empty(group[0])] = _short_text_or_empty(group[1])
    return found


def _parse_dump_entries(
    dump: Mapping[Any, Any], by: DumpedBy, members: Mapping[str, list[int]]
) -> Iterable[RecordedCollective]:
    for entry in _sequence_or_empty(dump.get("entries")):
        if (found := _parse_dump_entry(_mapping_or_empty(entry), by)) is not None:
            ranks = members.get(found.group, [])
            if found.peer is not None and found.peer < len(ranks):
                # The name of a message counts ranks within the group.
                found = replace(found, peer=ranks[found.peer])
            yield found


def _parse_dump_entry(entry: Mapping[Any, Any], by: DumpedBy) -> RecordedCollective | None:
    backend, _, name = _short_text_or_empty(entry.get("profiling_name")).partition(":")
    to_one = entry.get("is_p2p") is True
    sequence = entry.get("p2p_seq_id" if to_one else "collective_seq_id")
    group = _sequence_or_empty(entry.get("process_group"))
    if not name or not _is_nonnegative_int(sequence) or not group:
        return None
    peers = _PEERS.match(name)
    finished = _is_entry_finished(entry, backend)
    created = entry.get("time_created_ns")
    waited = by.at_s - created / 1e9 if _is_nonnegative_int(created) and created < 2**63 else None
    return RecordedCollective(
        backend=backend,
        group=_short_text_or_empty(group[0]),
        operation=peers["operation"] if peers else name.partition(" ")[0],
        sequence=sequence,
        to_one=to_one,
        peer=int(peers["peer"]) if peers else None,
        tensor=_format_tensors(entry),
        finished=finished,
        waited_s=None if (finished and not by.gave_up) or waited is None else round(max(waited, 0.0), 3),
        place=_find_user_frame(entry.get("frames")),
    )


def _is_entry_finished(entry: Mapping[Any, Any], backend: str) -> bool:
    if entry.get("state") == "completed" or entry.get("time_discovered_completed_ns"):
        return True
    return entry.get("retired") is True and backend not in _RETIRES_EARLY


def _format_tensors(entry: Mapping[Any, Any]) -> str:
    """Return the inputs as `float32[16, 4], int64[1]`."""
    sizes = _sequence_or_empty(entry.get("input_sizes")) or _sequence_or_empty(entry.get("output_sizes"))
    dtypes = _sequence_or_empty(entry.get("input_dtypes")) or _sequence_or_empty(entry.get("output_dtypes"))
    words = []
    for place, size in enumerate(sizes[:4]):
        name = _short_text_or_empty(dtypes[place]) if place < len(dtypes) else ""
        shape = ", ".join(
            str(length) for length in _sequence_or_empty(size)[:8] if _is_nonnegative_int(length)
        )
        words.append(f"{_DTYPES.get(name, name)}[{shape}]")
    return ", ".join(words) + (", …" if len(sizes) > len(words) else "")


def _find_user_frame(frames: Any) -> str | None:
    """Return the innermost frame of the user's code, as `train.py:88 in step`."""
    for frame in _sequence_or_empty(frames)[:100]:
        about = _mapping_or_empty(frame)
        file, line = _short_text_or_empty(about.get("filename")), about.get("line")
        if file and _is_nonnegative_int(line) and not _LIBRARY.search(file):
            return f"{PurePath(file).name}:{line} in {_short_text_or_empty(about.get('name'))}"
    return None


def _parse_rank_numbers(value: Any) -> list[int]:
    """Return ranks from a list, or from its text as torch writes it: `[0, 1]`."""
    if isinstance(value, str):
        value = [int(digits) for digits in re.findall(r"\d{1,8}", value)]
    return [
        number
        for number in _sequence_or_empty(value)
        if _is_nonnegative_int(number) and number < _HIGHEST_RANK
    ]


def _is_nonnegative_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _mapping_or_empty(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence_or_empty(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else ()


def _short_text_or_empty(value: Any) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""
