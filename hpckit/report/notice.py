"""What a notice says: of one run, or of a whole launch. Pure.

Its key follows from the record alone, so that whoever looks makes the same notice: only one of them sends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from hpckit.model.counted import format_count, format_step_of_total
from hpckit.model.failure import Failure
from hpckit.model.plain import finite_float_or_none
from hpckit.model.run import PRUNED, RunRecord, RunView
from hpckit.model.search import Direction, Sweep
from hpckit.model.settings import NoticeKind, UserNotice
from hpckit.model.states import RunState
from hpckit.report.escape import escape_controls
from hpckit.report.text import format_number
from hpckit.values import dataclass

_LONGEST = 400
_METRICS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeWriter:
    """Writes notices of a launch. `named` is the launch in commands, `at` the time of writing."""

    launch: str
    folder: str
    named: str
    at: datetime

    def build_run_notice(self, kind: NoticeKind, record: RunRecord, key: str, *, why: str = "") -> UserNotice:
        """Return a notice about a run in its present state; `key` tells events of a run apart."""
        failure = record.failure if kind is not NoticeKind.completed else None
        known = [metric for metric in record.metrics.items() if finite_float_or_none(metric[1]) is not None]
        metrics: dict[str, float] = dict(known[:_METRICS])
        values = (f"{escape_controls(name)} {format_number(value)}" for name, value in metrics.items())
        verb = "logs" if kind is NoticeKind.failed else "status"
        command = f"hpckit {verb} {self.named}.{record.index}"
        progress = f"attempt {record.attempt}"
        if record.step is not None:
            progress += f", step {format_step_of_total(record.step, record.total)}"
        facts = [why, _format_failure_cause(failure), progress, record.reason, ", ".join(values)]
        return UserNotice(
            key=build_run_notice_key(kind, record.index, key),
            kind=kind,
            at=self.at,
            launch=self.launch,
            folder=self.folder,
            run=record.id,
            state=record.state,
            title=f"{record.id} {_describe_notice_event(kind, record.state)}",
            text="\n".join([*filter(None, facts), command]),
            command=command,
            attempt=record.attempt,
            cause=None if failure is None else failure.cause,
            rank=None if failure is None else failure.rank,
            node=None if failure is None else failure.node,
            step=record.step,
            metrics=metrics,
        )

    def build_launch_over_notice(self, views: Sequence[RunView], sweep: Sweep) -> UserNotice:
        """Return the notice that all runs of the launch are over."""
        counts = Counter(view.state_by_record_alone for view in views)
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        attempts = sum(view.record.attempt for view in views)
        command = f"hpckit status {self.named}"
        causes = Counter(
            view.record.failure.cause
            for view in views
            if view.state is not RunState.completed and view.record.failure is not None
        )
        facts = [
            ", ".join(f"{cause}: {format_count(count, 'run')}" for cause, count in causes.items()),
            _format_best_run(views, sweep),
        ]
        done = counts.keys() == {RunState.completed}
        return UserNotice(
            key=build_launch_over_notice_key(attempts),
            kind=NoticeKind.finished,
            at=self.at,
            launch=self.launch,
            folder=self.folder,
            state="completed" if done else "ended",
            title=f"{self.launch} finished: {told}",
            text="\n".join([*filter(None, facts), command]),
            command=command,
            counts={str(state): count for state, count in counts.items()},
        )


def build_run_notice_key(kind: NoticeKind, index: int, event: str) -> str:
    """Return the key of a notice about a run; `event` tells events of a run apart."""
    return f"{kind}-{index:05d}{event}"


def build_launch_over_notice_key(attempts: int) -> str:
    """Return the key of the notice that a launch is over after this many attempts of its runs."""
    return f"{NoticeKind.finished}-{attempts:05d}"


def _describe_notice_event(kind: NoticeKind, state: RunState) -> str:
    if kind is NoticeKind.failed:
        return "failed" if state is RunState.failed else f"ended: {state}"
    return {NoticeKind.resumed: "starts again", NoticeKind.stalled: "hung"}.get(kind, str(kind))


def _format_failure_cause(failure: Failure | None) -> str:
    if failure is None:
        return ""
    places = [failure.rank_name, f"on {failure.node}" if failure.node else ""]
    where = " ".join(filter(None, places))
    message = escape_controls(failure.message)
    short = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
    return f"{failure.cause}{f', {where}' if where else ''}: {short}"


def _format_best_run(views: Sequence[RunView], sweep: Sweep) -> str:
    """Return the line about the best run, if a metric is configured; pruned runs do not count."""
    name = sweep.metric
    if name is None:
        return ""
    done = {
        view.record.id: view.record.metrics[name]
        for view in views
        if view.state is RunState.completed
        and view.record.reason != PRUNED
        and name in view.record.metrics
        and finite_float_or_none(view.record.metrics[name]) is not None
    }
    if not done:
        return ""
    choose = min if sweep.direction is Direction.minimize else max
    best = choose(done, key=lambda run: done[run])
    return f"best: {best}  {escape_controls(name)} {format_number(done[best])}"
