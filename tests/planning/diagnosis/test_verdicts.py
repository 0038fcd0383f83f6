"""Promises of planning.diagnosis: what is said of a run, and from which number on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.model.diagnosis.verdict import Straggler, Verdict, VerdictKind, VerdictSeverity
from hpckit.model.launch import Checkpoint, Cluster, ClusterKind, LaunchConfig, Resources
from hpckit.model.parallel.layout import Layout
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.planning.diagnosis.diagnose import RULES, diagnose_run
from hpckit.planning.diagnosis.evidence import GpuUse, HostUse, RunAllocation, RunEvidence, TimeShares
from hpckit.planning.diagnosis.thresholds import DEFAULT, Thresholds

HOUR_S = 3600.0
GB = 10**9


def rank(number: int = 0, **some: Any) -> RankSteps:
    """Return 100 steps of 2 s, of which a rank waited for nothing."""
    usual: dict[str, Any] = {"node": f"n{number // 4}", "gpu": f"GPU-{number}", "steps": 100}
    times = {"seconds": 200.0, "data_s": 0.0, "checkpoint_s": 0.0, "waiting_s": 0.0}
    return RankSteps(rank=number, **{**usual, **times, **some})


def gpu(number: int = 0, **some: Any) -> GpuUse:
    """Return a GPU that was half busy for ten minutes."""
    usual = {"node": f"n{number // 4}", "seconds": 600.0, "samples": 120, "utilization": 0.7}
    return GpuUse(uuid=f"GPU-{number}", **{**usual, **some})


def host(**some: Any) -> HostUse:
    """Return a node, sampled for ten minutes."""
    return HostUse(**{"node": "n0", "seconds": 600.0, "samples": 120, **some})


def times(**some: Any) -> TimeShares:
    """Return an hour on the nodes."""
    return TimeShares(**{"running_s": HOUR_S, "productive_s": HOUR_S, **some})


def chosen(*, spare_nodes: int = 0, local: bool = False, **interval: Any) -> LaunchConfig:
    """Return what a user set."""
    return LaunchConfig(
        cluster=Cluster(kind=ClusterKind.local if local else ClusterKind.slurm),
        resources=Resources(spare_nodes=spare_nodes),
        checkpoint=Checkpoint(**interval),
    )


def slow_rank(**some: Any) -> Straggler:
    """Return rank 5, whose own work takes 0.26 s where its peers take 0.2 s."""
    usual: dict[str, Any] = {"rank": 5, "node": "n1", "gpu": "GPU-5", "slower_by": 0.3}
    seconds = {"own_s": 0.26, "peers_s": 0.2, "step_s": 0.3, "windows": 18, "judged": 20}
    return Straggler(**{**usual, **seconds, **some})


def waiting(share: float) -> RunEvidence:
    """Return two ranks that wait for data."""
    return RunEvidence(ranks=tuple(rank(one, data_s=200 * share) for one in range(2)))


def communicating(share: float) -> RunEvidence:
    """Return two ranks of which one waits longer than the other."""
    waits = (200 * share, 200 * share + 30)
    return RunEvidence(ranks=tuple(rank(one, waiting_s=wait) for one, wait in enumerate(waits)))


def active(share: float) -> RunEvidence:
    """Return two GPUs by their SM activity."""
    return RunEvidence(gpus=(gpu(0, sm_activity=share), gpu(1, sm_activity=share)))


def powerful(share: float) -> RunEvidence:
    """Return a busy GPU without SM activity, by its power."""
    return RunEvidence(gpus=(gpu(utilization=0.99, power_w=700 * share, power_limit_w=700.0),))


def moving(share: float) -> RunEvidence:
    """Return a GPU by its memory's activity."""
    return RunEvidence(gpus=(gpu(sm_activity=0.9, tensor_activity=0.2, dram_activity=share),))


def starved(share: float) -> RunEvidence:
    """Return a GPU with this SM activity, whose rank waits for nothing."""
    return RunEvidence(ranks=(rank(),), gpus=(gpu(utilization=0.95, sm_activity=share),))


def gaps(share: float) -> RunEvidence:
    """Return a GPU with this utilization and no SM activity, whose rank waits for nothing."""
    return RunEvidence(ranks=(rank(),), gpus=(gpu(utilization=share),))


def one_idle(share: float) -> RunEvidence:
    """Return two GPUs, one of them with this utilization."""
    return RunEvidence(gpus=(gpu(0), gpu(1, utilization=share)))


def hot(share: float) -> RunEvidence:
    """Return two GPUs, one of them too hot for this share of the time."""
    return RunEvidence(gpus=(gpu(0, heat_share=0.0), gpu(1, heat_share=share, clock_share=0.6)))


def capped(share: float) -> RunEvidence:
    """Return a GPU at its power limit for this share of the time."""
    return RunEvidence(gpus=(gpu(power_share=share),))


def saving(share: float) -> RunEvidence:
    """Return an hour with four saves."""
    return RunEvidence(times=times(checkpoint_s=HOUR_S * share, saves=4))


def restarting(share: float) -> RunEvidence:
    """Return an hour with a failure, its cost half restart and half repeated steps."""
    lost = HOUR_S * share / 2
    return RunEvidence(times=times(restart_s=lost, redone_s=lost, failures={"node_lost": 1}))


def cpus(share: float) -> RunEvidence:
    """Return a node with 64 CPUs."""
    used = host(cores=64, cores_busy=64 * share)
    return RunEvidence(hosts=(used,), allocation=RunAllocation(cpus_per_node=64))


def memory(share: float) -> RunEvidence:
    """Return a node with 500 GB of memory."""
    used = host(memory_peak_bytes=int(500 * GB * share))
    return RunEvidence(hosts=(used,), allocation=RunAllocation(memory_bytes_per_node=500 * GB))


def limit(share: float) -> RunEvidence:
    """Return a completed run that took an hour."""
    asked = RunAllocation(time_limit_s=HOUR_S / share, longest_attempt_s=HOUR_S)
    return RunEvidence(times=times(), allocation=asked)


KIND = VerdictKind
AT_LEAST: tuple[tuple[VerdictKind, Callable[[float], RunEvidence], str], ...] = (
    (KIND.input_bound, waiting, "data_share"),
    (KIND.communication_bound, communicating, "waiting_share"),
    (KIND.compute_bound, active, "high_sm_activity"),
    (KIND.compute_bound, powerful, "high_power_share"),
    (KIND.memory_bound, moving, "dram_activity"),
    (KIND.throttled, hot, "heat_share"),
    (KIND.throttled, capped, "power_share"),
    (KIND.checkpoint_overhead, saving, "checkpoint_share"),
    (KIND.restarts, restarting, "restart_share"),
)
AT_MOST: tuple[tuple[VerdictKind, Callable[[float], RunEvidence], str], ...] = (
    (KIND.launch_bound, starved, "low_sm_activity"),
    (KIND.launch_bound, gaps, "low_utilization"),
    (KIND.gpu_idle, one_idle, "idle_utilization"),
    (KIND.overallocated, cpus, "cpu_share"),
    (KIND.overallocated, memory, "memory_share"),
    (KIND.overallocated, limit, "time_share"),
)


def _named(scenarios: Iterable[tuple[Any, Any, str]]) -> list[str]:
    return [name for _, _, name in scenarios]


def kinds(evidence: RunEvidence) -> list[VerdictKind]:
    """Return the kinds of what is said."""
    return [one.kind for one in diagnose_run(evidence)]


def only(evidence: RunEvidence) -> Verdict:
    """Return the one thing that is said."""
    (verdict,) = diagnose_run(evidence)
    return verdict


@pytest.mark.parametrize(("kind", "scenario", "name"), AT_LEAST, ids=_named(AT_LEAST))
def test_kind_is_found_from_its_threshold_on(
    kind: VerdictKind, scenario: Callable[[float], RunEvidence], name: str
) -> None:
    """A share just above the threshold is a verdict of this kind, one just below it is none."""
    threshold = getattr(DEFAULT, name)
    assert kind in kinds(scenario(threshold + 0.01))
    assert kind not in kinds(scenario(threshold - 0.01))


@pytest.mark.parametrize(("kind", "scenario", "name"), AT_MOST, ids=_named(AT_MOST))
def test_kind_is_found_below_its_threshold(
    kind: VerdictKind, scenario: Callable[[float], RunEvidence], name: str
) -> None:
    """A share just below the threshold is a verdict of this kind, one just above it is none."""
    threshold = getattr(DEFAULT, name)
    assert kind in kinds(scenario(threshold - 0.01))
    assert kind not in kinds(scenario(threshold + 0.01))


def test_kinds_have_each_a_rule_and_a_scenario() -> None:
    """No kind of verdict is without a rule, and none without a test of its threshold."""
    assert [rule.kind for rule in RULES] == list(VerdictKind)
    tried = {kind for kind, _, _ in (*AT_LEAST, *AT_MOST)} | {VerdictKind.straggler}
    assert tried == set(VerdictKind)
    names = {field.name for field in fields(Thresholds)}
    assert {name for rule in RULES for name in rule.thresholds} == names - {"medium_loss", "high_loss"}


SCENARIOS: tuple[RunEvidence, ...] = (
    *(scenario(getattr(DEFAULT, name) + 0.02) for _, scenario, name in AT_LEAST),
    *(scenario(getattr(DEFAULT, name) - 0.02) for _, scenario, name in AT_MOST),
    RunEvidence(stragglers=(slow_rank(),)),
)


@pytest.mark.parametrize("evidence", SCENARIOS)
def test_verdict_has_a_number_a_consequence_and_a_remedy(evidence: RunEvidence) -> None:
    """Each message is a sentence with a number, each remedy says what to do."""
    for verdict in diagnose_run(evidence):
        assert any(letter.isdigit() for letter in verdict.message)
        assert verdict.message.endswith(".")
        assert len(verdict.remedy) > 20
        assert verdict.evidence
        assert 0 <= verdict.loss <= 1


REDONE = times(redone_s=HOUR_S * 0.2, failures={"exception": 1})
QUICK = times(restart_s=HOUR_S * 0.2, failures={"exception": 1})
FEW = times(checkpoint_s=HOUR_S * 0.2, saves=4, save_s=20.0, interval_s=100.0, mtbf_s=16_000.0)


@pytest.mark.parametrize(
    ("found", "settings", "has", "lacks"),
    [
        (FEW, {"interval_steps": 10}, "(checkpoint.interval_steps=80)", "interval_min"),
        (FEW, {"interval_min": 1.5}, "(checkpoint.interval_min=13)", "interval_steps"),
        (FEW, {}, "leave the interval to hpckit", "=null"),
        (saving(0.2).times, {"interval_steps": 10}, "a larger checkpoint.interval_steps", "_min"),
        (saving(0.2).times, {}, "set that higher", "interval_min"),
        (REDONE, {"interval_steps": 10}, "interval_steps than 10", "_min"),
        (restarting(0.2).times, {}, "report shows when and where; it came from outside", "hpckit logs"),
        (QUICK, {}, "spare_nodes=1", "interval"),
        (QUICK, {"spare_nodes": 1}, "containers", "spare"),
        (times(restart_s=HOUR_S * 0.2, planned=3), {}, "Shorten the start", "spare"),
        (QUICK, {"local": True}, "local disk", "spare"),
        (QUICK, {"local": True}, "was exception: hpckit logs shows why.", "containers"),
    ],
)
def test_remedy_speaks_of_what_the_user_set(
    found: TimeShares, settings: dict[str, Any], has: str, lacks: str
) -> None:
    """It names the key that was set, with a value, and nothing that this machine does not have."""
    remedy = only(RunEvidence(times=found, settings=chosen(**settings))).remedy
    assert has in remedy
    assert lacks not in remedy


def test_input_verdict_names_seconds_and_idle_cpus() -> None:
    """Waiting for data is told in seconds, with how busy the GPUs and the CPUs were."""
    verdict = only(
        RunEvidence(
            ranks=(rank(data_s=82.0), rank(1, data_s=82.0)),
            gpus=(gpu(utilization=0.52), gpu(1, utilization=0.52)),
            hosts=(host(cores=64, cores_busy=16.0),),
        )
    )
    assert verdict.message == (
        "Ranks waited 41 % of each step for data (0.82 s of 2 s); the GPUs were busy 52 %."
    )
    assert "num_workers" in verdict.remedy
    assert "16 of 64 CPUs" in verdict.remedy
    assert verdict.severity is VerdictSeverity.high


def test_input_verdict_says_more_cpus_where_all_are_busy() -> None:
    """If the CPUs are busy more workers do not help: the remedy says so."""
    busy = waiting(0.3)
    verdict = only(replace(busy, hosts=(host(cores=8, cores_busy=7.6),)))
    assert "resources.cpus_per_task" in verdict.remedy
    slow = only(replace(busy, hosts=(host(cores=8, cores_busy=1.0, io_pressure=0.5),)))
    assert "Stage the data" in slow.remedy


def test_communication_verdict_does_not_count_waiting_for_a_straggler() -> None:
    """If one rank never waits, the others wait for it and not for the network."""
    waits = (0.0, 120.0, 120.0, 120.0)
    ranks = tuple(rank(one, waiting_s=wait) for one, wait in enumerate(waits))
    assert kinds(RunEvidence(ranks=ranks)) == []


def test_communication_remedy_speaks_of_the_network_between_nodes() -> None:
    """On one node it is NVLink that may be missing, on several the fast network."""
    here, there = communicating(0.4), communicating(0.4)
    there = replace(there, ranks=(there.ranks[0], replace(there.ranks[1], node="n9")))
    assert "nvidia-smi topo" in only(here).remedy
    assert "NCCL_DEBUG" in only(there).remedy


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        (Layout(replicate=4), ["parallel.microbatches", "no_sync"]),
        (Layout(shard=4), ["parallel.shard"]),
        (Layout(tensor=4), ["parallel.tensor"]),
        (Layout(context=4), ["parallel.context"]),
        (Layout(pipeline=4), ["parallel.microbatches", "during 3 parts"]),
        (Layout(shard=2, tensor=2), ["parallel.tensor", "parallel.shard"]),
    ],
    ids=str,
)
def test_communication_remedy_fits_the_layout(layout: Layout, named: list[str]) -> None:
    """Only axes that the run has are named."""
    evidence = replace(communicating(0.4), layout=layout)
    remedy = only(evidence).remedy
    assert all(word in remedy for word in named)
    others = {"parallel.shard", "parallel.tensor", "parallel.context", "no_sync"}
    assert not [word for word in others.difference(named) if word in remedy]


def test_communication_remedy_for_ranks_on_cpus_speaks_of_no_gpus() -> None:
    """They have no NVLink; they share cores."""
    evidence = communicating(0.4)
    ranks = tuple(replace(one, gpu=None) for one in evidence.ranks)
    remedy = only(replace(evidence, ranks=ranks)).remedy
    assert "nvidia-smi" not in remedy
    assert "NCCL" not in remedy
    assert "resources.tasks_per_node" in remedy


def test_idle_gpu_is_not_told_twice() -> None:
    """A GPU that is idle because its rank waits for data is the input's verdict alone."""
    ranks = (rank(0, data_s=190.0),)
    assert kinds(RunEvidence(ranks=ranks, gpus=(gpu(utilization=0.04),))) == [KIND.input_bound]


def test_idle_gpus_without_rank_are_counted() -> None:
    """A GPU that no rank uses is told with its node, and what to ask for."""
    gpus = (gpu(0), gpu(1, utilization=0.0), gpu(2, utilization=0.02))
    verdict = only(RunEvidence(ranks=(rank(0, data_s=None, waiting_s=None),), gpus=gpus))
    assert verdict.message.startswith("2 of 3 GPUs were busy 1.0 % of the time")
    assert "GPU-1 on n0" in verdict.message
    assert "resources.gpus_per_node" in verdict.remedy


def test_gpu_without_utilization_is_judged_by_sm_activity() -> None:
    """A MIG instance has no utilization; its SM activity tells whether it is idle."""
    assert kinds(RunEvidence(gpus=(gpu(utilization=None, sm_activity=0.01),))) == [KIND.gpu_idle]


@pytest.mark.parametrize(
    ("some", "word", "remedy"),
    [
        ({"heat_share": 0.4}, "for heat 40 %", "exclude=n1"),
        ({"ecc_errors": 2}, "2 uncorrected memory errors", "exclude=n1"),
        ({"remapped_rows": 1}, "1 remapped row", "exclude=n1"),
        ({}, "", "if it is slow again on n1"),
    ],
)
def test_straggler_has_its_hardwares_side(some: dict[str, Any], word: str, remedy: str) -> None:
    """What its GPU says is in the message, and decides the remedy."""
    evidence = RunEvidence(gpus=(gpu(5, **some),), stragglers=(slow_rank(),))
    (verdict,) = (one for one in diagnose_run(evidence) if one.kind is KIND.straggler)
    assert verdict.message.startswith(
        "Rank 5 (with GPU-5 on n1) took 30 % longer for its own work than its peers "
        "(0.26 s a step, they 0.2 s) in 18 of 20 windows"
    )
    assert word in verdict.message
    assert remedy in verdict.remedy
    assert verdict.evidence["slower_by"] == 0.3


def test_straggler_on_a_busy_node_needs_cpus() -> None:
    """Where the CPUs of its node are all busy, the remedy is more of them."""
    busy = host(node="n1", cores=16, cores_busy=15.8)
    assert "resources.cpus_per_task" in only(RunEvidence(hosts=(busy,), stragglers=(slow_rank(),))).remedy


def test_busy_node_is_no_reason_if_another_rank_on_it_is_not_slow() -> None:
    """Both share its CPUs: then it is what the rank does, and a profile of both shows it."""
    busy = host(node="n1", cores=16, cores_busy=15.8)
    peers = (rank(4, node="n1"), rank(5, node="n1"))
    evidence = RunEvidence(ranks=peers, hosts=(busy,), stragglers=(slow_rank(),), run="digits.3")
    verdict = only(evidence)
    assert "CPU" not in verdict.message
    assert verdict.remedy.startswith("Rank 4 on the same node is not slow")
    assert "hpckit profile digits.3 --ranks 4,5 while it trains" in verdict.remedy
    assert "observe.profile.ranks=[4,5] observe.profile.at_step=100" in verdict.remedy
    both = (slow_rank(), slow_rank(rank=4, gpu="GPU-4"))
    for one in diagnose_run(RunEvidence(ranks=peers, hosts=(busy,), stragglers=both)):
        assert "16 of 16 CPUs were busy" in one.message


@pytest.mark.parametrize(("pressure", "cpus"), [(None, False), (0.19, False), (0.21, True)])
def test_idle_gpus_beside_busy_cpus_need_cpus(pressure: float | None, *, cpus: bool) -> None:
    """A larger batch does not help a program that waits for a CPU to run on."""
    verdict = only(replace(gaps(0.3), hosts=(host(cpu_pressure=pressure),)))
    assert verdict.kind is KIND.launch_bound
    assert ("resources.cpus_per_task" in verdict.remedy) == cpus
    assert ("waited 21 % of the time for a CPU" in verdict.message) == cpus


def test_gpu_without_a_rank_does_not_raise_what_waiting_costs() -> None:
    """The GPU of the rank is busy while it waits for data: nothing is lost, whatever idles."""
    evidence = RunEvidence(
        ranks=(rank(0, data_s=100.0),), gpus=(gpu(0, utilization=0.95), gpu(1, utilization=0.0))
    )
    kinds = [one.kind for one in diagnose_run(evidence)]
    assert KIND.input_bound not in kinds
    assert KIND.gpu_idle in kinds


def test_throttling_of_slow_clocks_is_lost_time() -> None:
    """With known clocks the loss is the time at lower clocks, times how much lower."""
    assert only(hot(0.5)).loss == pytest.approx(0.2)


def test_save_interval_follows_youngs_formula() -> None:
    """A run that saves more often than is best for its failures is told the best interval."""
    often = times(checkpoint_s=600.0, saves=60, save_s=10.0, interval_s=50.0, mtbf_s=72_000.0)
    verdict = only(RunEvidence(times=often))
    assert verdict.remedy.startswith("Save every 20 min")
    assert verdict.evidence["better_interval_s"] == pytest.approx(1200)


def test_restart_remedy_follows_the_larger_part() -> None:
    """Repeated steps ask for more saves, long restarts for a faster start."""
    repeated = times(redone_s=600.0, restart_s=60.0, failures={"cuda_oom": 2})
    slow = replace(repeated, redone_s=0.0, restart_s=600.0)
    assert "Save more often" in only(RunEvidence(times=repeated)).remedy
    assert "Shorten the start" in only(RunEvidence(times=slow)).remedy
    assert "2 cuda_oom" in only(RunEvidence(times=slow)).message


def test_time_before_a_failure_was_noticed_is_told_from_the_restart() -> None:
    """A run that hung for half an hour starts no faster for it, and saves do not help."""
    hung = times(restart_s=1810.0, unnoticed_s=1800.0, failures={"communication": 1})
    verdict = only(RunEvidence(times=hung))
    assert "It took 30 min of this to notice the failures" in verdict.message
    assert "runtime.hang_min_s" in verdict.remedy
    assert "Save more often" not in verdict.remedy
    assert "Shorten the start" not in verdict.remedy
    noticed = only(RunEvidence(times=replace(hung, unnoticed_s=800.0)))
    assert "noticed" not in noticed.message
    assert "Shorten the start" in noticed.remedy


@pytest.mark.parametrize(
    "evidence",
    [
        RunEvidence(),
        RunEvidence(ranks=(rank(steps=19, data_s=150.0),)),
        RunEvidence(ranks=(rank(seconds=9.0, data_s=8.0),)),
        RunEvidence(gpus=(gpu(samples=9, utilization=0.0),)),
        RunEvidence(gpus=(gpu(samples=9, heat_share=1.0),)),
        RunEvidence(times=times(running_s=29.0, checkpoint_s=20.0, saves=9)),
        RunEvidence(times=times(running_s=29.0, restart_s=20.0, failures={"signal": 1})),
        RunEvidence(times=times(checkpoint_s=2000.0, saves=2)),
        RunEvidence(hosts=(host(samples=9, cores_busy=0.0),), allocation=RunAllocation(cpus_per_node=64)),
    ],
)
def test_too_few_samples_are_no_verdict(evidence: RunEvidence) -> None:
    """Nothing is said of what was seen for too short a time, however bad it looks."""
    assert diagnose_run(evidence) == ()


def test_what_is_unknown_is_no_verdict() -> None:
    """Evidence in which all that may be unknown is unknown leads to no verdict."""
    ranks = (RankSteps(rank=0, node="n", steps=999, seconds=999.0),)
    gpus = (GpuUse(uuid="GPU-0", node="n", seconds=999.0, samples=999),)
    hosts = (HostUse(node="n", seconds=999.0, samples=999),)
    asked = RunAllocation(cpus_per_node=64, memory_bytes_per_node=GB, time_limit_s=1e6)
    evidence = RunEvidence(
        ranks=ranks, gpus=gpus, hosts=hosts, times=TimeShares(running_s=9e3), allocation=asked
    )
    assert diagnose_run(evidence) == ()


def test_healthy_run_is_told_that_nothing_is_wrong() -> None:
    """A run that computes all the time has a remark, and nothing worse."""
    ranks = tuple(rank(one, data_s=4.0, waiting_s=10.0) for one in range(4))
    gpus = tuple(gpu(one, utilization=0.99, sm_activity=0.9, heat_share=0.0) for one in range(4))
    verdict = only(RunEvidence(ranks=ranks, gpus=gpus, times=times(checkpoint_s=30.0, saves=9)))
    assert (verdict.kind, verdict.severity) == (KIND.compute_bound, VerdictSeverity.info)


def everything() -> RunEvidence:
    """Return a run with which much is wrong."""
    return RunEvidence(
        ranks=tuple(rank(one, data_s=100.0, waiting_s=50.0) for one in range(3)),
        gpus=(gpu(0, heat_share=0.5), gpu(7, utilization=0.0), gpu(2, power_share=0.9)),
        hosts=(host(cores=64, cores_busy=3.0),),
        times=times(checkpoint_s=900.0, saves=9, restart_s=300.0, failures={"nan": 1}),
        allocation=RunAllocation(cpus_per_node=64, time_limit_s=1e6, longest_attempt_s=HOUR_S),
        stragglers=(slow_rank(), slow_rank(rank=2)),
    )


def test_verdicts_are_sorted_by_severity_and_loss() -> None:
    """The worst comes first, whatever the order of the evidence."""
    found = diagnose_run(everything())
    order = [(list(VerdictSeverity).index(one.severity), -one.loss) for one in found]
    assert order == sorted(order)
    assert len({one.kind for one in found}) >= 7
    mixed = everything()
    shuffled = replace(
        mixed, ranks=mixed.ranks[::-1], gpus=mixed.gpus[::-1], stragglers=mixed.stragglers[::-1]
    )
    assert [one.kind for one in diagnose_run(shuffled)] == [one.kind for one in found]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_any_evidence_gets_verdicts_without_an_error(seed: int) -> None:
    """Whatever numbers come in, also impossible ones, no rule raises, and losses are shares."""
    draw = random.Random(seed)  # noqa: S311  # no secret

    def some(kind: type, **fixed: Any) -> Any:
        values = (None, 0, 1, draw.random(), draw.uniform(0, 1e12))
        rest = [field.name for field in fields(kind) if field.name not in fixed and field.name != "group"]
        return kind(**fixed, **{name: draw.choice(values) for name in rest})

    evidence = RunEvidence(
        ranks=tuple(
            some(RankSteps, rank=one, node="n", gpu=f"GPU-{one}", steps=50, seconds=100.0) for one in range(3)
        ),
        gpus=tuple(some(GpuUse, uuid=f"GPU-{one}", node="n", seconds=99.0, samples=50) for one in range(3)),
        hosts=(some(HostUse, node="n", seconds=99.0, samples=50),),
        stragglers=(slow_rank(),),
    )
    for verdict in diagnose_run(evidence):
        assert 0 <= verdict.loss <= 1


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_run_without_a_step_has_no_verdict_on_its_speed(share: float) -> None:
    """GPUs that something else keeps busy, or that wait for the first step, say nothing of it."""
    for scenario in (waiting, communicating, active, powerful, moving, starved, gaps, one_idle):
        assert diagnose_run(replace(scenario(share), trained=False)) == ()
    assert kinds(replace(hot(1.0), trained=False)) == [VerdictKind.throttled]
