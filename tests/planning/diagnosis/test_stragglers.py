"""Promises of planning.diagnosis.stragglers: who is slow is named, and nobody else."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.planning.diagnosis.stragglers import (
    StragglerDetector,
    WindowBuilder,
    compare_with_peers,
    medians_of_others,
)
from hpckit.planning.diagnosis.thresholds import DEFAULT

OWN_S = 0.2
"""A rank's own time a step, without load and noise."""

SOON = DEFAULT.windows + 2
"""Windows in which a clear straggler is named: those that count, warm-up, and one that is open."""


def reports(
    ranks: int, slow: dict[int, float], seed: int = 0, *, tail: float = 1.7, noise: float = 0.05
) -> Iterator[list[RankSteps]]:
    """Yield what ranks report, a few steps at a time, in any order.

    A load that all ranks share changes slowly and in bursts; each step of each rank has noise with
    a heavy tail (Pareto; below 2 its variance is infinite).
    """
    draw, step = random.Random(seed), 0  # noqa: S311  # no secret
    while True:
        count = draw.randint(3, 17)
        load = 1 + 0.8 * math.sin(step / 70) + (2.0 if draw.random() < 0.05 else 0.0)
        own = {
            rank: sum(
                OWN_S * load * slow.get(rank, 1.0) * (1 + noise * (draw.paretovariate(tail) - 1))
                for _ in range(count)
            )
            for rank in range(ranks)
        }
        seconds = max(own.values()) * 1.1
        told = [report(rank, step, count, own[rank], seconds) for rank in range(ranks)]
        draw.shuffle(told)
        step += count
        yield told


def report(
    rank: int, first: int, steps: int = 10, own_s: float = 2.0, seconds: float | None = None
) -> RankSteps:
    """Return what a rank, one of four on a node, says about some steps."""
    return RankSteps(
        rank=rank,
        node=f"n{rank // 4}",
        gpu=f"GPU-{rank}",
        first_step=first,
        steps=steps,
        seconds=own_s * 1.1 if seconds is None else seconds,
        own_s=own_s,
    )


def watched(told: Iterator[list[RankSteps]], ticks: int) -> StragglerDetector:
    """Return a detector after so many ticks."""
    detector = StragglerDetector()
    for _, some in zip(range(ticks), told, strict=False):
        detector.add_reports(some)
    return detector


def steady(own: Sequence[float], windows: int = 12) -> Iterator[list[RankSteps]]:
    """Yield windows of ten steps in which each rank needs this own time a step."""
    for number in range(windows):
        yield [report(rank, 10 * number, 10, 10 * one) for rank, one in enumerate(own)]


@pytest.mark.parametrize("seed", range(20))
def test_equal_ranks_have_no_straggler(seed: int) -> None:
    """Of 2 to 8 equal ranks none is ever named in 100 reports, under noise and changing load."""
    ranks = 2 + seed % 7
    assert watched(reports(ranks, {}, seed), 100).found == {}


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_infinite_variance_names_nobody_among_two(seed: int) -> None:
    """Nor where single steps take a hundred times as long, on one of two ranks or the other."""
    assert watched(reports(2, {}, seed, tail=1.5, noise=0.2), 100).found == {}


@pytest.mark.parametrize("seed", range(10))
def test_rank_that_is_slower_is_found_in_time(seed: int) -> None:
    """A rank that is 1.3 times as slow is named within the windows that count, and no other."""
    ranks = 2 + seed % 7
    slow = seed % ranks
    found = watched(reports(ranks, {slow: 1.3}, seed), SOON).found
    assert set(found) == {(slow, f"n{slow // 4}")}
    assert found[slow, f"n{slow // 4}"].slower_by == pytest.approx(0.3, abs=0.08)


def test_named_rank_has_node_gpu_and_times() -> None:
    """A straggler is told with its node, its GPU, and how long it and its peers take."""
    (one,) = watched(steady([0.2, 0.2, 0.3, 0.2]), 12).named
    assert (one.rank, one.node, one.gpu) == (2, "n0", "GPU-2")
    assert one.own_s == pytest.approx(0.3)
    assert one.peers_s == pytest.approx(0.2)
    assert one.slower_by == pytest.approx(0.5)
    assert one.lost_step_share == pytest.approx(0.1 / one.step_s)


@given(seed=st.integers(0, 99), factor=st.floats(1.3, 4))
@settings(max_examples=30, deadline=None)
def test_figures_of_a_straggler_agree(seed: int, factor: float) -> None:
    """Its own time is longer than its peers' by what is said, whatever windows scatter."""
    for one in watched(reports(4, {1: factor}, seed, noise=0.3), 30).found.values():
        assert one.own_s / one.peers_s - 1 == pytest.approx(one.slower_by)


def test_five_windows_after_warm_up_are_enough_without_noise() -> None:
    """A clear straggler is named after five windows, and after four it is not."""
    told = list(steady([0.2, 0.3], windows=6))
    assert watched(iter(told), 5).named == ()
    assert [one.rank for one in watched(iter(told), 6).named] == [1]


def test_half_of_the_ranks_can_be_slow() -> None:
    """A slow node of two is named with all its ranks, and no rank of the other."""
    own = [0.2] * 4 + [0.3] * 4
    assert [one.rank for one in watched(steady(own), 12).named] == [4, 5, 6, 7]


def test_one_slow_window_is_forgiven() -> None:
    """A single slow window neither names a rank nor saves one that is slow otherwise."""
    burst = list(steady([0.2, 0.2, 0.2], windows=20))
    burst[7] = [report(one.rank, 70, 10, 20.0 if one.rank == 1 else 2.0) for one in burst[7]]
    assert watched(iter(burst), 20).found == {}
    relief = list(steady([0.2, 0.3, 0.2], windows=20))
    relief[12] = [report(one.rank, 120, 10, 2.0) for one in relief[12]]
    assert [one.rank for one in watched(iter(relief), 20).named] == [1]


def test_warm_up_of_a_round_is_left_out() -> None:
    """Compilation in the first window is no sign; a new round has a warm-up of its own."""
    detector = StragglerDetector()
    for _ in range(6):
        detector.reset_for_new_round()
        for some in steady([0.2, 5.0], windows=1):
            assert detector.add_reports(some) == ()
    assert detector.found == {}


def test_rank_that_recovers_is_named_no_longer() -> None:
    """What was found stays found; who is named now is only who is slow now."""
    slow, fine = list(steady([0.2, 0.3], 10)), list(steady([0.2, 0.2], 40))
    detector = watched(iter(slow + fine[10:]), 40)
    assert detector.named == ()
    assert set(detector.found) == {(1, "n0")}


def test_rank_that_gets_slow_later_is_found() -> None:
    """After a long time among equals, a few clearly slow windows are enough."""
    fine, slow = list(steady([0.2, 0.2, 0.2], 40)), list(steady([0.2, 0.2, 0.3], 60))
    detector = watched(iter(fine + slow[40:]), 46)
    assert [one.rank for one in detector.named] == [2]


def test_small_part_of_a_step_is_no_straggler() -> None:
    """Twice as long for what is hardly a part of the step slows nobody down."""
    told = ([report(0, 10 * n, 10, 0.01, 3.0), report(1, 10 * n, 10, 0.02, 3.0)] for n in range(30))
    assert watched(told, 30).found == {}


def test_ranks_are_compared_with_those_that_do_the_same() -> None:
    """A pipeline stage with more work is no straggler among stages with less."""

    def stages(number: int) -> list[RankSteps]:
        groups = enumerate((0.2, 0.2, 0.4, 0.4))
        return [
            replace(report(rank, 10 * number, 10, 10 * own), group=f"stage {rank // 2}")
            for rank, own in groups
        ]

    assert watched(iter(map(stages, range(20))), 20).found == {}


def test_own_time_follows_from_the_waits() -> None:
    """Without a measured own time it is what is left of the step; unknown waits name nobody."""

    def told(number: int, waits: Sequence[float | None]) -> list[RankSteps]:
        return [
            replace(report(rank, 10 * number, 10, 1.0, 4.0), own_s=None, waiting_s=wait)
            for rank, wait in enumerate(waits)
        ]

    known = watched((told(one, (2.0, 2.0, 1.0)) for one in range(12)), 12)
    assert [one.rank for one in known.named] == [2]
    assert watched((told(one, (None, None, None)) for one in range(12)), 12).named == ()


def test_rank_with_few_steps_is_not_judged() -> None:
    """A rank that reported less than half of a window is left out of it."""
    builder = WindowBuilder(least_s=1.0, least_steps=10)
    some = [report(0, 0, 300, 300.0), report(1, 0, 4, 4.0), report(2, 0, 300, 300.0)]
    first = builder.build_windows_from_reports(some)[0]
    assert [one.rank for one in first] == [0, 2]


def test_window_is_as_long_as_the_longer_of_time_and_steps() -> None:
    """Fast steps are gathered to two seconds, slow ones to ten steps."""
    fast = WindowBuilder(least_s=2.0, least_steps=10)
    (window, *_) = fast.build_windows_from_reports([report(0, 0, 100, own_s=4.0, seconds=5.0)])
    assert window[0].steps == 40
    slow = WindowBuilder(least_s=2.0, least_steps=10)
    (window, *_) = slow.build_windows_from_reports([report(0, 0, 100, own_s=400.0, seconds=500.0)])
    assert window[0].steps == 10


def test_window_divides_reports_at_its_edge() -> None:
    """All time of the steps of a window is in it, however reports are cut."""
    builder = WindowBuilder(least_s=1.0, least_steps=10)
    (window,) = builder.build_windows_from_reports(
        [report(0, 0, 7, 7.0), report(0, 7, 7, 14.0), report(1, 0, 14, 14.0)]
    )
    first, second = window
    assert (first.steps, second.steps) == (10, 10)
    assert first.own_s == pytest.approx(7 + 6)
    assert second.own_s == pytest.approx(10)


@pytest.mark.parametrize(
    "strange",
    [
        report(1, 0, 0),
        report(1, -5),
        report(1, 0, 10, math.nan),
        report(1, 0, 10, math.inf),
        report(1, 0, 10, -1.0, 1.0),
        report(1, 0, 10, 1.0, 0.0),
        report(1, 0, 10**9),
    ],
)
def test_impossible_report_is_left_out(strange: RankSteps) -> None:
    """A damaged record disturbs neither the windows nor the other ranks."""
    told = [[*some, replace(strange, rank=3)] for some in steady([0.2, 0.2, 0.3], 12)]
    assert [one.rank for one in watched(iter(told), 12).named] == [2]


def test_vanished_rank_does_not_hold_up_the_others() -> None:
    """Ranks that no longer report are left behind after a while."""
    told = list(steady([0.2, 0.2, 0.3, 0.2], 40))
    cut = told[:3] + [[one for one in some if one.rank != 3] for some in told[3:]]
    assert [one.rank for one in watched(iter(cut), 40).named] == [2]


@given(st.lists(st.floats(0.001, 1000), min_size=2, max_size=12))
def test_median_without_a_value_is_the_median_of_the_rest(values: list[float]) -> None:
    """The fast way to all of them gives what computing each alone gives."""
    slowly = [median(values[:place] + values[place + 1 :]) for place in range(len(values))]
    assert medians_of_others(values) == pytest.approx(slowly)


def test_ranks_without_time_are_not_compared() -> None:
    """A rank alone has no peers, and zero is no time."""
    assert compare_with_peers([report(0, 0)]) == []
    assert compare_with_peers([report(0, 0), replace(report(1, 0), own_s=0.0)]) == []


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6), st.sampled_from([1.0, 1.3, 1.6]), st.permutations(range(6)))
def test_permutation_of_ranks_changes_nothing(seed: int, ranks: int, factor: float, other: list[int]) -> None:
    """Whoever is named under other numbers is the same, by the same times."""
    names = [one for one in other if one < ranks]
    told = [some for _, some in zip(range(SOON), reports(ranks, {0: factor}, seed), strict=False)]
    renamed = [[replace(one, rank=names[one.rank]) for one in some] for some in told]
    as_they_are, permuted = watched(iter(told), SOON).named, watched(iter(renamed), SOON).named
    assert {names[one.rank]: one.slower_by for one in as_they_are} == pytest.approx(
        {one.rank: one.slower_by for one in permuted}
    )


class Cluster(RuleBasedStateMachine):
    """A run whose ranks change, get slow, recover, fall behind and start again."""

    def __init__(self) -> None:
        """Begin with two equal ranks."""
        super().__init__()
        self.detector = StragglerDetector()
        self.draw = random.Random(7)  # noqa: S311  # no secret
        self.begin(2)

    def begin(self, ranks: int) -> None:
        """Start a round of these ranks from step 0."""
        self.slow = dict.fromkeys(range(ranks), 1.0)
        self.ever_slow: set[int] = set()
        self.step = 0
        self.detector.reset_for_new_round()
        self.known = dict(self.detector.found)

    @rule(ranks=st.integers(1, 9))
    def new_round(self, ranks: int) -> None:
        """Start again with another number of ranks."""
        self.begin(ranks)

    @rule(victim=st.integers(0, 8), factor=st.sampled_from([1.3, 2.0]))
    def slow_down(self, victim: int, factor: float) -> None:
        """Make a rank slow, unless more than half of them would be: then the others look fast."""
        if victim in self.slow and 2 * len(self.ever_slow | {victim}) <= len(self.slow):
            self.slow[victim] = factor
            self.ever_slow.add(victim)

    @rule()
    def recover(self) -> None:
        """Make all ranks equal again."""
        self.slow = dict.fromkeys(self.slow, 1.0)

    @rule(load=st.floats(0.5, 5.0), windows=st.integers(1, 8), missing=st.booleans())
    def run(self, load: float, windows: int, missing: bool) -> None:  # noqa: FBT001  # Hypothesis'
        """Train for some windows under a load that all share."""
        for _ in range(windows):
            told = [
                report(rank, self.step, 10, 10 * OWN_S * load * factor * self.draw.gauss(1, 0.01))
                for rank, factor in self.slow.items()
            ]
            self.detector.add_reports(told[1:] if missing and len(told) > 2 else told)
            self.step += 10

    @precondition(lambda self: max(self.slow.values()) > 1.0 and len(self.slow) > 1)
    @rule()
    def run_until_found(self) -> None:
        """Train for as many windows as count: then every slow rank is named."""
        self.run(1.0, DEFAULT.windows + 12, missing=False)
        named = {one.rank for one in self.detector.named}
        assert named == {rank for rank, factor in self.slow.items() if factor > 1}

    @invariant()
    def only_slow_ranks_are_named(self) -> None:
        """Nobody is ever named who was not slow in this round."""
        assert {one.rank for one in self.detector.named} <= self.ever_slow

    @invariant()
    def numbers_are_possible(self) -> None:
        """Count no more slow windows than were judged, and an excess above the threshold."""
        for one in self.detector.named:
            assert DEFAULT.least_windows <= one.windows <= one.judged <= DEFAULT.windows
            assert one.slower_by >= DEFAULT.straggler_excess
            assert 0 < one.lost_step_share < 1


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
