"""Promises of links and verdicts, on facts and figures of machines that are known."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from hpckit.features.interconnect.judge import (
    describe_measured_hardware,
    judge_interconnect,
    summarize_for_later_comparison,
)
from hpckit.features.interconnect.model import (
    CommOperation,
    InterconnectMeasurement,
    InterconnectVerdict,
    KeptMeasurement,
    OperationTimes,
    SearchMode,
    SizedTime,
    SlowLink,
    SlowParts,
    SlowSearch,
)
from hpckit.features.interconnect.promise import compute_nominal_bus_bandwidth
from hpckit.model.environment.facts import FabricPort, GpuFacts, NetworkInterface, NodeLinks
from hpckit.model.finding import Severity

GIGA = 1e9
SIZES = [2**power for power in range(10, 31)]
H100 = GpuFacts(
    name="NVIDIA H100 80GB HBM3",
    capability_number=9.0,
    nvlinks=18,
    nvlinks_down=0,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
)
NDR = tuple(FabricPort(name=f"mlx5_{number}/1", gbit_per_s=400.0) for number in range(8))


def node(host: str, **changes: Any) -> NodeLinks:
    """Return a node of eight H100 and eight NDR ports."""
    return replace(NodeLinks(host=host, gpus=(H100,) * 8, ports=NDR), **changes)


def times(operation: CommOperation, rate: float, sizes: list[int] = SIZES) -> OperationTimes:
    """Return an operation whose arrays take 20 us and then `rate` bytes per second."""
    seconds = [20e-6 + size / rate for size in sizes]
    return OperationTimes(
        operation=operation,
        times=tuple(
            SizedTime(size=size, seconds=each, fastest_s=each, slowest_rank=0, repeats=9)
            for size, each in zip(sizes, seconds, strict=True)
        ),
    )


def measured(*operations: OperationTimes, nodes: int = 1, **changes: Any) -> InterconnectMeasurement:
    """Return a measurement of eight ranks on each node."""
    hosts = tuple(f"n{number}" for number in range(nodes))
    usual = InterconnectMeasurement(
        at=datetime(2026, 1, 1, tzinfo=UTC),
        backend="nccl",
        device="cuda",
        ranks=8 * nodes,
        hosts=hosts,
        ranks_per_node=8,
        torch="2.13.0",
        operations=operations,
        links=tuple(node(host) for host in hosts),
    )
    return replace(usual, **changes)


def judged(one: InterconnectMeasurement, earlier: tuple[KeptMeasurement, ...] = ()) -> InterconnectVerdict:
    """Return the verdict on a measurement of the cluster `lab`."""
    return judge_interconnect(one, describe_measured_hardware(one, "lab"), earlier)


@pytest.mark.parametrize(
    ("capability", "links", "gbytes"), [(9.0, 18, 370.8), (8.0, 12, 240.0), (10.0, 18, 721.8)]
)
def test_nvlinks_promise_what_nccl_counts_on(capability: float, links: int, gbytes: float) -> None:
    """Rings of eight A100, H100 and B200: 240, 371 and 722 GB/s."""
    gpu = replace(H100, capability_number=capability, nvlinks=links)
    one = measured(links=(node("n0", gpus=(gpu,) * 8),))
    promise = compute_nominal_bus_bandwidth(CommOperation.all_reduce, one)
    assert promise.bytes_per_s is not None
    assert math.isclose(promise.bytes_per_s, gbytes * GIGA)
    assert f"{links} NVLinks x" in promise.words


def test_networks_promise_their_rate_and_a_rank_its_share() -> None:
    """Eight ports of 400 Gbit/s are 400 GB/s of a node, and 50 GB/s of each of eight ranks."""
    one = measured(nodes=2)
    assert compute_nominal_bus_bandwidth(CommOperation.point_to_point, one).bytes_per_s == 50 * GIGA
    ring = compute_nominal_bus_bandwidth(CommOperation.all_reduce, one)
    assert ring.bytes_per_s is not None
    assert math.isclose(ring.bytes_per_s, 370.8 * GIGA)
    assert "18 NVLinks x 20.6 GB/s, less than the networks" in ring.words
    slower = replace(one, links=(one.links[0], node("n1", ports=NDR[:4])))
    assert compute_nominal_bus_bandwidth(CommOperation.all_reduce, slower).bytes_per_s == 200 * GIGA


def test_all_to_all_sends_only_what_leaves_the_node() -> None:
    """Of 16 ranks on two nodes, 8 of a rank's 15 parts go over its eighth of the networks."""
    promise = compute_nominal_bus_bandwidth(CommOperation.all_to_all, measured(nodes=2))
    assert promise.bytes_per_s is not None
    assert math.isclose(promise.bytes_per_s, 50 * 15 / 8 * GIGA)
    assert promise.words.endswith("/ 8 ranks x 15/8")


def test_one_gpu_of_a_node_is_promised_what_its_slot_lets_through() -> None:
    """Although the node has eight ports."""
    links = tuple(node(f"n{number}", gpus=(H100,)) for number in range(2))
    one = measured(nodes=2, ranks=2, ranks_per_node=1, links=links)
    for operation in (CommOperation.all_reduce, CommOperation.point_to_point):
        promise = compute_nominal_bus_bandwidth(operation, one)
        assert promise.bytes_per_s is not None
        assert math.isclose(promise.bytes_per_s, 16 * 3.938 * 0.76 * GIGA)
        assert promise.words.startswith("1 GPU x 16 lanes")


def test_messages_within_a_node_are_promised_nothing_by_nvlinks() -> None:
    """Without a switch, each of them leads to another GPU."""
    promise = compute_nominal_bus_bandwidth(CommOperation.point_to_point, measured())
    assert promise.bytes_per_s is None
    assert "may lead to several" in promise.words


def test_slot_promises_by_lanes_and_generation() -> None:
    """Sixteen lanes of generation 5 are 63 GB/s, three quarters of which arrive."""
    promise = compute_nominal_bus_bandwidth(CommOperation.host_to_device, measured())
    assert promise.bytes_per_s is not None
    assert math.isclose(promise.bytes_per_s, 16 * 3.938 * 0.76 * GIGA)


@pytest.mark.parametrize(
    ("links", "device", "nodes", "why"),
    [
        (NodeLinks(host="n0"), "cpu", 1, "through its memory"),
        (NodeLinks(host="n0"), "cpu", 2, "does not say how fast"),
        (NodeLinks(host="n0"), "cuda", 1, "does not say which GPUs"),
        (
            NodeLinks(host="n0", interfaces=(NetworkInterface(name="e", gbit_per_s=100.0),)),
            "cpu",
            2,
            "gloo on CPUs does not fill",
        ),
        (NodeLinks(host="n0", ports=(FabricPort(name="m"),)), "cuda", 2, "does not say how fast"),
    ],
)
def test_what_is_unknown_promises_nothing(links: NodeLinks, device: str, nodes: int, why: str) -> None:
    """And no finding follows from it, however slow it is."""
    slow = times(CommOperation.all_reduce, 1e6)
    one = measured(slow, nodes=nodes, device=device, links=(links,) * nodes)
    verdict = judged(one)
    assert verdict.operations[0].share is None
    assert why in verdict.operations[0].promise.words
    assert verdict.findings == ()


def test_gloo_is_judged_by_a_slow_network() -> None:
    """One gigabit is what any CPU fills."""
    card = NodeLinks(host="n0", interfaces=(NetworkInterface(name="eth0", gbit_per_s=1.0),))
    one = measured(nodes=2, device="cpu", backend="gloo", links=(card, card))
    assert compute_nominal_bus_bandwidth(CommOperation.all_reduce, one).bytes_per_s == GIGA / 8


def test_what_reaches_its_promise_is_no_finding() -> None:
    """As do all_reduces of eight H100 at 360 GB/s on the bus."""
    verdict = judged(measured(times(CommOperation.all_reduce, 360 / 1.75 * GIGA)))
    assert verdict.findings == ()
    assert verdict.operations[0].share is not None
    assert 0.9 < verdict.operations[0].share < 1
    assert verdict.operations[0].fit is not None
    assert math.isclose(verdict.operations[0].fit.alpha_s, 20e-6, rel_tol=1e-3)


def test_sockets_in_place_of_infiniband_are_the_likely_cause() -> None:
    """A tenth of the promise is an error; half of it a warning."""
    one = measured(times(CommOperation.all_reduce, 5 * GIGA), nodes=2, network="Socket")
    (found,) = judged(one).findings
    assert found.severity is Severity.error
    assert "NCCL uses TCP sockets, although InfiniBand is up" in found.message
    assert "of 371 GB/s (18 NVLinks x 20.6 GB/s, less than the networks)" in found.message
    assert "NCCL_IB_DISABLE" in found.hint
    half = measured(times(CommOperation.all_reduce, 200 / 1.875 * GIGA), nodes=2, network="IB")
    (found,) = judged(half).findings
    assert found.severity is Severity.warning


def test_narrow_slot_and_lost_links_are_named() -> None:
    """Also where bandwidth does not show it yet."""
    narrow = replace(H100, pcie_width=8, nvlinks=17, nvlinks_down=1)
    links = node("n0", gpus=(H100,) * 7 + (narrow,))
    found = judged(measured(links=(links,))).findings
    assert [one.key for one in found] == ["PCIe", "NVLink"]
    assert "GPU 7 of n0 uses 8 of 16 PCIe lanes" in found[0].message
    assert "1 of 18 NVLinks of GPU 7 of n0 are down" in found[1].message
    slow = measured(times(CommOperation.host_to_device, 22 * GIGA), links=(links,))
    assert any("fewer PCIe lanes" in finding.message for finding in judged(slow).findings)


def test_ranks_on_another_numa_node_are_a_likely_cause() -> None:
    """Where nothing else explains a slow copy, and there are several memories."""
    links = node("n0", numa_nodes=2)
    one = measured(times(CommOperation.host_to_device, 22 * GIGA), links=(links,))
    (found,) = judged(one).findings
    assert "another NUMA node" in found.message


def test_a_very_slow_network_is_judged_by_what_it_reached() -> None:
    """No megabyte is reached in the time, and the largest size took ten times the smallest one."""
    one = measured(times(CommOperation.all_reduce, 1e7, SIZES[:8]), nodes=2)
    (found,) = judged(one).findings
    assert found.severity is Severity.error


@pytest.mark.parametrize("sizes", [SIZES[:3], [2**28, 2**29, 2**30], SIZES[:8]])
def test_too_little_is_never_judged(sizes: list[int]) -> None:
    """Fewer than four sizes, or none of a megabyte that takes longer than others."""
    one = measured(times(CommOperation.all_reduce, 10 * GIGA, sizes), nodes=2)
    assert judged(one).findings == ()
    assert summarize_for_later_comparison(one, "lab").bus_bytes_per_s == {}


def test_wrong_results_come_first_and_name_the_node() -> None:
    """They are errors of their own, whatever the bandwidth."""
    wrong = replace(times(CommOperation.all_reduce, GIGA), wrong_ranks=(9,))
    found = judged(measured(wrong, nodes=2)).findings
    assert found[0].severity is Severity.error
    assert "wrong result on rank 9 (n1)" in found[0].message
    assert "silently" in found[0].message


@pytest.mark.parametrize(("factor", "severity"), [(2.0, Severity.warning), (30.0, Severity.error)])
def test_slow_nodes_and_links_are_told_with_what_to_do(factor: float, severity: Severity) -> None:
    """Which node to exclude, and how slow it is."""
    found = SlowParts(nodes=(2,), links=(SlowLink(first=0, second=1),), factor=factor)
    search = SlowSearch(mode=SearchMode.pairs, rounds=3, found=found)
    slow_node, slow_link = judged(measured(nodes=4, search=search)).findings
    assert (slow_node.severity, slow_node.value) == (severity, "n2")
    assert "resources.exclude=n2" in slow_node.hint
    assert slow_link.value == "n0-n1"
    assert f"{factor} times" in slow_link.message


def test_slower_than_the_median_of_earlier_ones_is_told() -> None:
    """Of the same shape, if there are three of them."""
    now = measured(times(CommOperation.all_reduce, 150 * GIGA))
    earlier = [
        summarize_for_later_comparison(measured(times(CommOperation.all_reduce, rate * GIGA)), "lab")
        for rate in (212, 214, 20, 220, 216)
    ]
    (found,) = judged(now, tuple(earlier)).findings
    assert "all_reduce is 30 % slower than the median of 5 earlier measurements" in found.message
    assert judged(now, tuple(earlier[:2])).findings == ()
    elsewhere = tuple(replace(one, shape=describe_measured_hardware(now, "other")) for one in earlier)
    assert judged(now, elsewhere).findings == ()
