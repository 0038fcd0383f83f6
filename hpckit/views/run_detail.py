"""One run of a live view in detail: its curve, the end of its log, its events, as they grow."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from hpckit.model.events import Event, decode_event
from hpckit.model.run import RunRecord, RunView
from hpckit.record.launch_events import Mark
from hpckit.record.launches import Launch, read_launch_events
from hpckit.record.logs import LogFile, LogKind, other_logs
from hpckit.record.store import tail
from hpckit.report.escape import escaped_cell
from hpckit.report.live_view.top import RunActivity, TopDetail
from hpckit.report.live_view.top_detail import EventNote, event_lines, event_words, log_lines
from hpckit.values import dataclass, field
from hpckit.views.metric_curve import GrowingFile, MetricCurve, curve_key

KEPT_LINES = 200
"""Lines of a log, and events, that are kept for a view."""

_EVENT_BYTES = 64 * 1024
"""Of the events of a long attempt, only the latest are read."""


@dataclass(slots=True, kw_only=True)
class _Events:
    """The events of a launch, and those of one attempt as they come; `key` says of which."""

    key: tuple[int, int, Mark]
    of_launch: list[EventNote]
    file: GrowingFile
    notes: deque[EventNote] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))


@dataclass(slots=True, kw_only=True)
class RunDetail:
    """The run that was asked for last; `common` are overrides that all runs have."""

    launch: Launch
    common: frozenset[str]
    curve: MetricCurve | None = field(default=None, init=False)
    _events: _Events | None = field(default=None, init=False)
    _log: tuple[Path, int, int] | None = field(default=None, init=False)
    """Path, size and time of the log whose end was read; it is read again when they change."""
    _log_end: str = field(default="", init=False)

    def read(
        self,
        view: RunView,
        metric: str,
        activity: RunActivity,
        mark: Mark,
        changes: Iterable[EventNote],
    ) -> TopDetail:
        """Return the detail of a run; `mark` is that of the launch's events.

        The curve has to be loaded beforehand: else it is left out, and the detail says so.
        """
        record, log = view.record, self._log_file(view.record)
        known = self.curve if metric and record.attempt else None
        if known is not None and known.key != curve_key(record, metric):
            known = None
        notes = [*self._notes(record, mark), *changes]
        whose = "" if log is None else log.kind if log.rank is None else f"rank {log.rank}"
        return TopDetail(
            index=record.index,
            title=escaped_cell(self._title(view)),
            metric=metric,
            points=() if known is None else known.points(),
            loading=known is None and bool(metric and record.attempt),
            activity=activity,
            log_title=whose and f"log of {whose}",
            log=() if log is None else log_lines(self._log_text(log.path), KEPT_LINES),
            events=event_lines(notes, KEPT_LINES),
        )

    def _title(self, view: RunView) -> str:
        record = view.record
        words = [word for word in record.overrides if word not in self.common]
        more = len(record.nodes) - 1
        nodes = [f"on {record.nodes[0]}"] if record.nodes else []
        nodes += [f"and {more} more"] if more > 0 else []
        return " ".join([f".{record.index}", view.state.value, *nodes, *words])

    def _notes(self, record: RunRecord, mark: Mark) -> list[EventNote]:
        key = (record.index, record.attempt, mark)
        if self._events is None or self._events.key != key:
            paths = self.launch.paths.run(record.index).attempt(record.attempt)
            self._events = _Events(
                key=key,
                of_launch=_noted(read_launch_events(self.launch)),
                file=GrowingFile(path=paths.events, most=_EVENT_BYTES),
            )
        told = map(decode_event, self._events.file.new_rows())
        self._events.notes.extend(_noted(event for event in told if event is not None))
        return [*self._events.of_launch, *self._events.notes]

    def _log_file(self, record: RunRecord) -> LogFile | None:
        """Return the log of the rank that failed, else of rank 0; else what says why there is none.

        The folder of a round is not listed: it may hold thousands of files.
        """
        if record.round is not None:
            paths = self.launch.paths.run(record.index).attempt(record.attempt)
            blamed = 0 if record.failure is None else record.failure.rank or 0
            for rank in dict.fromkeys((blamed, 0)):
                path = paths.round(record.round).log(rank)
                if os.access(path, os.R_OK):
                    return LogFile(kind=LogKind.rank, path=path, rank=rank)
        return next(iter(other_logs(self.launch, record.index, job=record.job)), None)

    def _log_text(self, path: Path) -> str:
        try:
            now = path.stat()
        except OSError:
            return ""
        if self._log != (seen := (path, now.st_size, now.st_mtime_ns)):
            self._log, self._log_end = seen, tail(path, KEPT_LINES)
        return self._log_end


def _noted(told: Iterable[Event]) -> list[EventNote]:
    notes = ((event.at, event_words(event)) for event in told)
    return [(at, words) for at, words in notes if words]
