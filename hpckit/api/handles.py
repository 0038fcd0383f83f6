"""Handles on launches and runs: by them a program looks, waits, and acts, from any process."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

from hpckit.api.display import Table, format_html_table, show_wait_progress
from hpckit.api.history import (
    HISTORY_COLUMNS,
    MetricPoint,
    choose_metric_to_draw,
    draw_metric_curve,
    read_metric_points,
)
from hpckit.api.invocation import build_python_context, explain_errors
from hpckit.api.watch import Place, Watch, group_places
from hpckit.context import Context
from hpckit.errors import HpckitError, NotFoundError, RunFailedError, UsageError
from hpckit.features.reporting.gather import build_report
from hpckit.features.reporting.page import render_page_chunks
from hpckit.features.reporting.verb_report import read_plotly_script
from hpckit.model.failure import Failure
from hpckit.model.ids import build_run_id
from hpckit.model.states import RunState
from hpckit.operations.cancel import cancel_runs, plan_cancellations
from hpckit.operations.new_settings import build_settings_order, parse_resume_overrides
from hpckit.operations.output_file import REPORT, check_output_file, write_output_file
from hpckit.operations.resume import Order, format_skipped_runs, resume_runs
from hpckit.record.launches import Launch as LaunchRecord
from hpckit.record.launches import load_launch, load_launch_of_any_owner
from hpckit.record.logs import find_rank_logs, read_whole_log
from hpckit.record.lookup import Selection
from hpckit.report.results import ResultRow, list_column_names, list_row_values
from hpckit.report.rows import RunRow, build_run_row, count_runs_by_state
from hpckit.report.selection import Filter, parse_override_values
from hpckit.report.text import format_state_counts
from hpckit.values import replace
from hpckit.views.across_launches import ChosenRuns, build_results_of_runs
from hpckit.views.freshness import Freshness
from hpckit.views.launch_view import Ask, build_launch_views

_CURVES = 20
_STATUS = ("run", "state", "job", "attempt", "step", "cause", "nodes", "started_at", "ended_at", "note")


class Launch:
    """The runs of one launch, or of those that replace some of them; made by `launch` and `open`.

    It holds no state that could go out of date, and can be pickled. Any process opens the runs of a
    launch again by `hpckit.open(launch.folder)`. All of its methods may be called from several threads.
    They raise HpckitError if the record cannot be read.

    Example:
        launch = hpckit.open("digits")
        launch.wait()
        print(launch.status(), launch[0].metrics)

    """

    def __init__(
        self, places: Sequence[Place], _folder: Path | None = None, *, _watch: Watch | None = None
    ) -> None:
        self._places = tuple(places)
        self.folder = places[0][0] if _folder is None else _folder
        self._watch = Watch(self._places) if _watch is None else _watch

    @property
    def id(self) -> str:
        """The id of the launch; of known runs alone, that of the first one's launch."""
        return self.folder.name

    @property
    def runs(self) -> tuple[LaunchedRun, ...]:
        """The runs, in the order they were asked for."""
        return tuple(map(self._get_run, self._places))

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[LaunchedRun]:
        return iter(self.runs)

    @overload
    def __getitem__(self, index: int) -> LaunchedRun: ...
    @overload
    def __getitem__(self, index: slice) -> Launch: ...
    def __getitem__(self, index: int | slice) -> LaunchedRun | Launch:
        if isinstance(index, slice):
            return Launch(self._places[index], _folder=self.folder, _watch=self._watch)
        return self._get_run(self._places[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Launch) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self._places)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._places, self.folder)

    def _get_run(self, place: Place) -> LaunchedRun:
        return LaunchedRun([place], _watch=self._watch)

    @explain_errors
    def status(self) -> Table[RunRow]:
        """Return how each run stands; Slurm's answer may be some seconds old, as several may ask."""
        rows = self._read_rows()
        records = tuple(tuple(map(_read_status_of(row), _STATUS)) for row in rows)
        return Table(rows=rows, columns=_STATUS, records=records)

    @explain_errors
    def wait(self, timeout: float | None = None, *, progress: bool | None = None) -> bool:
        """Wait until nothing more will happen to the runs; return whether all of them completed.

        A failed run that hpckit starts again has not ended. `timeout` is in seconds; TimeoutError is
        raised after it. In a terminal and in a notebook a line shows the progress, unless
        `progress=False`. After Ctrl-C the runs continue.
        """
        if timeout is not None and not timeout >= -math.inf:
            raise UsageError(f"timeout is {timeout}; it must be a number of seconds, or None")
        context = build_python_context()
        until = None if timeout is None else time.monotonic() + timeout
        self._watch.look_again_at_ended(context)
        with show_wait_progress(self.id, len(self._places), wanted=progress) as show:
            try:
                while True:
                    over, views = self._watch.look(self._places, context)
                    show(count_runs_by_state(view.state for view in views))
                    if over:
                        return all(view.state is RunState.completed for view in views)
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError(f"{self.id} has not ended after {timeout:g} s; its runs continue")
                    time.sleep(min(self._watch.pause_s, left or self._watch.pause_s))
            except KeyboardInterrupt:
                context.note(f"warning: stopped waiting for {self.id}; its runs continue")
                raise

    @explain_errors
    def cancel(self) -> None:
        """Stop the runs, waiting or running; safe to repeat. Does not wait for their end.

        Raises ForeignError if they are another user's, SchedulerError if Slurm does not answer.
        """
        context, selections = build_python_context(), list[Selection]()
        for folder, indices in group_places(self._places).items():
            launch = load_launch(folder)
            whole = len(indices) == len(launch.runs)
            selections += [Selection(launch=launch, index=index) for index in ([None] if whole else indices)]
        cancel_runs(list(plan_cancellations(selections, Filter(), context)), context)

    @explain_errors
    def resume(self, *words: str, cancelled: bool = False, changed_code: bool = False) -> Self:
        """Start again what failed, was interrupted or is missing, as `hpckit resume`; return this handle.

        `words` are other settings to go on with: `resources.timeout_min=120`. Of several runs the
        cancelled ones start only with `cancelled`. Runs that need nothing are left alone; if none
        starts, a warning says why. Raises as `launch` does.
        """
        context, settings = build_python_context(), parse_resume_overrides(words)
        for folder, indices in group_places(self._places).items():
            launch = load_launch(folder)
            order = Order(
                indices=None if len(indices) == len(launch.runs) else indices,
                cancelled=cancelled or len(self._places) == 1,
                changed_code=changed_code,
                settings=build_settings_order(launch, settings, context),
            )
            resuming, started = resume_runs(launch, order, context)
            if started is None:
                why = "; ".join(format_skipped_runs(resuming.choice.skipped))
                context.note(f"warning: nothing to resume in {launch.id}: {why}")
        self._watch.forget_ends()
        return self

    @explain_errors
    def results(self) -> Table[ResultRow]:
        """Return the final metrics of all runs, beside the overrides in which they differ.

        `rows` are the `runs` of `hpckit results --json`, with numbers as such; `columns` are the run,
        and those of `hpckit results --csv`.
        """
        context = build_python_context()
        chosen = self._read_views(context, Ask.open_runs)
        results = build_results_of_runs(chosen, context, spans=len(chosen) > 1)
        typed = (replace(row, overrides=parse_override_values(row.overrides)) for row in results.rows)
        results = replace(results, rows=tuple(typed))
        pairs = zip(results.rows, list_row_values(results), strict=True)
        lines = {row.run: (row, (row.run, *record)) for row, record in pairs}
        ordered = [lines[build_run_id(folder.name, index)] for folder, index in self._places]
        return Table(
            rows=tuple(row for row, _ in ordered),
            columns=("run", *list_column_names(results)),
            records=tuple(record for _, record in ordered),
        )

    @explain_errors
    def history(self, *metrics: str) -> Table[MetricPoint]:
        """Return all logged values of these metrics (default: of all), one a row, in order.

        Values that a restart has undone are marked, not left out.
        """
        once = dict.fromkeys(self._places)
        found = [point for place in once for point in read_metric_points(*place, metrics)]
        return Table(
            rows=tuple(found),
            columns=HISTORY_COLUMNS,
            records=tuple(tuple(getattr(point, name) for name in HISTORY_COLUMNS) for point in found),
        )

    @explain_errors
    def logs(self, rank: int | None = None) -> Mapping[str, str]:
        """Return what each run printed by run id: that of one rank, by default of the first one.

        It is the output of the latest round; empty if there is none yet.
        """
        launches = {folder: load_launch_of_any_owner(folder) for folder in group_places(self._places)}
        return {
            build_run_id(folder.name, index): _read_rank_log(launches[folder], index, rank)
            for folder, index in self._places
        }

    @explain_errors
    def report(self, file: Path | str | None = None) -> Path:
        """Write the HTML report of `hpckit report` and return its path (default: LAUNCH.html here).

        Raises UsageError if the file is one that hpckit has not written, or plotly is missing.
        """
        context = build_python_context()
        target = context.cwd / (f"{self.id}.html" if file is None else Path(file).expanduser())
        check_output_file(target, REPORT)
        named = [
            (load_launch_of_any_owner(folder), runs) for folder, runs in group_places(self._places).items()
        ]
        chunks = render_page_chunks(
            build_report(named, context, Freshness()), read_plotly_script(), refresh_s=None
        )
        write_output_file(target, chunks, REPORT)
        return target

    def __repr__(self) -> str:
        try:
            states = count_runs_by_state(row.state for row in self._read_rows(Ask.nothing))
        except HpckitError as error:
            return f"<{type(self).__name__} {self.id}: {error.message}>"
        return f"<{type(self).__name__} {self.id}: {format_state_counts(states)}>"

    def _repr_html_(self) -> str:
        results = self.results()
        columns, records = results.columns, list(results.records[:_CURVES])
        metric = choose_metric_to_draw([name for row in results.rows for name in row.metrics])
        if metric is not None:
            places = {build_run_id(folder.name, index): (folder, index) for folder, index in self._places}
            curves = [draw_metric_curve(*places[row.run], metric) for row in results.rows[:_CURVES]]
            columns = (*columns, f"{metric} over time")
            records = [(*record, curve) for record, curve in zip(records, curves, strict=True)]
        left = len(results) - _CURVES
        more = f"<p>… {left} more runs</p>" if left > 0 else ""
        return f"<p><b>{html.escape(self.id)}</b></p>{format_html_table(columns, records)}{more}"

    def _read_views(self, context: Context, ask: Ask) -> Sequence[ChosenRuns]:
        groups = group_places(self._places).items()
        questions = [(load_launch_of_any_owner(folder), runs) for folder, runs in groups]
        views = build_launch_views(questions, context, ask=ask, freshness=Freshness())
        return [(view, view.runs) for view in views]

    def _read_rows(self, ask: Ask = Ask.open_runs) -> tuple[RunRow, ...]:
        chosen = self._read_views(build_python_context(), ask)
        rows = {view.record.id: build_run_row(view) for _, runs in chosen for view in runs}
        return tuple(rows[build_run_id(folder.name, index)] for folder, index in self._places)


class LaunchedRun(Launch):
    """One run of a launch: what a launch does, for this run alone."""

    @property
    def id(self) -> str:
        """The id of the run, such as `digits-20260101-101500-abc123.3`."""
        return build_run_id(self.folder.name, self.index)

    @property
    def index(self) -> int:
        """Its number in its launch, from 0."""
        return self._places[0][1]

    @property
    def row(self) -> RunRow:
        """All that `hpckit status` knows of it, now."""
        return self._read_rows()[0]

    @property
    def state(self) -> RunState:
        """How it stands: a text such as `completed`."""
        return self.row.state

    @property
    def failure(self) -> Failure | None:
        """Why it failed; None if it did not, or that is not known."""
        return self.row.failure

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The last value of each metric that no restart has undone."""
        return self.row.metrics

    @property
    def overrides(self) -> tuple[str, ...]:
        """Its overrides in Hydra's grammar."""
        return self.row.overrides

    @explain_errors
    def read_log(self, rank: int | None = None) -> str:
        """Return what one rank printed in the latest round; raises NotFoundError if it has no such rank."""
        return _read_rank_log(load_launch_of_any_owner(self.folder), self.index, rank)

    @explain_errors
    def result(self, timeout: float | None = None) -> ResultRow:
        """Wait for the run and return its final metrics; raises RunFailedError unless it completed.

        Raises TimeoutError after `timeout` seconds.
        """
        if not self.wait(timeout, progress=False):
            raise build_run_failed_error(self.row)
        return self.results().rows[0]


def _read_rank_log(launch: LaunchRecord, index: int, rank: int | None) -> str:
    logs = find_rank_logs(launch, index)
    if rank is not None and logs and rank not in logs:
        raise NotFoundError(
            f"run {launch.runs[index].id} has no log of rank {rank!r}",
            hint=f"it has ranks {min(logs)} to {max(logs)}",
        )
    return read_whole_log(logs[min(logs) if rank is None else rank].path) if logs else ""


def build_run_failed_error(row: RunRow) -> RunFailedError:
    """Return the error for a run that ended otherwise than completed, with the traceback as a note."""
    failure = row.failure
    why, where = row.reason or row.blocked or row.note, ""
    if failure is not None:
        why = f"{failure.cause}: {failure.message}"
        places = [failure.rank_name, failure.node and f"node {failure.node}"]
        where = f" ({', '.join(filter(None, places))})" if any(places) else ""
    error = RunFailedError(
        f"run {row.run} {row.state}{where}" + (f": {why}" if why else ""),
        run=row.run,
        state=row.state,
        cause=None if failure is None else failure.cause.value,
        hint=f"`hpckit logs {row.run}` shows what it printed",
    )
    if failure is not None and failure.traceback:
        error.add_note(f"on the node:\n{failure.traceback.rstrip()}")
    return error


def _read_status_of(row: RunRow) -> Callable[[str], Any]:
    own = {"cause": None if row.failure is None else row.failure.cause.value, "nodes": ",".join(row.nodes)}
    return lambda name: own[name] if name in own else getattr(row, name)
