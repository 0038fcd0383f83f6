"""Promises about preflight: what is critical, what is not, and whom a run avoids because of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from planning.preflight.healthy_nodes import FACTS, FINE, GIB, GPUS, H100, LINK, SETTINGS, SPEED

from hpckit.model.environment.facts import DriverFacts, GpuFacts, TorchFacts
from hpckit.model.environment.health import HealthReport, HealthVerdict, NodeHealth, NodeInspection, XidSeen
from hpckit.model.launch import DeviceKind, LaunchConfig, Resources
from hpckit.model.settings import Preflight, PreflightLevel
from hpckit.model.telemetry.vocabulary import GpuTrouble
from hpckit.planning.preflight.findings import DOUBTFUL_XIDS, FATAL_XIDS
from hpckit.planning.preflight.judge import (
    build_unhealthy_nodes_failure,
    choose_preflight_level,
    judge_node_health,
    list_node_requirements,
    list_unhealthy_nodes,
)


def with_gpu(**about: Any) -> NodeHealth:
    """Return a node whose second GPU is like this."""
    return replace(FINE, gpus=(H100, replace(GPUS[1], **about)))


def judged(
    odd: NodeHealth | None,
    *,
    others: int = 3,
    settings: LaunchConfig = SETTINGS,
    health: NodeHealth = FINE,
    ahead_s: float = 0.0,
) -> tuple[NodeInspection, ...]:
    """Return the verdicts on n0, which is odd, and on some others."""
    reports = [HealthReport(node="n0", health=odd, ahead_least_s=ahead_s, ahead_most_s=ahead_s)]
    reports += [HealthReport(node=f"n{place + 1}", health=health) for place in range(others)]
    return judge_node_health(reports, PreflightLevel.fast, list_node_requirements(settings), settings)


def criticals(inspections: tuple[NodeInspection, ...]) -> dict[str, list[str]]:
    """Return the critical checks of each node that has some."""
    return {
        inspection.node: [each.check for each in inspection.findings if each.verdict is HealthVerdict.crit]
        for inspection in inspections
        if inspection.verdict is HealthVerdict.crit
    }


def test_healthy_nodes_have_no_finding() -> None:
    """Nothing is said of nodes that are as they should be."""
    assert {(one.verdict, one.findings) for one in judged(FINE)} == {(HealthVerdict.ok, ())}


@pytest.mark.parametrize(
    ("limits", "cap", "warned"),
    [
        ((700.0, 700.0, 700.0), None, ()),
        ((700.0, 700.0, 500.0), None, ("n2",)),
        ((700.0, None, 500.0), None, ("n2",)),
        ((700.0, 690.0, 700.0), None, ()),
        ((500.0, 500.0, 700.0), 500.0, ("n2",)),
        ((700.0, 700.0, 700.0), 500.0, ("n0", "n1", "n2")),
        ((400.0, 400.0, 400.0), 500.0, ()),
    ],
)
def test_gpus_that_may_take_another_power_than_they_should_are_warned_of(
    limits: tuple[float | None, ...], cap: float | None, warned: tuple[str, ...]
) -> None:
    """Less than others of their kind, or more than the site's cap; no run avoids a node for it."""
    nodes = [replace(FINE, gpus=tuple(replace(gpu, power_limit_w=limit) for gpu in GPUS)) for limit in limits]
    settings = replace(SETTINGS, cluster=replace(SETTINGS.cluster, power_cap_w=cap))
    reports = [HealthReport(node=f"n{at}", health=one) for at, one in enumerate(nodes)]
    found = judge_node_health(reports, PreflightLevel.fast, list_node_requirements(settings), settings)
    named = {one.node for one in found if any(each.check == "power" for each in one.findings)}
    assert named == set(warned)
    assert all(one.verdict in (HealthVerdict.ok, HealthVerdict.warn) for one in found)


CRITICAL: Mapping[str, tuple[NodeHealth, NodeHealth]] = {
    "ecc": (with_gpu(ecc_uncorrected=1), with_gpu(ecc_uncorrected=0)),
    "nvlink": (with_gpu(nvlinks=17), with_gpu(nvlinks=None)),
    "pcie": (with_gpu(pcie_width=8), with_gpu(pcie_width=None)),
    "gpu lost": (with_gpu(troubles=(GpuTrouble.lost,)), FINE),
    "remap": (with_gpu(troubles=(GpuTrouble.remap_pending,)), FINE),
    "advice": (with_gpu(troubles=(GpuTrouble.advised_reboot,)), FINE),
    "gpu processes": (
        with_gpu(processes=(7,), memory_used_bytes=5 * GIB),
        with_gpu(processes=(7,), memory_used_bytes=GIB),
    ),
    "gpu memory": (with_gpu(memory_used_bytes=5 * GIB), with_gpu(memory_used_bytes=GIB)),
    "xid": (
        replace(FINE, xids=(XidSeen(uuid="GPU-0", code=79),)),
        replace(FINE, xids=(XidSeen(uuid="GPU-0", code=94),)),
    ),
    "GPUs": (
        replace(FINE, environment=replace(FACTS, driver=replace(FACTS.driver, gpus=FACTS.driver.gpus[:1])))
        if FACTS.driver.gpus
        else FINE,
        FINE,
    ),
    "shared memory": (
        replace(
            FINE,
            environment=replace(FACTS, file_systems=(replace(FACTS.file_systems[0], free_bytes=GIB // 32),)),
        ),
        FINE,
    ),
    "memory": (
        replace(FINE, environment=replace(FACTS, memory_bytes=99 * GIB)),
        replace(FINE, available_bytes=50 * GIB),
    ),
    "run folder": (replace(FINE, write_problem="Read-only file system"), replace(FINE, write_s=9.0)),
    "names": (replace(FINE, unresolved=("n1",)), FINE),
    "driver": (
        replace(FINE, environment=replace(FACTS, driver=replace(FACTS.driver, version="535.1", cuda="12.2"))),
        replace(FINE, far_gpus=(0,)),
    ),
    "torch NCCL": (
        replace(FINE, environment=replace(FACTS, torch=replace(FACTS.torch, nccl="2.20"))),
        replace(FINE, environment=replace(FACTS, driver=replace(FACTS.driver, version="580.9"))),
    ),
}
"""For each check a node that is critical, and one that is just not."""


@pytest.mark.parametrize("check", CRITICAL)
def test_each_check_has_a_node_that_fails_it_and_one_that_does_not(check: str) -> None:
    """The bad node alone is critical, by this check; what is just below is not."""
    bad, passable = CRITICAL[check]
    assert criticals(judged(bad)) == {"n0": [check]}
    assert criticals(judged(passable)) == {}


def test_clock_is_compared_with_most_nodes() -> None:
    """Of three or more the odd one is known; of two none is blamed, and both are told of."""
    assert criticals(judged(FINE, ahead_s=31.0)) == {"n0": ["clock"]}
    assert criticals(judged(FINE, ahead_s=-31.0)) == {"n0": ["clock"]}
    assert criticals(judged(FINE, ahead_s=29.0)) == {}
    two = judged(FINE, ahead_s=100.0, others=1)
    assert {one.verdict for one in two} == {HealthVerdict.warn}


@given(
    ways=st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60)), min_size=2, max_size=6),
    supervisor_s=st.floats(-600, 600),
)
@example(ways=[(9, 0), (9, 0), (0, 0)], supervisor_s=0)
def test_answers_that_are_long_under_way_blame_no_clock(
    ways: list[tuple[float, float]], supervisor_s: float
) -> None:
    """Clocks that agree are never said to differ, however slow a busy machine's answers are."""
    reports = [
        HealthReport(
            node=f"n{place}",
            health=FINE,
            ahead_least_s=supervisor_s - back,
            ahead_most_s=supervisor_s + there,
        )
        for place, (there, back) in enumerate(ways)
    ]
    found = judge_node_health(reports, PreflightLevel.fast, list_node_requirements(SETTINGS), SETTINGS)
    assert {one.verdict for one in found} == {HealthVerdict.ok}


def test_wrong_clock_of_the_supervisor_blames_no_other_node() -> None:
    """All nodes but its own seem to be ahead of it."""
    reports = [HealthReport(node="n0", health=FINE)] + [
        HealthReport(node=f"n{place}", health=FINE, ahead_least_s=300, ahead_most_s=300)
        for place in range(1, 4)
    ]
    found = judge_node_health(reports, PreflightLevel.fast, list_node_requirements(SETTINGS), SETTINGS)
    assert criticals(found) == {"n0": ["clock"]}


def test_what_all_nodes_lack_is_no_nodes_fault() -> None:
    """Software that fails everywhere is a warning: another allocation would have the same."""
    broken = replace(
        FINE, environment=replace(FACTS, torch=TorchFacts(installed=True, problem="no libcudart"))
    )
    everywhere = judged(broken, health=broken)
    assert {one.verdict for one in everywhere} == {HealthVerdict.warn}
    assert criticals(judged(broken)) == {"n0": ["torch"]}
    alone = judged(broken, others=0)
    assert [one.verdict for one in alone] == [HealthVerdict.warn]


def test_bad_node_takes_no_pardon_from_the_others() -> None:
    """A node without GPUs cannot show that torch has no CUDA, as on all the others."""
    plain = replace(FINE, environment=replace(FACTS, torch=replace(FACTS.torch, cuda="")))
    for gpus, of_n0 in (((), {"n0": ["GPUs"]}), (None, {})):
        driver = replace(FACTS.driver, gpus=gpus)
        blind = replace(plain, gpus=(), environment=replace(plain.environment, driver=driver))
        assert criticals(judged(blind, health=plain)) == of_n0
        assert criticals(judged(blind, health=plain, others=2)) == of_n0
    broken = replace(FINE, environment=replace(FACTS, torch=TorchFacts(installed=False)))
    assert criticals(judged(broken)) == {"n0": ["torch"]}, "another node shows that it can be had"


def test_torch_without_cuda_is_fine_for_a_run_on_cpus() -> None:
    """`runtime.device=cpu` leaves GPUs alone."""
    plain = replace(FINE, environment=replace(FACTS, torch=replace(FACTS.torch, cuda="")))
    on_cpus = replace(SETTINGS, runtime=replace(SETTINGS.runtime, device=DeviceKind.cpu))
    assert {one.verdict for one in judged(plain, health=plain)} == {HealthVerdict.warn}
    assert {one.verdict for one in judged(plain, health=plain, settings=on_cpus)} == {HealthVerdict.ok}


def test_bad_hardware_of_a_single_node_is_its_own() -> None:
    """A run on one node leaves it for another one, although nothing can be compared."""
    assert criticals(judged(with_gpu(ecc_uncorrected=2), others=0)) == {"n0": ["ecc"]}


def test_cluster_that_shows_no_gpu_at_all_blames_no_node() -> None:
    """The partition has none, or the driver is none of NVIDIA's: another node would be the same."""
    none = replace(FINE, gpus=(), environment=replace(FACTS, driver=DriverFacts(version="", gpus=())))
    for others in (0, 3):
        found = judged(none, health=none, others=others)
        assert {one.verdict for one in found} == {HealthVerdict.warn}
    assert "GPUs" in criticals(judged(none))["n0"]


def test_shared_gpus_and_mig_may_be_used_by_others() -> None:
    """Runs that share a GPU see each other's processes and memory."""
    busy = with_gpu(processes=(7,), memory_used_bytes=50 * GIB)
    sharing = replace(SETTINGS, sweep=replace(SETTINGS.sweep, runs_per_gpu=2))
    assert criticals(judged(busy, settings=sharing)) == {}
    assert criticals(judged(with_gpu(processes=(7,), memory_used_bytes=50 * GIB, mig=True))) == {}


def speedy(**about: Any) -> NodeHealth:
    """Return a node with a device that computes like this."""
    return replace(FINE, speeds=(replace(SPEED, **about),))


@pytest.mark.parametrize(
    ("about", "verdict", "check"),
    [
        ({"matmul_flops": 5.5e14}, HealthVerdict.ok, None),
        ({"matmul_flops": 4.5e14}, HealthVerdict.warn, "compute"),
        ({"matmul_flops": 3.0e14}, HealthVerdict.crit, "compute"),
        ({"copy_bytes_s": 1e12}, HealthVerdict.crit, "memory bandwidth"),
        ({"all_reduce_bytes_s": 3e11}, HealthVerdict.warn, "all-reduce"),
        ({"all_reduce_bytes_s": 2e10}, HealthVerdict.crit, "all-reduce"),
        ({"all_reduce_bytes_s": None}, HealthVerdict.ok, None),
        ({"checksum": "b"}, HealthVerdict.crit, "checksum"),
        ({"repeats": False}, HealthVerdict.crit, "checksum"),
        ({"matmul_flops": None, "problem": "out of memory"}, HealthVerdict.warn, "compute"),
        ({"pcie": replace(LINK, pcie_generation=3)}, HealthVerdict.crit, "pcie"),
        ({"pcie": replace(LINK, pcie_width=8)}, HealthVerdict.crit, "pcie"),
        ({"pcie": replace(LINK, pcie_generation=4, pcie_generation_max=4)}, HealthVerdict.ok, None),
        ({"pcie": GpuFacts(name="")}, HealthVerdict.ok, None),
        ({"pcie": None}, HealthVerdict.ok, None),
    ],
)
def test_devices_are_compared_with_their_peers(
    about: dict[str, Any], verdict: HealthVerdict, check: str | None
) -> None:
    """Slow ones and those with other results stand out; small differences do not."""
    found = judged(speedy(**about), health=speedy())
    assert found[0].verdict is verdict
    assert {finding.check for finding in found[0].findings} == ({check} if check else set())
    assert {one.verdict for one in found[1:]} == {HealthVerdict.ok}


def test_link_that_is_slow_on_all_nodes_blames_none() -> None:
    """A site may have set its slots to less: worth a word, and no reason to leave its nodes."""
    slow = speedy(pcie=replace(LINK, pcie_generation=4))
    found = judged(slow, health=slow)
    assert {one.verdict for one in found} == {HealthVerdict.warn}
    (first, *_) = found[0].findings
    assert "runs PCIe at generation 4 of 5 under load" in first.message


def test_two_devices_that_differ_blame_nobody() -> None:
    """Which of two is wrong is not known; one that contradicts itself is."""
    assert criticals(judged(speedy(checksum="b"), health=speedy(), others=1)) == {}
    found = judged(speedy(checksum="b", repeats=False), health=speedy(), others=1)
    assert criticals(found) == {"n0": ["checksum"]}


def test_node_without_an_answer_is_unknown_and_has_no_consequence() -> None:
    """Silence is no evidence."""
    reports = [HealthReport(node="n0", problem="no answer within 15 s")]
    (found,) = judge_node_health(reports, PreflightLevel.fast, list_node_requirements(SETTINGS), SETTINGS)
    assert (found.verdict, found.findings[0].check) == (HealthVerdict.unknown, "answer")
    assert list_unhealthy_nodes([found]) == {}


def test_xids_are_fatal_doubtful_or_of_the_program() -> None:
    """No XID is two of these; those of a program alone say nothing of the hardware."""
    assert not FATAL_XIDS & DOUBTFUL_XIDS
    assert not {13, 31, 43, 45, 109} & (FATAL_XIDS | DOUBTFUL_XIDS)


@given(bad=st.integers(0, 20), fine=st.integers(0, 20))
def test_most_of_many_nodes_are_never_blamed(bad: int, fine: int) -> None:
    """The majority of eight or more share their cause; otherwise each is named."""
    inspections = [
        NodeInspection(
            node=f"n{place}",
            level=PreflightLevel.fast,
            verdict=HealthVerdict.crit if place < bad else HealthVerdict.ok,
        )
        for place in range(bad + fine)
    ]
    shared = bad + fine >= 8 and bad > fine
    assert len(list_unhealthy_nodes(inspections)) == (0 if shared else bad)


def test_failure_names_all_nodes_and_says_why_of_some() -> None:
    """A list of a hundred reasons is none."""
    failure = build_unhealthy_nodes_failure({f"n{place}": f"GPU of n{place} is lost" for place in range(5)})
    assert failure.node == "n0, n1, n2, n3, n4"
    assert failure.message.endswith("; and 2 more nodes")


@pytest.mark.parametrize(
    ("level", "resources", "found"),
    [
        ("auto", Resources(), "off"),
        ("auto", Resources(gpus_per_node=1), "fast"),
        ("auto", Resources(gres="fs:1,gpu:a100:4"), "fast"),
        ("auto", Resources(gres="gpumem:4"), "off"),
        ("off", Resources(gpus_per_node=8), "off"),
        ("medium", Resources(), "medium"),
    ],
)
def test_level_follows_from_gpus_unless_it_is_given(level: str, resources: Resources, found: str) -> None:
    """Runs without GPUs are not held up."""
    settings = LaunchConfig(resources=resources, preflight=Preflight(level=PreflightLevel(level)))
    assert choose_preflight_level(settings) == found
