"""Converts the index entries of a launch to short JSON lists, and back.

The format is internal: changing it needs another VERSION. Pure: record.index reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from hpckit.model.failure import Failure
from hpckit.model.goodput import Goodput, Interruption, MeasuredTimes, TimeParts
from hpckit.model.parallel.report import LayoutReport
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.run import RunRecord
from hpckit.model.states import RunState
from hpckit.values import field_names, replace

VERSION = 5

_PARTS = field_names(TimeParts)
_MEASURED = field_names(MeasuredTimes)


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


def record_entry(record: RunRecord) -> list[Any]:
    """Return the entry for a run as of its latest attempt."""
    values = ((name, getattr(record, name)) for name in _RECORD)
    return [to_plain(value) if name in _WRITTEN else value for name, value in values]


def read_record(base: RunRecord, entry: Sequence[Any]) -> RunRecord:
    """Return `base` with its latest attempt; raises ValueError, TypeError, KeyError."""
    told = {
        name: _READ[name](value) if name in _READ and value is not None else value
        for name, value in zip(_RECORD, entry, strict=True)
    }
    return replace(base, **told | {"job": told["job"] or base.job})


def account_entry(account: Goodput) -> list[Any]:
    """Return the entry for the account of a run."""
    return [
        [to_plain(getattr(account.parts, name)) for name in _PARTS],
        account.stepped,
        account.attempts,
        account.rounds,
        account.lost_steps,
        account.saves,
        account.saved_bytes,
        to_plain(account.writing),
        to_plain(account.interruptions),
        to_plain(account.first_wait),
        [to_plain(getattr(account.measured, name)) for name in _MEASURED],
        account.ettr_expected,
    ]


def read_account(entry: Sequence[Any]) -> Goodput:
    """Return the account of an entry; raises as `read_record`."""
    parts, stepped, attempts, rounds, lost_steps, saves, saved_bytes = entry[:7]
    writing, interruptions, first_wait, measured, ettr_expected = entry[7:]
    return Goodput(
        parts=TimeParts(**{name: _span(s) for name, s in zip(_PARTS, parts, strict=True)}),
        stepped=stepped,
        attempts=attempts,
        rounds=rounds,
        lost_steps=lost_steps,
        saves=saves,
        saved_bytes=saved_bytes,
        writing=_span(writing),
        interruptions=tuple(
            from_plain(Interruption, interruption) for interruption in interruptions
        ),
        first_wait=_span(first_wait),
        measured=MeasuredTimes(
            **{
                name: None if s is None else _span(s)
                for name, s in zip(_MEASURED, measured, strict=True)
            }
        ),
        ettr_expected=ettr_expected,
    )


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
