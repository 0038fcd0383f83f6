"""Promises of planning.energy: each joule of a GPU counts once, and estimates are told as such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.model.goodput import Goodput, MeasuredTimes, TimeParts
from hpckit.model.telemetry.energy import EnergySum
from hpckit.planning.energy.account import (
    EnergyPrices,
    GpuClaim,
    WorkDone,
    energy_bill,
    energy_of_runs,
    launch_bill,
    work_done,
)
from hpckit.planning.energy.readings import EnergyReading, power_curves, total

GPU = "GPU-a"


def read(
    at_s: float, counter_j: float | None = None, power_w: float | None = None
) -> EnergyReading:
    """Return a reading of the one GPU."""
    return EnergyReading(gpu=GPU, at_s=at_s, counter_j=counter_j, power_w=power_w)


def claim(
    begin_s: float, end_s: float, run: str = "r.0", *, attempt: int = 1, gpu: str = GPU
) -> GpuClaim:
    """Return that a run had a GPU."""
    return GpuClaim(run=run, attempt=attempt, gpu=gpu, begin_s=begin_s, end_s=end_s)


def energy(readings: Sequence[EnergyReading], begin_s: float, end_s: float) -> EnergySum:
    """Return the energy of the one GPU."""
    return power_curves(readings)[GPU].energy(begin_s, end_s)


def test_energy_is_the_difference_of_the_counter() -> None:
    """Between two readings it is measured, and the power is not asked."""
    found = energy([read(0, 1000, 9999.0), read(10, 4000, 9999.0)], 0, 10)
    assert found == EnergySum(total_j=3000, gpu_s=10)
    assert not found.is_estimate


def test_counter_that_was_reset_is_estimated() -> None:
    """A counter that went back says nothing of that stretch: power times time does, marked."""
    found = energy([read(0, 5000, 300.0), read(10, 40, 500.0), read(20, 3040, 400.0)], 0, 20)
    assert found.total_j == pytest.approx(400 * 10 + 3000)
    assert found.estimated_j == pytest.approx(4000)


def test_single_missing_counter_changes_nothing() -> None:
    """Where the counters around it are known, a reading without one needs no estimate."""
    found = energy([read(0, 0.0, 900.0), read(5, None, 900.0), read(10, 1000.0, 900.0)], 0, 10)
    assert found == EnergySum(total_j=1000, gpu_s=10)


def test_missing_counter_is_estimated_by_power() -> None:
    """A GPU without a counter has its power, where that is known, and else its mean power."""
    found = energy([read(0, None, 200.0), read(10, None, 400.0)], 0, 20)
    assert found.total_j == pytest.approx(300 * 20)
    assert found.estimated_j == found.total_j


def test_time_beyond_the_readings_is_estimated() -> None:
    """Before the first and after the last reading the GPU counts with its mean power."""
    found = energy([read(10, 0.0), read(20, 1000.0)], 0, 30)
    assert found.total_j == pytest.approx(3000)
    assert found.estimated_j == pytest.approx(2000)


def test_gpu_of_which_nothing_is_known_has_no_energy() -> None:
    """Its seconds count as unknown, and its bill says null, not zero."""
    found = energy_of_runs([claim(0, 10)], [])["r.0"]
    assert found == EnergySum(gpu_s=10, unknown_s=10)
    bill = energy_bill(found, EnergyPrices(per_gpu_hour=3.6, carbon_g_per_kwh=400))
    assert (bill.kwh, bill.carbon_g) == (None, None)
    assert bill.price == pytest.approx(0.01)


def test_gpu_that_several_ranks_read_counts_once() -> None:
    """Two ranks that report the same GPU add nothing to each other."""
    once = [read(float(at), 100.0 * at) for at in range(5)]
    late = [replace(one, at_s=one.at_s + 0.5, counter_j=(one.at_s + 0.5) * 100) for one in once]
    found = energy([*once, *late, *once], 0, 4)
    assert found.total_j == pytest.approx(400)
    assert found.estimated_j == 0


def test_overlapping_attempts_count_once() -> None:
    """A time that two attempts of a run claim counts once, and a gap between them not at all."""
    readings = [read(0, 0.0), read(100, 10_000.0)]
    both = [claim(0, 30), claim(20, 40, attempt=2), claim(60, 70, attempt=3), claim(0, 30)]
    found = energy_of_runs(both, readings)["r.0"]
    assert found.total_j == pytest.approx(5000)
    assert found.gpu_s == pytest.approx(50)
    assert found.shared_j == 0


def test_shared_gpu_is_divided_by_time_and_marked() -> None:
    """While two runs have a GPU each pays half, and that half is marked as shared."""
    readings = [read(0, 0.0), read(100, 10_000.0)]
    found = energy_of_runs([claim(0, 60, "a"), claim(40, 100, "b")], readings)
    assert found["a"].total_j == pytest.approx(4000 + 1000)
    assert found["a"].shared_j == pytest.approx(1000)
    assert found["b"].gpu_s == pytest.approx(50)


def test_bill_has_price_carbon_and_energy_for_each_step() -> None:
    """1 kWh on two GPUs in an hour: all that follows from it, with the site's PUE."""
    used = EnergySum(total_j=3.6e6, estimated_j=0.9e6, gpu_s=7200)
    prices = EnergyPrices(per_gpu_hour=2.0, carbon_g_per_kwh=400, pue=1.5)
    bill = energy_bill(used, prices, WorkDone(steps=1000, samples=36_000, lost_share=0.1))
    assert (bill.gpu_hours, bill.kwh, bill.site_kwh) == (2.0, 1.0, 1.5)
    assert [bill.carbon_g, bill.price] == pytest.approx([600, 4])
    assert [bill.lost_kwh, bill.lost_price] == pytest.approx([0.1, 0.4])
    assert [bill.j_per_step, bill.j_per_sample] == pytest.approx([3600, 100])
    assert bill.estimated_share == pytest.approx(0.25)


def test_published_training_runs_have_the_carbon_that_was_published() -> None:
    """Llama 3.1's model card: 39.3 million GPU-hours at 700 W are 11,390 t at 0.414 kg/kWh."""
    seconds = 39.3e6 * 3600
    used = energy([read(0.0, None, 700.0)], 0, seconds)
    bill = energy_bill(used, EnergyPrices(carbon_g_per_kwh=414))
    assert bill.kwh == pytest.approx(27.51e6, rel=1e-3)
    assert bill.carbon_g == pytest.approx(11_390e6, rel=2e-3)
    assert bill.estimated_share == 1


def test_lost_share_is_that_of_the_account() -> None:
    """Restarts and repeated steps are lost, as parts of the time on the nodes."""
    hours = {"productive": 8, "lost": 1, "restart": 1, "queue": 100}
    parts = TimeParts(**{name: timedelta(hours=count) for name, count in hours.items()})
    account = Goodput(
        parts=parts,
        stepped=True,
        attempts=2,
        rounds=2,
        lost_steps=1,
        saves=0,
        saved_bytes=0,
        writing=timedelta(0),
        interruptions=(),
        first_wait=timedelta(0),
        measured=MeasuredTimes(),
        ettr_expected=None,
    )
    done = work_done(account, 100, 32)
    assert done == WorkDone(steps=100, samples=3200, lost_share=0.2)


TIMES = st.floats(0, 1000)
READINGS = st.lists(
    st.builds(
        EnergyReading,
        gpu=st.sampled_from(["GPU-a", "GPU-b"]),
        at_s=TIMES,
        counter_j=st.none() | st.floats(0, 1e6) | st.just(float("nan")),
        power_w=st.none() | st.floats(0, 1000) | st.just(-1.0),
    ),
    max_size=12,
)
CLAIMS = st.lists(
    st.builds(
        GpuClaim,
        run=st.sampled_from(["a", "b", "c"]),
        attempt=st.integers(1, 3),
        gpu=st.sampled_from(["GPU-a", "GPU-b", "GPU-c"]),
        begin_s=TIMES,
        end_s=TIMES,
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(READINGS, CLAIMS)
def test_total_is_the_sum_of_the_runs_and_never_negative(
    readings: list[EnergyReading], claims: list[GpuClaim]
) -> None:
    """What all runs have is what one run would have that had claimed all; no part is negative."""
    found = energy_of_runs(claims, readings)
    one = energy_of_runs([replace(each, run="one") for each in claims], readings)
    parts, whole = total(found.values()), one.get("one", EnergySum())
    assert parts.total_j == pytest.approx(whole.total_j, abs=1e-6)
    assert parts.gpu_s == pytest.approx(whole.gpu_s, abs=1e-6)
    assert parts.estimated_j == pytest.approx(whole.estimated_j, abs=1e-6)
    for each in found.values():
        assert 0 <= each.estimated_j <= each.total_j * (1 + 1e-9) + 1e-9
        assert 0 <= each.shared_j <= each.total_j * (1 + 1e-9) + 1e-9
        assert 0 <= each.unknown_s <= each.gpu_s


@settings(max_examples=150, deadline=None)
@given(READINGS, TIMES, TIMES, TIMES)
def test_divided_time_has_the_same_energy(
    readings: list[EnergyReading], first: float, second: float, third: float
) -> None:
    """An interval that is cut at any moment has the energy of its two parts."""
    begin_s, middle_s, end_s = sorted((first, second, third))
    for curve in power_curves(readings).values():
        whole = curve.energy(begin_s, end_s)
        parts = curve.energy(begin_s, middle_s) + curve.energy(middle_s, end_s)
        assert parts.total_j == pytest.approx(whole.total_j, rel=1e-6, abs=1e-6)
        assert parts.estimated_j == pytest.approx(whole.estimated_j, rel=1e-6, abs=1e-6)
        assert parts.unknown_s == pytest.approx(whole.unknown_s, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(READINGS, CLAIMS, st.randoms(use_true_random=False))
def test_order_of_readings_and_claims_changes_nothing(
    readings: list[EnergyReading], claims: list[GpuClaim], shuffle: Random
) -> None:
    """Whichever rank's file was read first, the energy is the same."""
    before = energy_of_runs(claims, readings)
    shuffle.shuffle(readings)
    shuffle.shuffle(claims)
    after = energy_of_runs(claims, readings)
    assert {run: one.total_j for run, one in after.items()} == pytest.approx(
        {run: one.total_j for run, one in before.items()}
    )


def test_launch_has_the_sums_of_its_runs() -> None:
    """GPU-hours, energy, cost and what was lost add up over runs."""
    prices = EnergyPrices(per_gpu_hour=1.0, carbon_g_per_kwh=100, pue=2.0)
    used = EnergySum(total_j=3.6e6, gpu_s=3600)
    bills = [
        energy_bill(used, prices, WorkDone(steps=10, lost_share=0.5)),
        energy_bill(used, prices),
    ]
    whole = launch_bill(bills, prices)
    assert [whole.kwh, whole.price, whole.carbon_g] == pytest.approx([2, 2, 400])
    assert (whole.lost_kwh, whole.lost_price, whole.j_per_step) == (0.5, 0.5, None)
