"""The part of `Run` that reports to its agent: signs of life, metrics, warnings, and its end.

What a rank logs becomes rows of its attempt's metrics and reports to a study, of which only a few
steps are heard, the same ones in every run. A full disk costs rows, never the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpckit.errors import NonFiniteLossError
from hpckit.model import messages
from hpckit.model.failure import ExitReason, ExitStatement, StateKept
from hpckit.model.messages import Reported
from hpckit.model.metrics import DROPPED_ROWS, DROPPING_ROWS, metric_value_to_number
from hpckit.model.plain import LARGEST, finite_float_or_none, is_within_limit
from hpckit.record.layout import AttemptPaths
from hpckit.record.metrics.log import OWN_KEYS, MetricsLog
from hpckit.runtime.channel.rank_pipe import AgentLink
from hpckit.runtime.clock import now
from hpckit.runtime.rank.parallel_run import ParallelRun
from hpckit.values import dataclass, field

_ALL_BELOW = 64
"""Up to here every step counts; beyond, 32 per doubling: 500 reports for a million steps."""


@dataclass(slots=True, kw_only=True)
class LoggedMetrics:
    """The metrics of one rank, in the folder of its attempt.

    `reported` is the metric that a study gets, None if there is none. `patience` losses in a row
    may not be finite, any number if it is 0; `bad_losses` counts them. `dropped` counts the rows
    that no disk could take; `warn` is called with the reason when the first one is dropped.
    """

    folder: Path = Path()
    reported: str | None = None
    patience: int = 0
    warn: Callable[[str], None] = lambda _text: None
    dropped: int = field(default=0, init=False)
    bad_losses: int = field(default=0, init=False)
    _last: int = field(default=-1, init=False)
    _log: MetricsLog | None = field(default=None, init=False)

    def choose_metrics_to_report(self, step: object, metrics: Mapping[str, object]) -> Reported | None:
        """Return what to report of the values logged at a step; None if there is nothing.

        A study compares runs at the same steps, so the choice does not depend on time.
        """
        value = None if self.reported is None else finite_float_or_none(metrics.get(self.reported))
        if value is None or not isinstance(step, int) or not is_within_limit(step, LARGEST):
            return None
        place = _first_step_of_report_interval(step)
        if place <= self._last:
            return None
        self._last = place
        return Reported(step=step, value=value)

    def append_metrics_row(self, row: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Append a row with these values, or drop and count it if that is not possible.

        Raises TypeError for a value that is named as one that every row has.
        """
        if taken := [name for name in OWN_KEYS if name in values]:
            raise TypeError(f"run.log({taken[0]}=…): every row has its own {taken[0]}; choose another name")
        self._log = self._log or MetricsLog(paths=AttemptPaths(self.folder))
        try:
            at = now().isoformat(timespec="milliseconds")
            self._log.append_rows({"step": row["step"], "at": at, **row, **values})
        except OSError as error:
            self.dropped += 1
            if self.dropped == 1:
                self.warn(f"{DROPPING_ROWS}: {error}")

    def refuse_non_finite_losses(self, loss: object, step: int | None) -> None:
        """Take the loss of a step; a text may be one that is not finite, others are words.

        Raises NonFiniteLossError once too many were not finite.
        """
        try:
            is_bad = not math.isfinite(float(loss))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            is_bad = False
        self.bad_losses = self.bad_losses + 1 if is_bad else 0
        if self.patience and self.bad_losses >= self.patience:
            raise NonFiniteLossError(
                f"the loss was {loss} {self.bad_losses} times in a row, last at step {step}",
                hint="lower the learning rate, clip gradients, or raise recovery.nan_patience",
            )


def _first_step_of_report_interval(step: int) -> int:
    if step < _ALL_BELOW:
        return step
    width = step.bit_length() - _ALL_BELOW.bit_length() + 1
    return step >> width << width


def to_plain_metric(name: str, value: Any) -> float | int | str | bool | None:
    """Return a metric value as a row holds it; a number that is not finite becomes a text.

    So does a whole number that no float can hold: as infinity, which readers take it for.

    Raises TypeError with the metric's name unless the value is a number, a text or a single element.
    """
    kind = type(value).__name__
    if hasattr(value, "item"):
        shape = tuple(getattr(value, "shape", ()))
        try:
            value = value.item()
        except (RuntimeError, ValueError):  # from torch and numpy: more than one element
            kind = f"{kind} of shape {shape}"
    if isinstance(value, int | float) and not is_within_limit(value):
        return str(metric_value_to_number(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"run.log({name}=…) got a {kind}; allowed are numbers, strings and tensors of one element"
    )


_STEP_INTERVAL_S = 0.1
"""Minimum time between two step messages to the agent, which needs liveness, not every number."""


@dataclass(slots=True, kw_only=True, repr=False)
class LiveRun(ParallelRun):
    """One rank of a run; `_link` is None without an agent: then no message is sent."""

    step: int | None = None
    _link: AgentLink | None = None
    _farewell: ExitStatement | None = None
    _expecting: bool = False
    _told_at: float = 0.0
    _metrics: LoggedMetrics = field(default_factory=LoggedMetrics)
    _warned: set[str] = field(default_factory=set)

    def start_hang_watch(self) -> None:
        """Watch this rank for hangs from now on, even before its first step (`hang_first_s`).

        hpckit calls this itself for code that loops over `steps()`.
        """
        self._expecting = True
        self._send_to_agent(messages.Working(over=False))

    def report_unsaved_end(self) -> None:
        """Report that the user's code has finished, but that its state could not be saved."""
        self._send_exit_statement(
            ExitStatement(reason=ExitReason.returned, kept=StateKept.unsaved, step=self.step)
        )

    def promise_end_report(self) -> None:
        """Announce that this rank will report its end; without that report it has not finished."""
        if self._link is not None:
            self._link.note_exit_statement(ExitStatement(reason=ExitReason.exited))

    def _send_exit_statement(self, farewell: ExitStatement) -> None:
        if self._metrics.dropped:
            self._warn_once(f"{self._metrics.dropped} {DROPPED_ROWS}")
        self._farewell = farewell
        if self._link is not None:
            self._link.note_exit_statement(farewell)

    def _send_to_agent(self, message: messages.Message) -> None:
        if self._link is not None:
            self._link.send(message)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._send_to_agent(messages.Warn(message=text))

    def _report_step(self, step: int, total: int) -> None:
        first, last, self.step = self.step is None, step == total - 1, step
        if self._link is not None:
            self._link.publish_step_to_agent(step)
        at = time.monotonic()
        if first or last or at - self._told_at >= _STEP_INTERVAL_S:
            self._send_to_agent(messages.StepBegun(rank=self.rank, step=step, total=total))
            self._told_at = at

    def _send_heartbeat(self, *, over: bool) -> None:
        at = time.monotonic()
        if self._expecting and at - self._told_at >= _STEP_INTERVAL_S:
            self._send_to_agent(messages.Working(over=over))
            self._told_at = at
