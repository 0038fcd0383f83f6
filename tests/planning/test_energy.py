"""Promises of the energy of runs: each joule counts once, and estimates are told as such."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.goodput import Goodput, MeasuredTimes, TimeParts
from hpckit.model.launch import Cluster
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.usage import EnergySum, NodeUsage, sum_energy_bills
from hpckit.model.telemetry.vocabulary import (
    GaugeSpread,
    GpuCounter,
    GpuDevice,
    GpuGauge,
    GpuRow,
    GpuVendor,
    TelemetryRow,
)
from hpckit.planning.diagnosis.usage import (
    compute_energy_bill,
    samples_per_step,
    share_of_lost_time,
    sum_gpu_energy,
    summarize_gpu_use,
    summarize_telemetry,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def gpu(uuid: str, *, joules: float | None = None, watts: float | None = None) -> GpuRow:
    """Return what a GPU did."""
    spread = None if watts is None else GaugeSpread(min=watts, mean=watts, max=watts, p95=watts, count=10)
    return GpuRow(
        uuid=uuid,
        samples=10,
        gauges={} if spread is None else {GpuGauge.power_w: spread},
        counters={} if joules is None else {GpuCounter.energy_j: joules},
    )


def usage(
    *gpus: GpuRow, seconds: float = 100.0, node: str = "n1", devices: tuple[GpuDevice, ...] = ()
) -> NodeUsage:
    """Return what a run used of a node."""
    end = START + timedelta(seconds=seconds)
    row = TelemetryRow(start=START, end=end, gpus=gpus)
    return NodeUsage(node=node, seconds=seconds, row=row, devices=devices)


def test_energy_is_what_the_counters_say() -> None:
    """If a GPU has a counter, its power is not asked."""
    found = sum_gpu_energy([usage(gpu("a", joules=3000, watts=999.0))])
    assert found == EnergySum(total_j=3000, gpu_s=100)


def test_energy_without_a_counter_is_estimated_by_power() -> None:
    """Power times time, marked as an estimate."""
    found = sum_gpu_energy([usage(gpu("a", watts=300.0), gpu("b", joules=1000.0))])
    assert (found.total_j, found.estimated_j, found.gpu_s) == (31_000, 30_000, 200)
    assert found.estimated_share == pytest.approx(30 / 31)


def test_power_is_counted_for_the_time_in_which_it_is_known() -> None:
    """A GPU that was lost after a tenth of the time draws nothing that anybody could know."""
    known = GaugeSpread(min=300, mean=300, max=300, p95=300, count=10)
    row = GpuRow(uuid="a", samples=100, gauges={GpuGauge.power_w: known}, counters={})
    found = sum_gpu_energy([usage(row, seconds=3000)])
    assert (found.total_j, found.gpu_s, found.unknown_s) == (300 * 300, 3000, 2700)
    assert found.estimated_share == 1


def test_gpu_of_which_nothing_is_known_has_no_energy() -> None:
    """Its seconds count as unknown, and its bill says null, not zero."""
    found = sum_gpu_energy([usage(gpu("a"), seconds=10)])
    assert found == EnergySum(gpu_s=10, unknown_s=10)
    bill = compute_energy_bill(found, Cluster(price_per_gpu_hour=3.6, carbon_g_per_kwh=400))
    assert (bill.kwh, bill.carbon_g) == (None, None)
    assert bill.price == pytest.approx(0.01)


def test_part_of_a_gpu_adds_nothing_to_it() -> None:
    """The driver tells the energy of the whole GPU, so a MIG instance of it counts nothing."""
    part = GpuDevice(vendor=GpuVendor.nvidia, uuid="MIG-1", index=0, name="1g", parent="a")
    found = sum_gpu_energy([usage(gpu("a", joules=500), gpu("MIG-1", joules=500), devices=(part,))])
    assert (found.total_j, found.gpu_s) == (500, 100)


@given(st.integers(1, 16), st.floats(0, 1e9), st.none() | st.floats(0, 1e3))
def test_parts_of_a_shared_gpu_add_up_to_it(runs: int, joules: float, watts: float | None) -> None:
    """Whatever it used, the runs that had it together pay for all of it, and for no more."""
    used = [usage(gpu("a", joules=joules), gpu("b", watts=watts))]
    whole, part = sum_gpu_energy(used), sum_gpu_energy(used, 1 / runs)
    together = sum([part] * runs, EnergySum())
    assert together.total_j == pytest.approx(whole.total_j)
    assert together.gpu_s == pytest.approx(whole.gpu_s)
    assert part.shared_j == pytest.approx(part.total_j if runs > 1 else 0)


def test_power_of_a_run_that_moved_is_that_of_one_time() -> None:
    """100 s on one node, then 100 s on another: 300 W, not 600 W."""
    moved = [usage(gpu("a", watts=300.0)), usage(gpu("b", watts=300.0), node="n2")]
    energy = sum_gpu_energy(moved)
    assert summarize_telemetry(summarize_gpu_use(moved), (), energy, seconds=200).power_w == pytest.approx(
        300
    )
    assert summarize_telemetry(summarize_gpu_use(moved), (), energy, seconds=100).power_w == pytest.approx(
        600
    )


def test_bill_has_price_carbon_and_energy_for_each_step() -> None:
    """1 kWh on two GPUs in an hour: all that follows from it, with the site's PUE."""
    used = EnergySum(total_j=3.6e6, estimated_j=0.9e6, gpu_s=7200)
    prices = Cluster(price_per_gpu_hour=2.0, carbon_g_per_kwh=400, pue=1.5)
    bill = compute_energy_bill(used, prices, lost=0.1, steps=1000, step_samples=36.0)
    assert (bill.gpu_hours, bill.kwh, bill.site_kwh) == (2.0, 1.0, 1.5)
    assert [bill.carbon_g, bill.price] == pytest.approx([600, 4])
    assert [bill.lost_kwh, bill.lost_price] == pytest.approx([0.1, 0.4])
    assert [bill.j_per_step, bill.j_per_sample] == pytest.approx([3600, 100])
    assert bill.estimated_share == pytest.approx(0.25)


def test_published_training_runs_have_the_carbon_that_was_published() -> None:
    """Llama 3.1's model card: 39.3 million GPU-hours at 700 W are 11,390 t at 0.414 kg/kWh."""
    used = sum_gpu_energy([usage(gpu("a", watts=700.0), seconds=39.3e6 * 3600)])
    bill = compute_energy_bill(used, Cluster(carbon_g_per_kwh=414))
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
    assert share_of_lost_time(account) == 0.2


def test_samples_of_a_step_are_those_that_its_ranks_reported() -> None:
    """Each rank reports those of all ranks; who was not told, reports none."""
    told = RankSteps(rank=0, steps=50, samples=1600, seconds=1.0)
    untold = RankSteps(rank=1, steps=50, seconds=1.0)
    assert samples_per_step([told, told, untold]) == 32
    assert samples_per_step([untold]) is None


def test_launch_has_the_sums_of_its_runs() -> None:
    """GPU-hours, energy, cost and what was lost add up over runs; unknown ones add nothing."""
    prices = Cluster(price_per_gpu_hour=1.0, carbon_g_per_kwh=100, pue=2.0)
    used = EnergySum(total_j=3.6e6, gpu_s=3600)
    bills = [
        compute_energy_bill(used, prices, lost=0.5, steps=10),
        compute_energy_bill(used, prices),
        compute_energy_bill(EnergySum(), Cluster()),
    ]
    whole = sum_energy_bills(bills)
    assert [whole.kwh, whole.price, whole.carbon_g] == pytest.approx([2, 2, 400])
    assert (whole.lost_kwh, whole.lost_price, whole.j_per_step) == (0.5, 0.5, None)
    assert sum_energy_bills([]).kwh is None
