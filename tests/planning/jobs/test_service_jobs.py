"""Promises of hpckit.planning.jobs.service_jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpckit.model.elastic import SatelliteSpec
from hpckit.model.launch import Cluster
from hpckit.planning.jobs.service_jobs import (
    SatelliteOrder,
    build_auto_resume_job,
    build_job_submitting_backlog,
    build_next_attempt_job,
    build_satellite_job,
)


def test_auto_resume_job_asks_for_little_where_the_launch_runs(plan_of_one_job: Callable[..., Any]) -> None:
    """One CPU for ten minutes, on the launch's partition and account, without its nodes or GPUs.

    It is in no reservation, which may have ended when it is to start; what a site asks of every
    job (features, licenses) it keeps.
    """
    plan = plan_of_one_job(
        Path("/f"),
        nodes=4,
        spare_nodes=1,
        gpus_per_node=8,
        mem_gb=500,
        partition="gpu",
        account="physics",
        qos="long",
        reservation="ours",
        nodelist="n[1-4]",
        exclusive=True,
        mail_type="ALL",
        constraint="gpu",
        additional_parameters=(("nice", "5"), ("licenses", "scratch"), ("gpus", "8")),
    )
    like = plan.jobs[0].resources
    job = build_auto_resume_job("demo", index=3, like=like, cluster=Cluster(), after=["7_0", "7_3", "9"])
    asked = job.resources
    assert (job.index, job.name, job.runs, job.requeue) == (3, "demo-auto-resume-3", (), True)
    assert asked.dependency == "afterany:7:9"
    assert (asked.partition, asked.account, asked.qos) == ("gpu", "physics", "long")
    assert (asked.reservation, asked.constraint) == (None, "gpu")
    assert (asked.allocated_nodes, asked.cpus_per_task, asked.gpus_per_node) == (1, 1, 0)
    assert (asked.timeout, asked.mem_gb) == (timedelta(minutes=10), 1.0)
    assert (asked.nodelist, asked.exclusive, asked.mail_type) == (None, False, None)
    assert asked.additional_parameters == (("licenses", "scratch"),)


def test_auto_resume_job_that_follows_an_idle_one_waits_a_while(plan_of_one_job: Callable[..., Any]) -> None:
    """So that they never chase each other."""
    like = plan_of_one_job(Path("/f")).jobs[0].resources
    job = build_auto_resume_job("demo", index=3, like=like, cluster=Cluster(), after=["7"], pause=True)
    assert job.resources.additional_parameters == (("begin", "now+60"),)


@pytest.mark.parametrize(
    ("cluster", "place"),
    [
        (Cluster(), ("gpu", "long", "a100")),
        (Cluster(service_qos="small"), ("gpu", "small", "a100")),
        (Cluster(service_partition="cpu"), ("cpu", None, None)),
        (Cluster(service_partition="cpu", service_qos="small"), ("cpu", "small", None)),
    ],
)
def test_auto_resume_job_and_backlog_job_go_where_the_cluster_wants_small_jobs(
    plan_of_one_job: Callable[..., Any], cluster: Cluster, place: tuple[str | None, ...]
) -> None:
    """A service partition is another place: QOS and features of the launch's own do not follow."""
    plan = plan_of_one_job(Path("/f"), partition="gpu", qos="long", constraint="a100")
    like = plan.jobs[0].resources
    for job in (
        build_auto_resume_job("demo", index=3, like=like, cluster=cluster, after=["7"]),
        build_job_submitting_backlog("demo", index=3, like=like, cluster=cluster, after=["7"]),
    ):
        asked = job.resources
        assert (asked.partition, asked.qos, asked.constraint) == place


def test_successor_is_one_run_s_job_behind_its_element(plan_of_one_job: Callable[..., Any]) -> None:
    """As the run's own job, requeued as it is, but after it and alone."""
    like = plan_of_one_job(Path("/f"), runs=5, nodes=2, dependency="afterok:3", requeue=True).jobs[0]
    job = build_next_attempt_job("demo", 4, index=6, like=like, after="123_4")
    assert (job.index, job.name, job.runs, job.requeue) == (6, "demo-6", (4,), True)
    assert (job.resources.dependency, job.resources.nodes) == ("afterany:123_4", 2)


def test_satellite_job_asks_for_the_same_of_other_nodes(plan_of_one_job: Callable[..., Any]) -> None:
    """Each node as the run's own, but none of these; it is told of its end ahead of time."""
    plan = plan_of_one_job(
        Path("/f"),
        nodes=4,
        spare_nodes=1,
        min_nodes=2,
        gpus_per_node=8,
        mem_gb=500,
        partition="gpu",
        account="physics",
        qos="long",
        reservation="ours",
        nodelist="n[1-5]",
        exclude="bad1",
        mail_type="ALL",
        additional_parameters=(("licenses", "scratch"),),
    )
    like = plan.jobs[0]
    order = SatelliteOrder(replicas=3, nodes=6, taken=("n1", "n2"), warn_s=90)
    job = build_satellite_job("demo", 0, index=5, like=like, order=order)
    asked = job.resources
    assert (job.runs, job.requeue, job.is_array) == ((), False, False)
    assert job.satellite == SatelliteSpec(run=0, replicas=3)
    assert (asked.allocated_nodes, asked.survives_node_loss) == (6, False)
    assert (asked.gpus_per_node, asked.mem_gb) == (8, 500)
    assert (asked.partition, asked.account, asked.qos) == ("gpu", "physics", "long")
    assert asked.timeout == like.resources.timeout
    assert (asked.nodelist, asked.exclude, asked.mail_type) == (None, "bad1,n[1-2]", None)
    assert asked.reservation == "ours"
    assert dict(asked.additional_parameters) == {"signal": "USR1@90", "licenses": "scratch"}


def test_satellite_job_goes_where_the_user_wants(plan_of_one_job: Callable[..., Any]) -> None:
    """On another partition no reservation of the run's is meant; a signal that is stated stays."""
    plan = plan_of_one_job(
        Path("/f"), partition="gpu", reservation="ours", additional_parameters=(("signal", "USR2@300"),)
    )
    order = SatelliteOrder(replicas=1, nodes=1, partition="spot", qos="low", timeout=timedelta(minutes=30))
    asked = build_satellite_job("demo", 0, index=1, like=plan.jobs[0], order=order).resources
    assert (asked.partition, asked.qos, asked.reservation) == ("spot", "low", None)
    assert (asked.timeout, asked.exclude) == (timedelta(minutes=30), None)
    assert asked.additional_parameters == (("signal", "USR2@300"),)
