"""Handles on launches and runs: by them a program looks, waits, and acts, from any process."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

from hpckit.api.display import (
    MetricPoint,
    Table,
    draw_metric_curve,
    format_html_table,
    read_metric_points,
    show_wait_progress,
)
from hpckit.api.invocation import build_python_context, explain_errors
from hpckit.api.watch import Place, Watch, group_places
from hpckit.errors import HpckitError, NotFoundError, RunFailedError, UsageError
from hpckit.features.reporting.gather import build_report, guess_goal_from_metric_names
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
from hpckit.views.across_launches import build_results_of_runs
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
        return tuple(self[number] for number in range(len(self)))

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
        return LaunchedRun([self._places[index]], _watch=self._watch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Launch) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self._places)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._places, self.folder)

    @explain_errors
    def status(self) -> Table[RunRow]:
        """Return how each run stands; Slurm's answer may be some seconds old, as several may ask."""
        rows, records = self._read_rows(), list[tuple[Any, ...]]()
        for row in rows:
            own = {"cause": row.failure and row.failure.cause.value, "nodes": ",".join(row.nodes)}
            records.append(tuple(own[name] if name in own else getattr(row, name) for name in _STATUS))
        return Table(rows=rows, columns=_STATUS, records=tuple(records))

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
        until = math.inf if timeout is None else time.monotonic() + timeout
        self._watch.look_again_at_ended(context)
        with show_wait_progress(self.id, len(self._places), wanted=progress) as show:
            try:
                while True:
                    over, views = self._watch.look(self._places, context)
                    show(count_runs_by_state(view.state for view in views))
                    if over:
                        return all(view.state is RunState.completed for view in views)
                    left = until - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"{self.id} has not ended after {timeout:g} s; its runs continue")
                    time.sleep(min(self._watch.pause_s, left))
            except KeyboardInterrupt:
                context.note(f"warning: stopped waiting for {self.id}; its runs continue")
                raise

    @explain_errors
    def cancel(self) -> None:
        """Stop the runs, waiting or running; safe to repeat. Does not wait for their end.

        Raises ForeignError if they are another user's, SchedulerError if Slurm does not answer.
        """
        context = build_python_context()
        selections = [
            Selection(launch=launch, index=index)
            for launch, indices in self._load_launches(load_launch)
            for index in ([None] if indices is None else indices)
        ]
        cancel_runs(list(plan_cancellations(selections, Filter(), context)), context)

    @explain_errors
    def resume(self, *words: str, cancelled: bool = False, changed_code: bool = False) -> Self:
        """Start again what failed, was interrupted or is missing, as `hpckit resume`; return this handle.

        `words` are other settings to go on with: `resources.timeout_min=120`. Of several runs the
        cancelled ones start only with `cancelled`. Runs that need nothing are left alone; if none
        starts, a warning says why. Raises as `launch` does.
        """
        context, settings = build_python_context(), parse_resume_overrides(words)
        for launch, indices in self._load_launches(load_launch):
            order = Order(
                indices=indices,
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
        views = build_launch_views(self._load_launches(), context, ask=Ask.open_runs, freshness=Freshness())
        results = build_results_of_runs([(view, view.runs) for view in views], context, spans=len(views) > 1)
        rows = {row.run: replace(row, overrides=parse_override_values(row.overrides)) for row in results.rows}
        results = replace(results, rows=tuple(rows[run] for run in self._ids))
        records = tuple((run, *one) for run, one in zip(self._ids, list_row_values(results), strict=True))
        return Table(rows=results.rows, columns=("run", *list_column_names(results)), records=records)

    @explain_errors
    def history(self, *metrics: str) -> Table[MetricPoint]:
        """Return all logged values of these metrics (default: of all), one a row, in order.

        Values that a restart has undone are marked, not left out.
        """
        once = dict.fromkeys(self._places)
        points = tuple(point for place in once for point in read_metric_points(*place, metrics))
        return Table(rows=points, columns=MetricPoint._fields, records=points)

    @explain_errors
    def logs(self, rank: int | None = None) -> Mapping[str, str]:
        """Return what each run printed by run id: that of one rank, by default of the first one.

        It is the output of the latest round; empty if there is none yet.
        """
        launches = {folder: load_launch_of_any_owner(folder) for folder in group_places(self._places)}
        found = {}
        for run, (folder, index) in zip(self._ids, self._places, strict=True):
            logs = find_rank_logs(launches[folder], index)
            if rank is not None and logs and rank not in logs:
                there = f"it has ranks {min(logs)} to {max(logs)}"
                raise NotFoundError(f"run {run} has no log of rank {rank!r}", hint=there)
            found[run] = read_whole_log(logs[min(logs) if rank is None else rank].path) if logs else ""
        return found

    @explain_errors
    def report(self, file: Path | str | None = None) -> Path:
        """Write the HTML report of `hpckit report` and return its path (default: LAUNCH.html here).

        Raises UsageError if the file is one that hpckit has not written, or plotly is missing.
        """
        context = build_python_context()
        target = context.cwd / (f"{self.id}.html" if file is None else Path(file).expanduser())
        check_output_file(target, REPORT)
        document = build_report(self._load_launches(), context, Freshness())
        write_output_file(target, render_page_chunks(document, read_plotly_script(), refresh_s=None), REPORT)
        return target

    def __repr__(self) -> str:
        try:
            states = count_runs_by_state(row.state for row in self._read_rows(Ask.nothing))
        except HpckitError as error:
            return f"<{type(self).__name__} {self.id}: {error.message}>"
        return f"<{type(self).__name__} {self.id}: {format_state_counts(states)}>"

    def _repr_html_(self) -> str:
        results = self.results()
        columns, curves = results.columns, list[str]()
        metrics = [name for row in results for name in row.metrics]
        if metrics:
            goal = guess_goal_from_metric_names(metrics)
            metric = metrics[0] if goal is None else goal.metric
            columns = (*columns, f"{metric} over time")
            curves = [draw_metric_curve(*place, metric) for place in self._places[:_CURVES]]
        left = len(results) - _CURVES
        table = format_html_table(columns, results.records[:_CURVES], curves=curves, left=left)
        return f"<p><b>{html.escape(self.id)}</b></p>{table}"

    @property
    def _ids(self) -> list[str]:
        return [build_run_id(folder.name, index) for folder, index in self._places]

    def _load_launches(
        self, load: Callable[[Path], LaunchRecord] = load_launch_of_any_owner
    ) -> list[tuple[LaunchRecord, Sequence[int] | None]]:
        """Return each launch with the runs that are meant, None for all of them."""
        found = [(load(folder), indices) for folder, indices in group_places(self._places).items()]
        return [(launch, None if len(indices) == len(launch.runs) else indices) for launch, indices in found]

    def _read_rows(self, ask: Ask = Ask.open_runs) -> tuple[RunRow, ...]:
        launches, context = self._load_launches(), build_python_context()
        views = build_launch_views(launches, context, ask=ask, freshness=Freshness())
        rows = {run.record.id: build_run_row(run) for view in views for run in view.runs}
        return tuple(rows[run] for run in self._ids)


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
        return self.logs(rank)[self.id]

    @explain_errors
    def result(self, timeout: float | None = None) -> ResultRow:
        """Wait for the run and return its final metrics; raises RunFailedError unless it completed.

        Raises TimeoutError after `timeout` seconds.
        """
        if not self.wait(timeout, progress=False):
            raise build_run_failed_error(self.row)
        return self.results().rows[0]


def build_run_failed_error(row: RunRow) -> RunFailedError:
    """Return the error for a run that ended otherwise than completed, with the traceback as a note."""
    failure, why, where = row.failure, row.reason or row.blocked or row.note, ""
    if failure is not None:
        why = f"{failure.cause}: {failure.message}"
        where = ", ".join(filter(None, [failure.rank_name, failure.node and f"node {failure.node}"]))
    error = RunFailedError(
        f"run {row.run} {row.state}" + (f" ({where})" if where else "") + (f": {why}" if why else ""),
        run=row.run,
        state=row.state,
        cause=None if failure is None else failure.cause.value,
        hint=f"`hpckit logs {row.run}` shows what it printed",
    )
    if failure is not None and failure.traceback:
        error.add_note(f"on the node:\n{failure.traceback.rstrip()}")
    return error
