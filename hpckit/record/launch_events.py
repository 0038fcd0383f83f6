"""The events of a launch: one file for each process that records any, merged on reading.

Over NFS, lines that two hosts append to one file overwrite each other, so no file here has two writers.

Clocks of hosts differ, so times alone give no order. Every event carries a number, `n`, greater
than those of all events that its writer could see (Lamport, 1978): an action taken with knowledge
of an event comes after it. Events whose writers did not know of each other are ordered by time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpckit.model.events import Event, decode_event, encode_event
from hpckit.record.layout import LaunchPaths
from hpckit.record.process import this_host
from hpckit.record.store import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    append_json_lines,
    open_regular_file,
    read_rows_with_offsets,
)
from hpckit.values import dataclass, field

_SUFFIX = ".jsonl"
Mark = tuple[tuple[str, int, int], ...]
"""Changes when events were added: name, size and time of every file."""


@dataclass(slots=True, kw_only=True)
class Writer:
    """One process's writer for a launch: its own file, and how far it has read the others."""

    path: Path
    number: int = 0
    seen: dict[str, int] = field(default_factory=dict)

    @classmethod
    def create_events_file(cls, paths: LaunchPaths) -> Writer:
        """Create this process's own file; raises OSError."""
        return cls(path=_create_unique_file(paths.events))

    def append_event(self, event: Event) -> None:
        """Append an event, ordered after all events visible now; raises OSError."""
        for path in _list_events_files(self.path.parent):
            if path != self.path:  # another process may have added to its file
                for row, end in read_rows_with_offsets(path, start=self.seen.get(path.name, 0)):
                    self.number = max(self.number, _parse_event_number(row))
                    self.seen[path.name] = end
        append_json_lines(self.path, {**encode_event(event), "n": self.number + 1})
        self.number += 1


_writers: dict[tuple[int, Path], Writer] = {}
_one_at_a_time = threading.Lock()


def record_launch_event(paths: LaunchPaths, event: Event) -> None:
    """Record an event of a launch in this process's own file; raises OSError."""
    key = (os.getpid(), paths.events)
    with _one_at_a_time:
        if key not in _writers or not _writers[key].path.exists():
            _writers[key] = Writer.create_events_file(paths)
        _writers[key].append_event(event)


def read_merged_events(paths: LaunchPaths) -> Iterator[Event]:
    """Yield the events of a launch in order, without kinds that this version does not know."""
    rows = [row for path in _list_events_files(paths.events) for row in _read_rows_with_sort_keys(path)]
    for *_, record in sorted(rows, key=lambda row: row[:4]):
        event = decode_event(record)
        if event is not None:
            yield event


def stat_events_files(paths: LaunchPaths) -> Mark:
    """Return a mark that changes with new events; opens the files to get fresh data over NFS."""
    return tuple((path.name, *_read_fresh_size_and_mtime(path)) for path in _list_events_files(paths.events))


def refresh_nfs_listing_of_events(paths: LaunchPaths) -> None:
    """Make this host see every events file, before a decision based on them.

    An NFS client may use a folder listing that is a minute old, unless it changes the folder itself.
    """
    with suppress(OSError):
        _create_unique_file(paths.events, suffix=".look").unlink()


def _list_events_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == _SUFFIX)
    except FileNotFoundError:
        return []


def _create_unique_file(folder: Path, suffix: str = _SUFFIX) -> Path:
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    path = folder / f"{this_host()}-{os.getpid()}-{os.urandom(4).hex()}{suffix}"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
    return path


def _read_fresh_size_and_mtime(path: Path) -> tuple[int, int]:
    with open_regular_file(path) as file:
        seen = os.fstat(file.fileno())
    return seen.st_size, seen.st_mtime_ns


def _read_rows_with_sort_keys(path: Path) -> Iterator[tuple[int, str, str, int, Mapping[str, Any]]]:
    """Yield the rows of a file, each with its sort key; the order within a file is kept."""
    number, at = 0, ""
    for place, (row, _) in enumerate(read_rows_with_offsets(path)):
        number, at = max(number, _parse_event_number(row)), max(at, str(row.get("at", "")))
        yield number, at, path.name, place, row


def _parse_event_number(row: Mapping[str, Any]) -> int:
    number = row.get("n")
    return number if isinstance(number, int) else 0
