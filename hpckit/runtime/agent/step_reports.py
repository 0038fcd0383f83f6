"""What the ranks of a node report of their steps, on its way to the supervisor and to telemetry."""

from __future__ import annotations

import math
from collections.abc import Callable

from hpckit.model.messages import NodeSteps
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.runtime.pauses import PauseWatch
from hpckit.values import dataclass, field

SEND_S = 2.0
"""Least time between two messages of a node about its steps."""

_MOST_HELD = 4096
_DECIMALS = 4


@dataclass(slots=True, kw_only=True)
class StepReports:
    """Collects the reports of one node's ranks; one for each agent.

    `keep` is given every report. Time is a parameter, in seconds of one monotonic clock. Reports of
    steps during which this process was paused are dropped: their ranks stood still, too.
    """

    keep: Callable[[RankSteps], None] | None = None
    pauses: PauseWatch = field(default_factory=PauseWatch)
    _round: int = field(default=-1, init=False)
    _held: list[RankSteps] = field(default_factory=list, init=False)
    _sent_at: float = field(default=-math.inf, init=False)

    def add_report(self, report: RankSteps, round_: int) -> None:
        """Take a rank's report; what is left of an earlier round is of no use any more."""
        if self.pauses.count_paused_seconds(report.seconds):
            return
        if self.keep is not None:
            self.keep(report)
        if round_ != self._round:
            self._round, self._held = round_, []
        if report.own_s is not None and len(self._held) < _MOST_HELD:
            self._held.append(report)

    def pop_steps_due_for_supervisor(self, at: float, pace_s: float) -> NodeSteps | None:
        """Return what to send to the supervisor now, at most every `pace_s`; None if nothing."""
        if not self._held or at - self._sent_at < max(pace_s, SEND_S):
            return None
        held, self._held, self._sent_at = self._held, [], at
        return NodeSteps(
            round=self._round,
            rank=tuple(report.rank for report in held),
            first_step=tuple(report.first_step for report in held),
            steps=tuple(report.steps for report in held),
            seconds=tuple(round(report.seconds, _DECIMALS) for report in held),
            own_s=tuple(round(report.own_s or 0.0, _DECIMALS) for report in held),
            gpu=tuple(report.gpu for report in held),
        )
