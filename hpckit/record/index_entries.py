"""Converts the index entries of a launch to short JSON lists, and back.

The format is internal: changing it needs another VERSION. Pure: record.index reads the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from hpckit.model.failure import Failure
from hpckit.model.goodput import Goodput, Interruption, MeasuredTimes, TimeParts
from hpckit.model.parallel.report import LayoutReport
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.run import RunRecord
from hpckit.model.states import RunState
from hpckit.values import field_names

VERSION = 5

_PARTS = field_names(TimeParts)
_MEASURED = field_names(MeasuredTimes)


def record_entry(record: RunRecord) -> list[Any]:
    """Return the entry for a run as of its latest attempt."""
    return [
        record.state.value,
        record.job,
        record.attempt,
        record.restart_count,
        record.round,
        record.step,
        record.nodes,
        record.exit_code,
        to_plain(record.failure),
        record.supervisor,
        to_plain(record.started_at),
        to_plain(record.ended_at),
        record.metrics,
        record.warnings,
        record.reason,
        record.total,
        to_plain(record.layout),
    ]


def read_record(base: RunRecord, entry: Sequence[Any]) -> RunRecord:
    """Return `base` with its latest attempt; raises ValueError, TypeError, KeyError."""
    state, job, attempt, restart_count, round_number, step, nodes, exit_code = entry[:8]
    failure, supervisor, started_at, ended_at, metrics, warnings, reason, total, layout = entry[8:]
    return RunRecord(
        id=base.id,
        index=base.index,
        overrides=base.overrides,
        folder=base.folder,
        job=job or base.job,
        state=RunState(state),
        attempt=attempt,
        restart_count=restart_count,
        round=round_number,
        step=step,
        total=total,
        nodes=tuple(nodes),
        exit_code=exit_code,
        failure=None if failure is None else from_plain(Failure, failure),
        cancel_requested=base.cancel_requested,
        supervisor=None if supervisor is None else (supervisor[0], supervisor[1], supervisor[2]),
        started_at=_moment(started_at),
        ended_at=_moment(ended_at),
        metrics=dict(metrics),
        warnings=tuple(warnings),
        stage=base.stage,
        reason=reason,
        layout=None if layout is None else from_plain(LayoutReport, layout),
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


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
        interruptions=tuple(from_plain(Interruption, one) for one in interruptions),
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
