"""Reads what `hpckit top` shows: the record of a launch as it grows, and Slurm now and then."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from hpckit.context import Context
from hpckit.features.top.detail import (
    EventNote,
    format_event,
    format_events,
    format_last_log_lines,
    list_state_changes,
    update_step_from_curve,
)
from hpckit.features.top.frame import (
    GpuNow,
    RunActivity,
    TopDetail,
    TopFrame,
    build_gpu_snapshot,
    build_top_rows,
    compute_mean_step_s,
    format_launch_and_progress,
    list_metric_names,
)
from hpckit.features.top.metric_curve import GrowingFile, MetricCurve, build_curve_key, load_curve
from hpckit.model.events import Event, decode_event
from hpckit.model.run import RunRecord, RunView
from hpckit.model.states import RunState
from hpckit.model.telemetry.json_form import decode_telemetry
from hpckit.model.telemetry.vocabulary import GpuDevice, TelemetryRow
from hpckit.record.launch_events import Mark
from hpckit.record.launches import Launch, read_launch_events
from hpckit.record.logs import LogFile, LogKind, find_logs_without_rank_logs
from hpckit.record.store import read_last_lines
from hpckit.record.telemetry import read_latest_telemetry
from hpckit.report.escape import escape_table_cell
from hpckit.report.rows import LaunchHead, RunRow
from hpckit.values import dataclass, field, replace
from hpckit.views.accounts import compute_goodput_by_run
from hpckit.views.launch_view import build_launch_head
from hpckit.views.launch_watch import LaunchWatch

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

    def read_detail(
        self, view: RunView, metric: str, activity: RunActivity, mark: Mark, changes: Iterable[EventNote]
    ) -> TopDetail:
        """Return the detail of a run; `mark` is that of the launch's events.

        The curve has to be loaded beforehand: else it is left out, and the detail says so.
        """
        record, log = view.record, self._choose_log_file(view.record)
        known = self.curve if metric and record.attempt else None
        if known is not None and known.key != build_curve_key(record, metric):
            known = None
        notes = [*self._read_event_notes(record, mark), *changes]
        whose = "" if log is None else log.kind if log.rank is None else f"rank {log.rank}"
        return TopDetail(
            index=record.index,
            title=escape_table_cell(self._format_title(view)),
            metric=metric,
            points=() if known is None else known.read_all_points(),
            loading=known is None and bool(metric and record.attempt),
            activity=activity,
            log_title=whose and f"log of {whose}",
            log=() if log is None else format_last_log_lines(self._read_log_end(log.path), KEPT_LINES),
            events=format_events(notes, KEPT_LINES),
        )

    def _format_title(self, view: RunView) -> str:
        record = view.record
        words = [word for word in record.overrides if word not in self.common]
        more = len(record.nodes) - 1
        nodes = [f"on {record.nodes[0]}"] if record.nodes else []
        nodes += [f"and {more} more"] if more > 0 else []
        return " ".join([f".{record.index}", view.state.value, *nodes, *words])

    def _read_event_notes(self, record: RunRecord, mark: Mark) -> list[EventNote]:
        key = (record.index, record.attempt, mark)
        if self._events is None or self._events.key != key:
            paths = self.launch.paths.run(record.index).attempt(record.attempt)
            self._events = _Events(
                key=key,
                of_launch=_events_to_notes(read_launch_events(self.launch)),
                file=GrowingFile(path=paths.events, most=_EVENT_BYTES),
            )
        told = map(decode_event, self._events.file.read_new_rows())
        self._events.notes.extend(_events_to_notes(event for event in told if event is not None))
        return [*self._events.of_launch, *self._events.notes]

    def _choose_log_file(self, record: RunRecord) -> LogFile | None:
        """Return the log of the rank that failed, else of rank 0; else what says why there is none.

        The folder of a round is not listed: it may hold thousands of files.
        """
        if record.round is not None:
            paths = self.launch.paths.run(record.index).attempt(record.attempt)
            blamed = 0 if record.failure is None else record.failure.rank or 0
            for rank in dict.fromkeys((blamed, 0)):
                path = paths.round(record.round).rank_log(rank)
                if os.access(path, os.R_OK):
                    return LogFile(kind=LogKind.rank, path=path, rank=rank)
        return next(iter(find_logs_without_rank_logs(self.launch, record.index, job=record.job)), None)

    def _read_log_end(self, path: Path) -> str:
        try:
            now = path.stat()
        except OSError:
            return ""
        if self._log != (seen := (path, now.st_size, now.st_mtime_ns)):
            self._log, self._log_end = seen, read_last_lines(path, KEPT_LINES)
        return self._log_end


def _events_to_notes(told: Iterable[Event]) -> list[EventNote]:
    notes = ((event.at, format_event(event)) for event in told)
    return [(at, words) for at, words in notes if words]


_GOODPUT_AGE = timedelta(seconds=30)
_ACCOUNTS = 5
"""Accounts that are made at one look: each reads all events of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRequest:
    """What a view shows: the runs that are `visible`, the `selected` one, and the metric.

    `metric` empty: the first one that is logged. `selected` None: the first running run.
    """

    visible: tuple[int, ...] = ()
    selected: int | None = None
    metric: str = ""


@dataclass(slots=True, kw_only=True)
class TopReader:
    """A launch, or its runs of `indices`, that is looked at again and again."""

    launch: Launch
    context: Context
    indices: Sequence[int] | None = None
    watch: LaunchWatch = field(init=False)
    head: LaunchHead = field(init=False)
    _activities: RunActivities = field(init=False)
    _detail: RunDetail = field(init=False)
    _known: dict[int, RunActivity] = field(default_factory=dict, init=False)
    _goodput: dict[int, tuple[datetime, RunState, float | None]] = field(default_factory=dict, init=False)
    _states: dict[int, RunState] = field(default_factory=dict, init=False)
    _changes: deque[EventNote] = field(default_factory=lambda: deque(maxlen=KEPT_LINES), init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self.watch = LaunchWatch(launch=self.launch, context=self.context, indices=self.indices)
        self.head = build_launch_head(self.launch)
        self._activities = RunActivities(launch=self.launch)
        self._detail = RunDetail(launch=self.launch, common=self.head.common)

    def read_frame(self, request: TopRequest) -> TopFrame:
        """Look once: read what has changed, and ask Slurm if it is time to. Raises HpckitError."""
        with self._lock:
            self.watch.refresh_once()
            rows = self.watch.run_rows
            now = self.context.now()
            self._changes.extend(list_state_changes(self._states, rows, now))
            self._states = {row.index: row.state for row in rows}
            self._activities.record_steps_of_runs((view.record for view in self.watch.poller.views), now)
            return self._build_frame(rows, request, now)

    def rebuild_frame(self, request: TopRequest) -> TopFrame:
        """Return what was seen last for another request; reads only files of the visible runs."""
        with self._lock:
            return self._build_frame(self.watch.run_rows, request, self.context.now())

    def load_selected_curve(self, request: TopRequest) -> TopFrame:
        """Read the curve of the selected run in full, then as `redraw`; looks continue meanwhile.

        Raises HpckitError.
        """
        with self._lock:
            rows = self.watch.run_rows
            view, metric = (
                self._find_selected_run(rows, request.selected),
                _choose_shown_metric(rows, request),
            )
        if view is not None and metric and view.record.attempt:
            loaded = load_curve(self.launch, view.record, metric)
            with self._lock:
                self._detail.curve = loaded
        return self.rebuild_frame(request)

    def _build_frame(self, rows: Sequence[RunRow], request: TopRequest, now: datetime) -> TopFrame:
        metric = _choose_shown_metric(rows, request)
        visible = {*request.visible}
        selected = self._find_selected_run(rows, request.selected)
        if selected is not None:
            visible.add(selected.record.index)
        views = [view for view in self.watch.poller.views if view.record.index in visible]
        running = [view.record for view in views if view.state is RunState.running]
        self._known.update(self._activities.read_activities(running, now))
        self._update_goodput(views, now)
        detail = None
        if selected is not None:
            activity = self._known.get(selected.record.index, RunActivity())
            mark, changes = self.watch.mark, self._changes
            detail = self._detail.read_detail(selected, metric, activity, mark, changes)
        shown = build_top_rows(
            update_step_from_curve(rows, detail),
            self._known,
            {index: share for index, (_, _, share) in self._goodput.items()},
            metric=metric,
            common=self.head.common,
        )
        return TopFrame(
            head=format_launch_and_progress(self.head, self.watch.estimate_progress(rows), len(rows)),
            rows=shown,
            metric=metric,
            metrics=list_metric_names(rows),
            warning=self.watch.poller.warning,
            detail=detail,
        )

    def _find_selected_run(self, rows: Sequence[RunRow], wanted: int | None) -> RunView | None:
        views = {view.record.index: view for view in self.watch.poller.views}
        if wanted in views and wanted is not None:
            return views[wanted]
        running = [row.index for row in rows if row.state is RunState.running]
        first = next(iter([*running, *views]), None)
        return None if first is None else views[first]

    def _update_goodput(self, views: Iterable[RunView], now: datetime) -> None:
        due = [view for view in views if view.record.attempt and self._is_goodput_old(view, now)]
        due = due[:_ACCOUNTS]
        known = compute_goodput_by_run(self.launch, due, now) if due else {}
        for view in due:
            share = known[view.record.index].goodput
            self._goodput[view.record.index] = (now, view.state, share)

    def _is_goodput_old(self, view: RunView, now: datetime) -> bool:
        at, state, _ = self._goodput.get(view.record.index, (None, None, None))
        if at is None or state is not view.state:
            return True
        return view.state is RunState.running and now - at >= _GOODPUT_AGE


def _choose_shown_metric(rows: Sequence[RunRow], request: TopRequest) -> str:
    names = list_metric_names(rows)
    return request.metric if request.metric in names else next(iter(names), "")


_FILES = 64
"""The most files that are read at one look."""

_AGAIN = timedelta(seconds=8)
_OLD = timedelta(minutes=5)
_END_BYTES = 100_000
_STEPS_KEPT = 20


@dataclass(slots=True, kw_only=True)
class _Node:
    """The telemetry of one node in one attempt."""

    name: str
    file: GrowingFile
    devices: dict[str, GpuDevice] | None = None
    row: TelemetryRow | None = None
    read_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class RunActivities:
    """The activities of some runs of a launch.

    Only a few files are read at each look, the longest unread first: rows come every half a minute.
    """

    launch: Launch
    _nodes: dict[tuple[int, int, str], _Node] = field(default_factory=dict, init=False)
    _steps: dict[int, deque[tuple[datetime, int]]] = field(default_factory=dict, init=False)

    def record_steps_of_runs(self, records: Iterable[RunRecord], now: datetime) -> None:
        """Remember at which step runs are, for runs without telemetry."""
        for record in records:
            if record.step is None:
                continue
            seen = self._steps.setdefault(record.index, deque(maxlen=_STEPS_KEPT))
            if seen and record.step < seen[-1][1]:  # a restart
                seen.clear()
            if not seen or record.step > seen[-1][1]:
                seen.append((now, record.step))

    def read_activities(self, records: Iterable[RunRecord], now: datetime) -> Mapping[int, RunActivity]:
        """Return the activity of each of these runs, by index."""
        nodes = {record.index: self._list_telemetry_nodes_of_run(record) for record in records}
        due = [
            one
            for some in nodes.values()
            for one in some
            if one.read_at is None or now - one.read_at >= _AGAIN
        ]
        due.sort(key=lambda one: one.read_at or datetime.min.replace(tzinfo=now.tzinfo))
        for run in due[:_FILES]:
            run.read_at = now
            for row in map(decode_telemetry, run.file.read_new_rows()):
                if isinstance(row, TelemetryRow) and row.end > row.start:
                    run.row = row
        return {index: self._build_activity(index, some, now) for index, some in nodes.items()}

    def _list_telemetry_nodes_of_run(self, record: RunRecord) -> list[_Node]:
        if record.round is None:
            return []
        attempt = self.launch.paths.run(record.index).attempt(record.attempt)
        found = []
        for name in record.nodes:
            key = (record.index, record.attempt, name)
            if key not in self._nodes:
                file = GrowingFile(path=attempt.newest_telemetry_file(name), most=_END_BYTES)
                self._nodes[key] = _Node(name=name, file=file)
            if self._nodes[key].devices is None and self._nodes[key].row is not None:
                with suppress(OSError):
                    devices = read_latest_telemetry(attempt, name).devices
                    self._nodes[key].devices = {device.uuid: device for device in devices}
            found.append(self._nodes[key])
        return found

    def _build_activity(self, index: int, nodes: Iterable[_Node], now: datetime) -> RunActivity:
        young = [node for node in nodes if node.row is not None and now - node.row.end < _OLD]
        ranks = tuple(replace(rank, node=node.name) for node in young if node.row for rank in node.row.ranks)
        step_s = compute_mean_step_s(ranks)
        return RunActivity(
            step_s=self._estimate_step_s(index) if step_s is None else step_s,
            gpus=tuple(gpu for node in young for gpu in _build_gpu_snapshots_of_node(node)),
            ranks=tuple({rank.rank: rank for rank in ranks}.values()),
        )

    def _estimate_step_s(self, index: int) -> float | None:
        seen = self._steps.get(index)
        if seen is None or len(seen) < 2:  # noqa: PLR2004  # two points make a difference
            return None
        (first_at, first), (last_at, last) = seen[0], seen[-1]
        return (last_at - first_at).total_seconds() / (last - first)


def _build_gpu_snapshots_of_node(one: _Node) -> list[GpuNow]:
    known = one.devices or {}
    parents = {device.parent for device in known.values()}
    rows = () if one.row is None else one.row.gpus
    return [build_gpu_snapshot(one.name, row, known.get(row.uuid)) for row in rows if row.uuid not in parents]
