"""Promises of run.timed and of what a rank reports of its steps."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import UsageError
from hpckit.model.rank import RankInfo, RankSource
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.runtime.rank.step_times import REPORT_S, StepTimes, ThreadWork, TimedBatches, make_step_times


@dataclass
class Day:
    """A clock, and the own work of a rank, which a test moves on."""

    at: float = 0.0
    worked: float = 0.0
    reports: list[RankSteps] = field(default_factory=list)

    def work(self, seconds: float) -> None:
        """Compute."""
        self.at += seconds
        self.worked += seconds

    def wait(self, seconds: float) -> None:
        """Sleep."""
        self.at += seconds

    def seconds(self) -> float:
        """Return the own work so far."""
        return self.worked

    def times(self, *, alone: bool = False) -> StepTimes:
        """Return what measures this day's steps."""
        return StepTimes(
            rank=3, send=self.reports.append, own=self.seconds, alone=alone, clock=lambda: self.at
        )


def test_report_has_the_samples_of_its_steps() -> None:
    """As many as `run.steps` was told for each; null if it was told nothing."""
    day = Day()
    told, untold = replace(day.times(), samples_per_step=32), day.times()
    for step in range(11):
        told.begin_step(step)
        untold.begin_step(step)
        day.work(0.1)
    told.end_last_step()
    untold.end_last_step()
    assert [(report.steps, report.samples) for report in day.reports] == [(10, 320), (10, None)]


def test_step_is_divided_into_data_saves_waiting_and_own_work() -> None:
    """What a step of ten seconds went to adds up to it; waiting for data is the rank's own."""
    day = Day()
    times = day.times()
    for step in range(3):
        times.begin_step(step)
        with times.measure_phase("data"):
            day.wait(1.0)
            day.work(0.5)
        day.work(4.0)
        day.wait(2.0)  # a collective
        with times.count_as_waiting():
            day.wait(0.5)
        with times.count_as_saving():
            day.work(2.0)
    times.end_last_step()
    assert sum(report.steps for report in day.reports) == 2, "the first step is warm-up"
    for report in day.reports:
        assert report.first_step in (1, 2)
        assert report.rank == 3
        assert report.seconds == pytest.approx(10.0)
        assert report.data_s == pytest.approx(1.5)
        assert report.checkpoint_s == pytest.approx(2.0)
        assert report.own_s == pytest.approx(5.5)
        assert report.waiting_s == pytest.approx(2.5)


def test_steps_are_reported_every_few_seconds_and_each_once() -> None:
    """Fast steps share a report; none is lost or told twice."""
    day = Day()
    times = day.times()
    for step in range(1000):
        times.begin_step(step)
        day.work(0.01)
    times.end_last_step()
    assert len(day.reports) == pytest.approx(1000 * 0.01 / REPORT_S, abs=1)
    stretches = (range(report.first_step, report.first_step + report.steps) for report in day.reports)
    assert [step for stretch in stretches for step in stretch] == list(range(1, 1000))


def test_rank_alone_waits_for_nobody() -> None:
    """With one rank all of a step but saves is its own work, sleeping too."""
    day = Day()
    times = day.times(alone=True)
    for step in range(2):
        times.begin_step(step)
        day.wait(3.0)
        with times.count_as_saving():
            day.wait(1.0)
    times.end_last_step()
    (one,) = day.reports
    assert one.own_s == pytest.approx(3.0)
    assert one.waiting_s == pytest.approx(0.0)


def test_phases_of_the_user_are_summed_and_change_nothing_else() -> None:
    """A phase is time by the clock, nested or not, and own work stays what it was."""
    day = Day()
    times = day.times()
    for step in range(3):
        times.begin_step(step)
        with times.measure_phase("outer"):
            day.work(1.0)
            with times.measure_phase("inner"):
                day.work(2.0)
    times.end_last_step()
    total = sum(report.phases["outer"] for report in day.reports)
    assert total == pytest.approx(6.0)
    assert sum(report.phases["inner"] for report in day.reports) == pytest.approx(4.0)
    assert sum(report.own_s or 0 for report in day.reports) == pytest.approx(6.0)


def test_what_is_left_out_is_no_part_of_a_step() -> None:
    """An evaluation within run.unwatched() makes no step longer."""
    day = Day()
    times = day.times()
    for step in range(3):
        times.begin_step(step)
        day.work(1.0)
        with times.leave_time_out():
            day.work(100.0)
    times.end_last_step()
    assert sum(report.seconds for report in day.reports) == pytest.approx(2.0)
    assert sum(report.own_s or 0 for report in day.reports) == pytest.approx(2.0)


def test_other_threads_do_not_make_a_rank_wait() -> None:
    """A prefetching thread that waits for data is not the step that waits."""
    day = Day()
    times = day.times()
    times.begin_step(0)
    times.begin_step(1)

    def prefetch() -> None:
        with times.measure_phase("data"):
            day.wait(5.0)

    thread = threading.Thread(target=prefetch)
    thread.start()
    thread.join()
    day.work(1.0)
    times.end_last_step()
    assert [report.data_s for report in day.reports] == [0.0]


def test_loop_that_is_left_within_a_step_reports_no_half_step() -> None:
    """After an exception only whole steps were reported, and the next loop begins anew."""
    day = Day()
    times = day.times()
    for step in range(2):
        times.begin_step(step)
        day.work(1.0)
    times.forget_unreported()
    times.begin_step(0)
    day.work(1.0)
    times.begin_step(1)
    day.work(1.0)
    times.end_last_step()
    assert [(report.first_step, report.steps) for report in day.reports] == [(1, 1)]


@given(st.lists(st.tuples(st.sampled_from("cdsm"), st.floats(0, 3)), max_size=60))
def test_parts_of_a_report_never_exceed_it(parts: list[tuple[str, float]]) -> None:
    """Whatever is done in a step: own work, waiting and saves add up to its seconds."""
    day = Day()
    times = day.times()
    within = {
        "d": lambda: times.measure_phase("data"),
        "s": times.count_as_saving,
        "m": times.count_as_waiting,
    }
    for step, (kind, seconds) in enumerate(parts):
        times.begin_step(step)
        if kind in within:
            with within[kind]():
                day.wait(seconds)
        else:
            day.work(seconds)
    times.end_last_step()
    for report in day.reports:
        assert report.own_s is not None
        assert report.waiting_s is not None
        whole = report.own_s + report.waiting_s + (report.checkpoint_s or 0)
        assert whole == pytest.approx(report.seconds)
        assert min(report.own_s, report.waiting_s) >= 0
        assert (report.data_s or 0) <= report.own_s + 1e-9


@pytest.mark.parametrize("name", ["", " ", "x" * 41, 3])
def test_phase_needs_a_name(name: str) -> None:
    """What is no name of a phase is refused with what is allowed."""
    with pytest.raises(UsageError, match="1 to 40 characters"), Day().times().measure_phase(name):
        pass


def test_phases_are_few() -> None:
    """Names made of steps do not grow without end: the rest is not counted, and no run ends."""
    day, said = Day(), list[str]()
    times = replace(day.times(), warn=said.append)
    for step in range(40):
        times.begin_step(step)
        with times.measure_phase(f"step {step}"):
            day.work(0.5)
    times.end_last_step()
    found = {name for report in day.reports for name in report.phases}
    assert found <= {f"step {step}" for step in range(16)}
    assert "step 15" in found
    (warning,) = said
    assert warning.startswith("run.timed('step 16'): only the first 16 phases")


@pytest.mark.parametrize("name", ["data", "forward"])
def test_phase_without_with_is_said_once(name: str) -> None:
    """`run.timed("data")` alone measures nothing: silence would look like a fast loader."""
    day, said = Day(), list[str]()
    times = replace(day.times(), warn=said.append)
    for _ in range(3):
        times.measure_phase(name)
    gc.collect()
    (warning,) = said
    assert f"write `with run.timed('{name}'):`" in warning


def test_function_can_be_a_phase() -> None:
    """As a decorator, each call counts, also one within another."""
    day, said = Day(), list[str]()
    times = replace(day.times(), warn=said.append)

    @times.measure_phase("forward")
    def forward(depth: int) -> None:
        day.work(1.0)
        if depth:
            forward(depth - 1)

    times.begin_step(0)
    times.begin_step(1)
    forward(0)
    forward(0)
    times.end_last_step()
    assert day.reports[0].phases == {"forward": 2.0}
    times.begin_step(2)
    times.begin_step(3)
    forward(1)
    times.end_last_step()
    assert (day.reports[1].phases["forward"], said) == (3.0, [])


def test_batches_are_waited_for_within_data() -> None:
    """The loader's time is waiting for data, its batches and its length stay the same."""
    day = Day()
    times = day.times()

    class Loader:
        def __iter__(self) -> Iterator[int]:
            for number in range(3):
                day.wait(2.0)
                yield number

        def __len__(self) -> int:
            return 3

    times.begin_step(0)
    times.begin_step(1)
    batches = TimedBatches(Loader(), times.measure_phase)
    assert (list(batches), len(batches)) == ([0, 1, 2], 3)
    times.end_last_step()
    assert [report.data_s for report in day.reports] == [pytest.approx(6.0)]
    with pytest.raises(TypeError, match="len"):
        len(TimedBatches(iter([1]), times.measure_phase))


def test_nothing_is_measured_without_a_receiver() -> None:
    """With observe=off a step costs no clock and no report."""

    def no_clock() -> float:
        raise AssertionError("asked for the time")

    times = StepTimes(clock=no_clock)
    times.begin_step(0)
    times.begin_step(1)
    with times.measure_phase("data"), times.count_as_saving(), times.leave_time_out():
        pass
    times.end_last_step()


def test_own_work_is_computing_and_not_sleeping() -> None:
    """A thread that sleeps for others does no own work; one that computes does."""
    work = ThreadWork()
    begun = work.own_work_seconds()
    time.sleep(0.3)
    slept = work.own_work_seconds()
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        sum(range(1000))
    computed = work.own_work_seconds()
    assert begun is not None
    assert slept is not None
    assert computed is not None
    assert slept - begun < 0.1
    assert computed - slept >= 0.2


def test_ranks_on_gpus_do_not_claim_to_know_their_own_work() -> None:
    """What waits on a GPU cannot be told from outside: no own work, so no straggler."""
    info = RankInfo(
        rank=0,
        world_size=2,
        local_rank=0,
        local_world_size=2,
        node_rank=0,
        num_nodes=1,
        source=RankSource.agent,
    )
    for device, knows in (("cpu", True), ("meta", False)):
        times = make_step_times(info, torch.device(device), lambda _: None, samples_per_step=0)
        assert (times.own is not None) is knows
