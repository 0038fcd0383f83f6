"""Ranks that are slower than their peers, as their reports arrive, and which of them are news.

What follows is decided in planning.recovery.boundary, and done by the supervisor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpckit.model.counted import format_whole_percent
from hpckit.model.diagnosis.verdict import Straggler
from hpckit.model.messages import NodeSteps
from hpckit.model.parallel.layout import Layout, describe_ranks_in_layout
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.planning.diagnosis.stragglers import StragglerDetector
from hpckit.values import dataclass, field, replace

COMPARE_S = 2.0
"""Least time between two comparisons: each looks at all ranks, of thousands of nodes maybe."""

_COLUMNS = ("rank", "first_step", "steps", "seconds", "own_s", "gpu")
_WORSE = 1.5
_MOST_TOLD = 100
"""What is recorded of one attempt; more is a cluster in trouble, and no news."""


@dataclass(slots=True, kw_only=True)
class StragglerWatch:
    """The stragglers of an attempt. Time is a parameter, in seconds of one monotonic clock."""

    _round: int = field(default=-1, init=False)
    _detector: StragglerDetector = field(default_factory=StragglerDetector, init=False)
    _waiting: list[RankSteps] = field(default_factory=list, init=False)
    _compared_at: float = field(default=-math.inf, init=False)
    _told: dict[tuple[int, str], Straggler] = field(default_factory=dict, init=False)

    def add_reports_and_get_news(
        self, message: NodeSteps, node: str, layout: Layout | None, at: float
    ) -> tuple[Sequence[Straggler], Mapping[str, str]]:
        """Take what a node of a round reports; return whom to record, and the slow nodes if news.

        `layout` is that of the round.
        """
        if message.round != self._round:
            self._round, self._waiting = message.round, []
            self._detector.reset_for_new_round(layout)
        self._waiting += _unpack_rank_reports(message, node)
        if at - self._compared_at < COMPARE_S:
            return (), {}
        self._compared_at = at
        waiting, self._waiting = self._waiting, []
        found = self._detector.add_reports(waiting)
        named = [
            replace(straggler, place=describe_ranks_in_layout((straggler.rank,), layout))
            for straggler in found
        ]
        news = [straggler for straggler in named if self._is_new_or_slower_straggler(straggler)]
        told = [one for one in named if one in news or self._is_surer_than_reported(one)]
        self._told |= {(one.rank, one.node): one for one in told}
        return told, describe_slow_nodes(named) if news else {}

    def _is_new_or_slower_straggler(self, one: Straggler) -> bool:
        known = self._told.get((one.rank, one.node))
        if known is None:
            return len(self._told) < _MOST_TOLD
        return one.slower_by >= _WORSE * known.slower_by

    def _is_surer_than_reported(self, one: Straggler) -> bool:
        """Whether it is known from as many windows as there ever are, and was not when told of."""
        known = self._told.get((one.rank, one.node))
        return known is not None and known.judged < one.judged == self._detector.thresholds.windows


def describe_slow_nodes(stragglers: Sequence[Straggler]) -> dict[str, str]:
    """Return what to say of each slow node, by its name."""
    found: dict[str, str] = {}
    for straggler in stragglers:
        longer = format_whole_percent(straggler.slower_by)
        words = f"{straggler.rank_name} on {straggler.node} takes {longer} longer than its peers"
        found[straggler.node] = f"{found[straggler.node]}, {words}" if straggler.node in found else words
    return found


def _unpack_rank_reports(message: NodeSteps, node: str) -> list[RankSteps]:
    """Return the reports of a message; what does not fit together is left out."""
    rows = zip(*(getattr(message, name) for name in _COLUMNS), strict=False)
    return [RankSteps(node=node, **dict(zip(_COLUMNS, row, strict=True))) for row in rows]
