"""The index of a launch: its ended runs as last read, so that they are read only once.

It is a cache that makes reading faster: it may be missing, old, damaged or deleted at any time.
Never base a decision on it.

An entry is valid while the files it was read from keep their sizes and times: four stat calls
instead of reading four files. A run that completed more than an hour ago is not checked at all: by
then Slurm has forgotten its job, and only a resume can start it again, which the launch's own
events show. A sweep that ended long ago thus costs a network file system nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from hpckit.model.failure import Failure
from hpckit.model.goodput import Goodput, Interruption, MeasuredTimes, TimeParts
from hpckit.model.parallel.layout import LayoutReport
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.run import RunRecord
from hpckit.model.states import RunState
from hpckit.record.layout import LaunchPaths
from hpckit.record.store import make_private_folder, read_json, write_text_atomically
from hpckit.values import dataclass, field, field_names, replace

VERSION = 5
"""Of the format of entries, which is internal: a change needs another number."""

_RECORD = (
    *("state", "job", "attempt", "restart_count", "round", "step", "nodes", "exit_code"),
    *("failure", "supervisor", "started_at", "ended_at", "metrics", "warnings", "reason"),
    *("total", "layout"),
)
"""The fields of a run's entry, in their order."""

_READ: Mapping[str, Callable[[Any], Any]] = {
    "state": RunState,
    "nodes": tuple,
    "failure": partial(from_plain, Failure),
    "supervisor": tuple,
    "started_at": datetime.fromisoformat,
    "ended_at": datetime.fromisoformat,
    "metrics": dict,
    "warnings": tuple,
    "layout": partial(from_plain, LayoutReport),
}
"""How those are read that JSON has no type for, unless they are null."""
_WRITTEN = frozenset({"state", "failure", "started_at", "ended_at", "layout"})
_ACCOUNT = tuple(name for name in field_names(Goodput) if name != "standstill")
"""The fields of an account's entry; the standstill is that of the moment."""
_TIMES: Mapping[str, type] = {"parts": TimeParts, "measured": MeasuredTimes}
"""Those of them that are lists of durations."""


def decode_run_record(base: RunRecord, entry: Sequence[Any]) -> RunRecord:
    """Return `base` with its latest attempt; raises ValueError, TypeError, KeyError."""
    told = {
        name: _READ[name](value) if name in _READ and value is not None else value
        for name, value in zip(_RECORD, entry, strict=True)
    }
    return replace(base, **told | {"job": told["job"] or base.job})


def decode_goodput(entry: Sequence[Any]) -> Goodput:
    """Return the account of an entry; raises as `decode_run_record`."""
    told = dict(zip(_ACCOUNT, entry, strict=True))
    for name, kind in _TIMES.items():
        times = zip(field_names(kind), told[name], strict=True)
        told[name] = from_plain(kind, dict(times))
    told |= {name: timedelta(seconds=told[name]) for name in ("writing", "first_wait")}
    found = told["interruptions"]
    told["interruptions"] = tuple(from_plain(Interruption, interruption) for interruption in found)
    return Goodput(**told)


LEAST_RUNS = 50
"""Fewer runs are read as fast as an index."""

QUIET = timedelta(hours=1)
"""Longer than slurmctld remembers an ended job (MinJobAge, 5 minutes by default)."""

_QUIET = 2
_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError)


@dataclass(slots=True, kw_only=True)
class RunIndex:
    """The index of a launch with `total` runs; `kept` maps run to [attempt, stamp, quiet, record].

    `accounts` maps run to [attempt, stamp, submissions, account], and is read on first use.
    """

    paths: LaunchPaths
    total: int
    now: datetime
    kept: dict[str, list[Any]] = field(default_factory=dict)
    accounts: dict[str, list[Any]] | None = None
    new: int = 0
    new_accounts: int = 0

    def find_up_to_date_record(self, base: RunRecord, after: int) -> RunRecord | None:
        """Return a run as of its latest attempt; None if its files have to be read.

        `base` is the run without attempts. `after` is how many attempts it had when it was last
        given to a job: only later attempts count.
        """
        entry = self.kept.get(str(base.index))
        if entry is None:
            return None
        try:
            attempt, stamp, quiet, record = entry
            if attempt <= after:
                return None
            if not quiet and stamp != self.stat_attempt_files(base.index, attempt):
                return None
            found = decode_run_record(base, record)
        except _UNREADABLE:
            del self.kept[str(base.index)]
            return None
        if not quiet and self._has_completed_long_ago(found):
            entry[_QUIET] = True
            self.new += 1
        return found

    def cache_record_of_ended_attempt(self, record: RunRecord, attempt: int, stamp: list[int] | None) -> None:
        """Keep a run whose latest attempt has ended; `stamp` was taken before reading it."""
        if stamp is None or not record.state.ended or attempt != record.attempt:
            return
        values = ((name, getattr(record, name)) for name in _RECORD)
        entry = [to_plain(value) if name in _WRITTEN else value for name, value in values]
        self.kept[str(record.index)] = [attempt, stamp, self._has_completed_long_ago(record), entry]
        self.new += 1

    def find_up_to_date_goodput(self, run: int, submissions: Iterable[datetime]) -> Goodput | None:
        """Return a run's account if the index has it and it is still valid, else None."""
        if self.accounts is None:
            self.accounts = _read_index_file(self.paths.cache_file("accounts"))
        entry, current = self.accounts.get(str(run)), self.kept.get(str(run))
        if entry is None or current is None:
            return None
        try:
            if entry[:3] != [*current[:2], _times_to_json(submissions)]:
                return None
            return decode_goodput(entry[3])
        except _UNREADABLE:
            return None

    def cache_goodput_of_run(self, run: int, submissions: Iterable[datetime], account: Goodput) -> None:
        """Keep the account of a run that is in the index."""
        current = self.kept.get(str(run))
        if current is not None and self.accounts is not None:
            values = ((name, to_plain(getattr(account, name))) for name in _ACCOUNT)
            entry = [list(value.values()) if name in _TIMES else value for name, value in values]
            self.accounts[str(run)] = [*current[:2], _times_to_json(submissions), entry]
            self.new_accounts += 1

    def save_new_entries(self) -> None:
        """Write new entries if there are enough of them; errors such as a full disk are ignored."""
        worth = max(self.total // 100, 1)
        if self.new >= worth:
            _write_index_file(self.paths.cache_file("runs"), self.kept)
            self.new = 0
        if self.new_accounts >= worth and self.accounts is not None:
            _write_index_file(self.paths.cache_file("accounts"), self.accounts)
            self.new_accounts = 0

    def stat_attempt_files(self, run: int, attempt: int) -> list[int] | None:
        """Return the sizes and times of the files that a record is read from; None without events.

        The folder's link count shows new attempts when its time is too coarse.
        """
        folder, events, *rest = self.paths.list_attempt_file_paths(run, attempt)
        try:
            seen = os.stat(folder)  # noqa: PTH116  # see layout: no Paths
            stamp = [seen.st_mtime_ns, seen.st_nlink, *_read_size_and_mtime(events)]
        except OSError:
            return None
        for path in rest:
            try:
                stamp += _read_size_and_mtime(path)
            except OSError:
                stamp += (0, 0)
        return stamp

    def _has_completed_long_ago(self, record: RunRecord) -> bool:
        if record.state is not RunState.completed or record.ended_at is None:
            return False
        return self.now - record.ended_at > QUIET


def load_run_index(paths: LaunchPaths, total: int, now: datetime, *, anew: bool = False) -> RunIndex | None:
    """Return the index of a launch with `total` runs, None if too few; `anew` starts it empty."""
    if total < LEAST_RUNS:
        return None
    kept = {} if anew else _read_index_file(paths.cache_file("runs"))
    return RunIndex(paths=paths, total=total, now=now, kept=kept, accounts={} if anew else None)


def _read_size_and_mtime(path: str) -> tuple[int, int]:
    seen = os.stat(path)  # noqa: PTH116  # likewise
    return seen.st_size, seen.st_mtime_ns


def _times_to_json(moments: Iterable[datetime]) -> list[str]:
    return [to_plain(moment) for moment in moments]


def _read_index_file(path: Path) -> dict[str, list[Any]]:
    try:
        document = read_json(path)
        runs = document["runs"] if document["v"] == VERSION else {}
    except (OSError, RecursionError, *_UNREADABLE):
        return {}
    return runs if isinstance(runs, dict) else {}


def _write_index_file(path: Path, runs: dict[str, list[Any]]) -> None:
    with suppress(OSError):
        make_private_folder(path.parent)
        text = json.dumps({"v": VERSION, "runs": runs}, separators=(",", ":"))
        write_text_atomically(path, text, lasting=False)
