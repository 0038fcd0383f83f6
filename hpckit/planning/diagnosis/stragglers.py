"""Finds ranks whose own work takes longer than that of their peers. Pure: no clock inside.

In each window of steps, a rank's own time a step is compared with the median of its peers', so that
a load that changes for all of them changes nothing. A rank is named if it was slow in most of the
latest windows, by more than windows scatter anyway.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import groupby
from statistics import median, median_high

from hpckit.model.diagnosis.verdict import Straggler
from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.planning.diagnosis.thresholds import DEFAULT, Thresholds
from hpckit.values import dataclass, field, replace

_MAD_TO_SIGMA = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """A rank in one window, in seconds a step; `log_slowdown` is the log of own over peers."""

    of: RankSteps
    own_s: float
    peers_s: float
    step_s: float

    @property
    def log_slowdown(self) -> float:
        return math.log(self.own_s / self.peers_s)


@dataclass(slots=True, kw_only=True)
class StragglerDetector:
    """Takes reports of ranks as they come, and names the stragglers. One for each run.

    `found` has all that were named so far, as they were at their slowest.
    """

    thresholds: Thresholds = DEFAULT
    found: dict[tuple[int, str], Straggler] = field(default_factory=dict)
    named: tuple[Straggler, ...] = ()
    _builder: WindowBuilder = field(init=False)
    _latest: dict[int, deque[_Comparison]] = field(init=False)
    _warm: bool = field(init=False)
    _layout: Layout | None = field(init=False)

    def __post_init__(self) -> None:
        self.reset_for_new_round()

    def reset_for_new_round(self, layout: Layout | None = None) -> None:
        """Begin a round: other ranks, maybe on other nodes, and its first window is warm-up.

        With a `layout`, ranks are compared within their pipeline stage: stages differ in work.
        """
        self._layout = layout
        limits = self.thresholds
        self._builder = WindowBuilder(least_s=limits.window_s, least_steps=limits.window_steps)
        self._latest, self._warm, self.named = {}, False, ()

    def add_reports(self, reports: Iterable[RankSteps]) -> tuple[Straggler, ...]:
        """Take what all ranks reported since last time, in any order; return who is slow now."""
        for window in self._builder.build_windows_from_reports(reports):
            if self._warm:
                self._update_stragglers_from_window(window)
            self._warm = True
        return self.named

    def _update_stragglers_from_window(self, window: Sequence[RankSteps]) -> None:
        ranks = sorted(window, key=lambda one: (self._peer_group_key(one), one.rank))
        named: list[Straggler] = []
        for _, peers in groupby(ranks, key=self._peer_group_key):
            named += self._find_stragglers_among_peers(compare_with_peers(tuple(peers)))
        self.named = tuple(sorted(named, key=lambda one: one.rank))
        for straggler in named:
            known = self.found.get((straggler.rank, straggler.node))
            if known is None or straggler.slower_by > known.slower_by:
                self.found[straggler.rank, straggler.node] = straggler

    def _peer_group_key(self, one: RankSteps) -> tuple[str, int]:
        """Return what the ranks have in common that do the same work as this one."""
        layout = self._layout
        if layout is None or layout.pipeline == 1 or one.rank >= layout.world_size:
            return one.group, 0
        return one.group, layout.coordinates(one.rank)[MeshAxis.pipeline]

    def _find_stragglers_among_peers(self, compared: Sequence[_Comparison]) -> Iterable[Straggler]:
        for comparison in compared:
            fresh: deque[_Comparison] = deque(maxlen=self.thresholds.windows)
            self._latest.setdefault(comparison.of.rank, fresh).append(comparison)
        histories = [tuple(self._latest[comparison.of.rank]) for comparison in compared]
        scatter = _estimate_window_scatter(histories)
        # Slow in all its latest windows, or else in the last few.
        few = self.thresholds.least_windows
        named = [
            self._find_straggler_in_history(history, scatter)
            or self._find_straggler_in_history(history[-few:], scatter)
            for history in histories
        ]
        return [straggler for straggler in named if straggler is not None]

    def _find_straggler_in_history(self, history: Sequence[_Comparison], scatter: float) -> Straggler | None:
        limits = self.thresholds
        slow = [comparison for comparison in history if self._is_slow_window(comparison)]
        needed = math.ceil(len(history) * limits.slow_windows / limits.windows)
        if len(slow) < max(needed, limits.least_windows):
            return None
        excess = median(comparison.log_slowdown for comparison in history)
        noise = limits.straggler_noise * scatter / len(history)
        if excess < max(math.log1p(limits.straggler_excess), noise):
            return None
        return _build_straggler(history, slow, math.expm1(excess))

    def _is_slow_window(self, one: _Comparison) -> bool:
        limits = self.thresholds
        relevant = one.own_s - one.peers_s >= limits.straggler_step_share * one.step_s
        return relevant and one.log_slowdown >= math.log1p(limits.straggler_excess)


def compare_with_peers(peers: Sequence[RankSteps]) -> list[_Comparison]:
    """Compare each rank with the median of the others; nothing if that is not known or zero."""
    known = [(steps, own / steps.steps) for steps in peers if (own := steps.working_s)]
    if len(known) < 2:  # noqa: PLR2004  # one rank has no peers
        return []
    others = medians_of_others([own for _, own in known])
    step_s = median(one.seconds / one.steps for one, _ in known)
    return [
        _Comparison(of=one, own_s=own, peers_s=peer, step_s=step_s)
        for (one, own), peer in zip(known, others, strict=True)
    ]


def medians_of_others(values: Sequence[float]) -> list[float]:
    """Return for each value the median of all others; there have to be two at least."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [values[place] for place in order]
    count = len(values) - 1
    low, high = (count - 1) // 2, count // 2
    found = [0.0] * len(values)
    for place, index in enumerate(order):
        left = ranked[low + (low >= place)]
        found[index] = (left + ranked[high + (high >= place)]) / 2
    return found


def _estimate_window_scatter(histories: Sequence[Sequence[_Comparison]]) -> float:
    """Return how far a rank's windows are from that rank's own median: a standard deviation."""
    deviations: list[float] = []
    for history in histories:
        middle = median(comparison.log_slowdown for comparison in history)
        deviations += [abs(comparison.log_slowdown - middle) for comparison in history]
    return _MAD_TO_SIGMA * median(deviations) if deviations else 0.0


def _build_straggler(
    history: Sequence[_Comparison], slow: Sequence[_Comparison], slower_by: float
) -> Straggler:
    """Return the straggler: `slower_by` is the median over all windows, and its times follow it."""
    latest = history[-1].of
    peers_s = median(comparison.peers_s for comparison in history)
    return Straggler(
        rank=latest.rank,
        node=latest.node,
        gpu=latest.gpu,
        slower_by=slower_by,
        own_s=peers_s * (1 + slower_by),
        peers_s=peers_s,
        step_s=median(comparison.step_s for comparison in history),
        windows=len(slow),
        judged=len(history),
    )


_PATIENCE = 10
"""When half of the ranks are this many windows ahead, the others are not waited for any longer."""

_STEPS_KEPT = 1_000_000
"""A step further ahead than this is a damaged report."""


@dataclass(slots=True, kw_only=True)
class WindowBuilder:
    """Cuts reports of ranks into windows of `least_steps` steps or `least_s`, the longer.

    A window has the steps of each rank that reported enough of it. Ranks report at different times
    and different numbers of steps. A window is a range of steps that all of them have reported, so
    that they can be compared; a report that reaches over its edge is divided in proportion. What
    ranks report later than their window was closed is left out.
    """

    least_s: float
    least_steps: int
    _pending: dict[int, list[RankSteps]] = field(default_factory=dict)
    _begin: int | None = None

    def build_windows_from_reports(self, reports: Iterable[RankSteps]) -> list[tuple[RankSteps, ...]]:
        """Take what was reported since last time, in any order; return the windows it completes."""
        for report in sorted(
            filter(is_plausible_report, reports), key=lambda report: (report.rank, report.first_step)
        ):
            self._pending.setdefault(report.rank, []).append(report)
        found = []
        while (window := self._pop_next_window()) is not None:
            found.append(window)
        return found

    def _pop_next_window(self) -> tuple[RankSteps, ...] | None:
        live = {rank: some for rank, some in self._pending.items() if some}
        if not live:
            return None
        begin = self._begin
        if begin is None:
            begin = self._begin = min(some[0].first_step for some in live.values())
        # The steps of the window, from the pace of what was reported for it.
        reports = live.values()
        paces = [sum(r.seconds for r in some) / sum(r.steps for r in some) for some in reports]
        length = max(self.least_steps, math.ceil(self.least_s / median(paces)))
        end = begin + length
        reach = [max(map(_first_step_after_report, some), default=begin) for some in self._pending.values()]
        if min(reach) < end and median_high(reach) < end + _PATIENCE * length:
            return None
        parts = (
            _merge_reports_in_step_range(self._pending[rank], begin, end) for rank in sorted(self._pending)
        )
        self._begin = end
        window = tuple(part for part in parts if part is not None and part.steps * 2 >= length)
        for rank, some in self._pending.items():
            self._pending[rank] = [steps for steps in some if _first_step_after_report(steps) > end]
        return window


def is_plausible_report(report: RankSteps) -> bool:
    """Whether a report's numbers can be: finite, none negative, some steps in some time."""
    times = (report.data_s, report.checkpoint_s, report.waiting_s, report.own_s)
    known = [time_ for time_ in times if time_ is not None]
    return (
        0 < report.steps <= _STEPS_KEPT
        and report.first_step >= 0
        and 0 < report.seconds < math.inf
        and all(0 <= number < math.inf for number in known)
    )


def _first_step_after_report(one: RankSteps) -> int:
    return one.first_step + one.steps


def _merge_reports_in_step_range(reports: Iterable[RankSteps], begin: int, end: int) -> RankSteps | None:
    """Return what these reports of one rank say about steps `begin` to before `end`, as one."""
    parts = [
        part for report in reports if (part := _cut_report_to_step_range(report, begin, end)) is not None
    ]
    return reduce(operator.add, parts) if parts else None


def _cut_report_to_step_range(one: RankSteps, begin: int, end: int) -> RankSteps | None:
    first, last = max(one.first_step, begin), min(_first_step_after_report(one), end)
    if last <= first:
        return None
    share = (last - first) / one.steps
    part = replace(
        one,
        first_step=first,
        steps=last - first,
        seconds=one.seconds * share,
        data_s=_scale_if_known(one.data_s, share),
        checkpoint_s=_scale_if_known(one.checkpoint_s, share),
        waiting_s=_scale_if_known(one.waiting_s, share),
        own_s=_scale_if_known(one.own_s, share),
        phases={name: seconds * share for name, seconds in one.phases.items()},
    )
    return replace(part, own_s=part.working_s)


def _scale_if_known(value: float | None, share: float) -> float | None:
    return None if value is None else value * share
