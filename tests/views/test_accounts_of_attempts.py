"""What a run used and what was found, over all its attempts and beside other runs."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from cli_world import START, Desk, Writer

from hpckit.model import events
from hpckit.model.diagnosis.verdict import Straggler
from hpckit.model.launch import Cluster, ClusterKind
from hpckit.model.telemetry.json_form import encode_telemetry
from hpckit.model.telemetry.vocabulary import (
    GaugeSpread,
    GpuCounter,
    GpuGauge,
    GpuRow,
    HostCounter,
    HostRow,
    TelemetryRow,
    TelemetryTotal,
)
from hpckit.observe.aggregate import RunningTotal
from hpckit.record.store import append_lines

pytestmark = pytest.mark.whole

BEGIN = START + timedelta(minutes=1)


def test_runs_beside_each_other_on_this_machine_pay_for_its_gpus_once(desk: Desk) -> None:
    """With cluster.max_parallel=2 both runs measure all GPUs; each has half of what they used."""
    cluster = Cluster(kind=ClusterKind.local, max_parallel=2)
    launch = desk.freeze(sweep=[("lr=1",), ("lr=2",)], cluster=cluster)
    power = GaugeSpread(min=300, mean=300, max=300, p95=300, count=30)
    gpu = GpuRow(
        uuid="GPU-1",
        samples=30,
        gauges={GpuGauge.power_w: power},
        counters={GpuCounter.energy_j: 36000, GpuCounter.own_s: 60},
    )
    row = TelemetryRow(start=BEGIN, end=BEGIN + timedelta(minutes=2), gpus=(gpu,))
    for index in (0, 1):
        writer = Writer(launch=launch, index=index)
        writer.start()
        writer.complete()
        paths = launch.paths.run(index).attempt(1)
        append_lines(paths.telemetry("laptop"), encode_telemetry(TelemetryTotal(row=row)))
    said = json.loads(desk.say("status", launch.id, "--json", "--goodput").out)
    assert said["energy"]["total_j"] == pytest.approx(36000)
    assert said["energy"]["gpu_hours"] == pytest.approx(120 / 3600, rel=1e-3)
    assert [one["telemetry"]["energy_j"] for one in said["runs"]] == [18000, 18000]


def test_next_attempt_keeps_the_stragglers_of_the_one_before(desk: Desk) -> None:
    """Verdicts are over all attempts: with on_straggler=move a straggler is why there are two."""
    launch = desk.freeze()
    first, second = (Writer(launch=launch, attempt=number) for number in (1, 2))
    slow = Straggler(
        rank=1,
        node="n2",
        gpu=None,
        slower_by=0.3,
        own_s=1.0,
        peers_s=0.7,
        step_s=1.2,
        windows=9,
        judged=10,
    )
    first.start()
    first.tell(events.StragglerFound(at=BEGIN, round=0, straggler=slow))
    first.interrupt()
    second.start()
    second.complete()
    (run,) = json.loads(desk.say("status", launch.id, "--json").out)["runs"]
    assert [(one["rank"], one["node"]) for one in run["stragglers"]] == [(1, "n2")]
    assert "straggler" in [one["kind"] for one in run["verdicts"]]


def test_counter_that_falls_a_little_did_not_begin_again() -> None:
    """A network card that goes takes its bytes from the sum; the kernel lets iowait fall, too."""
    total = RunningTotal()
    sent, waited = (5.0e12, 5.001e12, 4.9e12, 4.9e12), (1000.0, 1000.1, 1000.0, 1000.2)
    for number in range(4):
        counters = {
            HostCounter.network_tx_bytes: sent[number],
            HostCounter.cpu_waiting_s: waited[number],
        }
        start = BEGIN + timedelta(seconds=30 * number)
        host = HostRow(samples=6, gauges={}, counters=counters)
        total.add(TelemetryRow(start=start, end=start + timedelta(seconds=30), host=host))
    assert total.total is not None
    assert total.total.row.host is not None
    grown = total.total.row.host.counters
    assert grown[HostCounter.network_tx_bytes] == pytest.approx(1e9)
    assert grown[HostCounter.cpu_waiting_s] == pytest.approx(0.3)


def test_counter_that_begins_again_goes_on_from_zero() -> None:
    """A driver that was loaded anew: what it counts since then was used, too."""
    total = RunningTotal()
    for number, joules in enumerate((5000.0, 9000.0, 1000.0, 3000.0)):
        start = BEGIN + timedelta(seconds=30 * number)
        gpu = GpuRow(uuid="a", samples=6, gauges={}, counters={GpuCounter.energy_j: joules})
        total.add(TelemetryRow(start=start, end=start + timedelta(seconds=30), gpus=(gpu,)))
    assert total.total is not None
    assert total.total.row.gpus[0].counters[GpuCounter.energy_j] == 4000 + 1000 + 2000
