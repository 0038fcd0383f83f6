"""Promises of hpckit.planning.jobs.shared_jobs: their shape, and which run comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.errors import ConfigError
from hpckit.model.cluster.site import NO_LIMITS, Site, SubmitLimits
from hpckit.model.failure import Cause
from hpckit.model.history import LaunchHistory, Resumption
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig, Recovery, Resources
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.plan import JobSpec, LaunchPlan, SweepPoint
from hpckit.model.search import Sweep
from hpckit.model.states import RunState
from hpckit.planning.checks.config import check_settings_are_consistent
from hpckit.planning.checks.cost import estimate_launch_cost
from hpckit.planning.jobs.shared_jobs import (
    EndedAttempt,
    does_run_wait_for_slot_again,
    list_runs_waiting_for_slot,
    plan_shared_job,
    sort_runs_longest_first,
)
from hpckit.planning.plan import LaunchIdentity, build_launch_plan, build_resource_spec
from hpckit.planning.recovery.resume import build_resumed_jobs

SLURM = Cluster(kind=ClusterKind.slurm, gpus_per_node=4)
LIMIT = timedelta(minutes=10)


def task(resources: dict[str, Any] | None = None, /, **sweep: Any) -> LaunchConfig:
    """Return a task with these resources, whose runs share jobs so."""
    return LaunchConfig(
        entry_point="train:main", cluster=SLURM, resources=Resources(**resources or {}), sweep=Sweep(**sweep)
    )


def plan(*settings: LaunchConfig, limits: SubmitLimits = NO_LIMITS) -> LaunchPlan:
    """Plan a launch of one run for each of these."""
    points = [
        SweepPoint(overrides=(f"seed={seed}",), config=to_plain(one), settings=one)
        for seed, one in enumerate(settings)
    ]
    return build_launch_plan(
        points,
        identity=LaunchIdentity(id="demo-1", created_at=datetime(2026, 1, 2, tzinfo=UTC)),
        folder="/shared/outputs/demo-1",
        arguments=("launch",),
        python="/usr/bin/python3",
        limits=limits,
    )


def shared(count: int, settings: LaunchConfig) -> JobSpec:
    """Return the only job of so many runs."""
    (job,) = plan(*[settings] * count).jobs
    return job


def shape(job: JobSpec) -> tuple[int, int]:
    """Return how many jobs there are, and how many slots each has."""
    assert job.shared_job is not None
    return job.shared_job.jobs, job.shared_job.slots


@pytest.mark.parametrize(
    ("count", "sweep", "expected"),
    [
        (200, {"runs_per_job": 8}, (25, 8)),
        (9, {"runs_per_job": 8}, (2, 5)),
        (3, {"runs_per_job": 8}, (1, 3)),
        (200, {"runs_per_job": 8, "max_concurrent": 16}, (2, 8)),
        (200, {"runs_per_job": 8, "max_concurrent": 20}, (2, 8)),
        (200, {"runs_per_job": 8, "max_concurrent": 3}, (1, 3)),
    ],
)
def test_shared_jobs_are_as_many_as_let_all_runs_go_within_the_bounds(
    count: int, sweep: dict[str, int], expected: tuple[int, int]
) -> None:
    """Slots that nobody would need are not asked for; the throttle counts runs, not jobs."""
    job = shared(count, task(**sweep))
    assert shape(job) == expected
    assert job.array_element_count == expected[0]
    assert job.runs == tuple(range(count))


@settings(deadline=None)
@given(
    count=st.integers(1, 400),
    per_job=st.integers(2, 20),
    bound=st.none() | st.integers(1, 60),
    queued=st.none() | st.integers(2, 60),
    index=st.none() | st.integers(1, 60),
)
def test_shared_jobs_hold_all_bounds_and_leave_no_run_without_a_slot(
    count: int, per_job: int, bound: int | None, queued: int | None, index: int | None
) -> None:
    """Whatever the cluster and the user bound, there is a slot, and no more than is allowed."""
    settings = task(runs_per_job=per_job, max_concurrent=bound)
    limits = SubmitLimits(queued=queued, array_index=index)
    spec = plan_shared_job(count, settings, build_resource_spec(settings), limits)
    assert 1 <= spec.slots <= per_job
    assert 1 <= spec.jobs * spec.slots < count + spec.jobs
    assert bound is None or spec.jobs * spec.slots <= bound
    assert queued is None or spec.jobs < queued
    assert index is None or spec.jobs <= index


def test_shared_job_asks_for_the_sum_of_its_runs_and_time_for_one_after_the_other() -> None:
    """Resources are those of one run; with six runs for two slots, three follow each other."""
    one = {"cpus_per_task": 2, "mem_gb": 1.5, "timeout_min": 10, "gres": "license:2,tmp:disk:3"}
    job = shared(6, task(one, runs_per_job=4, max_concurrent=2))
    asked = job.resources
    assert (asked.nodes, asked.tasks_per_node, asked.cpus_per_task) == (1, 2, 2)
    assert (asked.mem_gb, asked.timeout, asked.gres) == (3.0, 3 * LIMIT, "license:4,tmp:disk:6")
    stated = shared(6, task(one, runs_per_job=4, max_concurrent=2, job_timeout_min=15))
    assert stated.resources.timeout == timedelta(minutes=15)


@pytest.mark.parametrize(
    ("sweep", "gpus"),
    [
        ({"runs_per_job": 4}, 4),
        ({"runs_per_job": 8, "runs_per_gpu": 4}, 2),
        ({"runs_per_job": 5, "runs_per_gpu": 4}, 2),
        ({"runs_per_gpu": 3}, 1),
    ],
)
def test_runs_that_share_a_gpu_ask_for_it_once(sweep: dict[str, int], gpus: int) -> None:
    """Of runs_per_gpu runs there is one GPU, by gpus_per_node and by gres alike."""
    count = 8 * max(sweep.values())
    by_count = shared(count, task({"gpus_per_node": 1}, **sweep))
    by_gres = shared(count, task({"gres": "gpu:1g.10gb:1"}, **sweep))
    assert by_count.resources.gpus_per_node == gpus
    assert by_gres.resources.gres == f"gpu:1g.10gb:{gpus}"


def test_estimate_is_of_all_runs_however_they_share_jobs() -> None:
    """Eight runs of ten minutes on shared GPUs, two a GPU: four times ten minutes, at most."""
    words = {"gpus_per_node": 1, "timeout_min": 10}
    for more in ({}, {"max_concurrent": 4}, {"max_concurrent": 4, "job_timeout_min": 15}):
        made = plan(*[task(words, runs_per_job=4, runs_per_gpu=2, **more)] * 8)
        assert estimate_launch_cost(made, Site()).gpu_hours == pytest.approx(40 / 60)


def test_bound_of_gpus_holds_over_all_shared_jobs() -> None:
    """sweep.max_gpus counts what the jobs hold together, shared or not."""
    job = shared(100, task({"gpus_per_node": 1}, runs_per_job=8, runs_per_gpu=4, max_gpus=6))
    assert job.array_element_count * job.resources.gpus_per_node == 6
    narrow = shared(100, task({"gpus_per_node": 1}, runs_per_job=8, runs_per_gpu=4, max_gpus=1))
    assert (shape(narrow), narrow.resources.gpus_per_node) == ((1, 4), 1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (task({"nodes": 2}, runs_per_job=4), r"resources\.nodes is 2, and runs that share a job"),
        (task({"spare_nodes": 1}, runs_per_job=4), r"resources\.spare_nodes is 1"),
        (task({"gpus_per_node": 2}, runs_per_gpu=2), r"one run asks for 2 GPUs"),
        (task(runs_per_gpu=2), r"one run asks for 0 GPUs"),
        (task({"additional_parameters": {"gpus": 1}}, runs_per_job=2), r"count for the whole job"),
        (
            replace(task(runs_per_job=2), recovery=Recovery(queue_successor=True)),
            r"recovery\.queue_successor is true",
        ),
        (
            task({"timeout_min": 30}, runs_per_job=2, job_timeout_min=20),
            r"job_timeout_min is 20, and that of one run \(resources\.timeout_min\) is 30",
        ),
        (task(runs_per_job=0), r"sweep\.runs_per_job is 0; it must be at least 1"),
    ],
)
def test_runs_that_cannot_share_a_job_are_refused(settings: LaunchConfig, said: str) -> None:
    """What is of several nodes, or counted otherwise, is named with what is allowed."""
    with pytest.raises(ConfigError, match=said):
        check_settings_are_consistent(settings)


def test_shared_job_beyond_the_gpus_of_a_node_is_refused_with_what_fits() -> None:
    """A node has four: eight runs with one each do not fit into one job."""
    with pytest.raises(ConfigError, match="ask for 8 GPUs, but a node") as caught:
        shared(8, task({"gpus_per_node": 1}, runs_per_job=8))
    assert "sweep.runs_per_job=4" in caught.value.hint


def test_shared_job_beyond_the_cpus_of_a_node_is_refused_with_what_fits() -> None:
    """The sum is shown with how it comes about."""
    settings = task({"tasks_per_node": 2}, runs_per_job=25)
    cluster = Cluster(kind=ClusterKind.slurm, cpus_per_node=8)
    with pytest.raises(ConfigError, match=r"25 runs .* 25 x 2 CPUs = 50, but a node .* 8") as caught:
        shared(25, replace(settings, cluster=cluster))
    assert "sweep.runs_per_job=4" in caught.value.hint
    assert shape(shared(25, replace(settings, cluster=replace(cluster, cpus_per_node=50)))) == (1, 25)


def test_local_executor_has_no_jobs_to_share() -> None:
    """There, max_parallel says how many go at a time, and every run is as ever."""
    local = replace(task(runs_per_job=4), cluster=Cluster(kind=ClusterKind.local))
    assert shared(8, local).shared_job is None


def test_runs_of_other_resources_share_another_job() -> None:
    """A job is one request: who asks for more memory has slots of its own."""
    small, large = task({"mem_gb": 1}, runs_per_job=2), task({"mem_gb": 4}, runs_per_job=2)
    jobs = plan(small, large, small, large).jobs
    assert [(job.runs, job.resources.mem_gb) for job in jobs] == [((0, 2), 2), ((1, 3), 8)]


def test_shared_job_outlives_its_record_and_old_records_have_none() -> None:
    """launch.json holds all of it; one that was written without is of single runs."""
    job = shared(20, task(runs_per_job=4))
    plain = to_plain(job)
    assert from_plain(JobSpec, plain) == job
    del plain["shared_job"]
    assert from_plain(JobSpec, plain).shared_job is None


def test_resumed_runs_share_a_job_again() -> None:
    """Those that are left are packed anew, with no more slots than they need."""
    job = shared(20, task({"mem_gb": 2}, runs_per_job=4))
    (added,) = build_resumed_jobs("demo-1", (3, 7, 9), job_of=lambda _: job, begun=(3,), first_index=1)
    assert (added.index, added.runs, shape(added)) == (1, (3, 7, 9), (1, 3))
    assert added.resources.mem_gb == 6


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 30), st.integers(1, 1000)))
def test_order_is_of_all_runs_once_and_longest_first(known: dict[int, int]) -> None:
    """Who is known to take longest is begun first; without knowledge, the order of index stays."""
    lasted = {run: timedelta(seconds=seconds) for run, seconds in known.items()}
    order = sort_runs_longest_first(range(31), lasted)
    assert sorted(order) == list(range(31))
    times = [lasted[run] for run in order if run in lasted]
    assert times == sorted(times, reverse=True)
    unknown = [run for run in order if run not in lasted]
    assert unknown == sorted(unknown)


def test_due_are_runs_that_nobody_took_cancelled_or_resumed() -> None:
    """In the order of the job; a run that a resume gave to another job is that one's."""
    job = replace(shared(6, task(runs_per_job=4)), runs=(5, 4, 3, 2, 1, 0))
    history = LaunchHistory(
        jobs=[job],
        cancelled={4},
        resumed={3: Resumption(job_index=1, after=1), 2: Resumption(job_index=0, after=1)},
    )
    assert list_runs_waiting_for_slot(job, history, claimed={5}) == [2, 1, 0]


Change = Callable[[EndedAttempt], EndedAttempt]


@pytest.mark.parametrize(
    ("change", "back"),
    [
        ({"state": RunState.completed, "stopped": True}, False),
        ({"state": RunState.failed, "stopped": True}, False),
        ({"state": RunState.cancelled, "stopped": True}, False),
        ({"again": True}, True),
        ({"again": True, "spent": True}, False),
        ({"cause": Cause.launcher_lost}, True),
        ({"cause": Cause.notice, "stopped": True}, True),
        ({"cause": Cause.preempted, "stopped": True}, True),
        ({"cause": Cause.notice}, False),
        ({"cause": Cause.time_limit, "took": LIMIT / 2, "stopped": True}, True),
        ({"cause": Cause.time_limit, "took": LIMIT, "stopped": True}, False),
        ({"cause": Cause.time_limit, "took": LIMIT}, False),
    ],
)
def test_run_comes_back_unless_it_is_over_or_had_its_time(change: dict[str, Any], back: object) -> None:
    """An end of the job is none of the run's; its own failure, cancellation and limit are."""
    spec = shared(4, task({"timeout_min": 10}, runs_per_job=2)).shared_job
    assert spec is not None
    ended = EndedAttempt(
        state=RunState.interrupted, cause=Cause.signal, again=False, took=timedelta(minutes=1), stopped=False
    )
    assert does_run_wait_for_slot_again(replace(ended, **change), spec) is back
