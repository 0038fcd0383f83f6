"""Promises of the estimate of GPU-hours and CPU-hours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpckit.model.cluster.site import Partition, Site
from hpckit.model.finding import CostEstimate
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.plan import LaunchPlan, RunSpec
from hpckit.model.settings import Budget
from hpckit.planning.checks.cost import estimate_launch_cost, find_budget_problem

PlanMaker = Callable[..., LaunchPlan]
SITE = Site(partitions={"p": Partition(name="p", default=True, default_time=timedelta(minutes=30))})


@pytest.fixture
def plan(plan_of_one_job: PlanMaker) -> Callable[..., LaunchPlan]:
    """Return a maker of plans for Slurm, with a budget."""

    def _plan(*, budget: float | None = None, runs: int = 1, **asked: Any) -> LaunchPlan:
        made = plan_of_one_job(Path("/launch"), runs=runs, **asked)
        run = RunSpec(
            launch=made.id,
            index=0,
            overrides=(),
            signature="",
            config={},
            settings=LaunchConfig(budget=Budget(gpu_hours=budget)),
        )
        cluster = replace(made.cluster, kind=ClusterKind.slurm)
        return replace(made, cluster=cluster, runs=(run,) * runs)

    return _plan


@pytest.mark.parametrize(
    ("asked", "gpus", "cpus"),
    [
        ({"runs": 10, "nodes": 2, "gpus_per_node": 4, "timeout": timedelta(hours=3)}, 240, 0),
        ({"nodes": 1, "spare_nodes": 1, "gpus_per_node": 4, "timeout": timedelta(hours=1)}, 8, 0),
        ({"gres": "gpu:a100:2", "nodes": 3, "timeout": timedelta(hours=1)}, 6, 0),
        ({"additional_parameters": (("gpus", "a100:2,v100:1"),), "timeout": timedelta(hours=2)}, 6, 0),
        (
            {
                "additional_parameters": (("gpus_per_task", "1"),),
                "tasks_per_node": 4,
                "timeout": timedelta(hours=1),
            },
            4,
            0,
        ),
        ({"runs": 4, "tasks_per_node": 2, "cpus_per_task": 8, "timeout": timedelta(hours=1)}, 0, 64),
        ({"gpus_per_node": 2}, 1, 0),
    ],
)
def test_estimate_is_every_run_at_its_whole_time_limit(
    plan: Callable[..., LaunchPlan], asked: dict[str, Any], gpus: float, cpus: float
) -> None:
    """Runs x nodes (spare ones too) x devices x time limit, or the partition's default limit."""
    assert estimate_launch_cost(plan(**asked), SITE) == CostEstimate(gpu_hours=gpus, cpu_hours=cpus)


def test_estimate_without_a_time_limit_is_not_known(plan: Callable[..., LaunchPlan]) -> None:
    """What may run for ever has no sum, and is not held for free."""
    assert estimate_launch_cost(plan(gpus_per_node=1), Site()) == CostEstimate(gpu_hours=None, cpu_hours=0)


def test_budget_refuses_what_is_beyond_it_and_nothing_below(plan: Callable[..., LaunchPlan]) -> None:
    """At the budget a launch goes on, above it the error says both numbers."""
    asked = {"runs": 5, "gpus_per_node": 2, "timeout": timedelta(hours=1)}
    for budget in (None, 10.0):
        made = plan(budget=budget, **asked)
        assert list(find_budget_problem(made, estimate_launch_cost(made, SITE))) == []
    made = plan(budget=9.5, **asked)
    (refused,) = find_budget_problem(made, estimate_launch_cost(made, SITE))
    assert "10 GPU-hours" in refused.message
    assert "allows 9.5" in refused.message


def test_budget_cannot_be_kept_without_a_time_limit(plan: Callable[..., LaunchPlan]) -> None:
    """A launch that may use GPUs for ever is beyond any budget; one without GPUs is not."""
    (refused,) = find_budget_problem(
        plan(budget=1.0, gpus_per_node=1), CostEstimate(gpu_hours=None, cpu_hours=0.0)
    )
    assert "resources.timeout_min" in refused.hint
    made = plan(budget=1.0)
    assert list(find_budget_problem(made, estimate_launch_cost(made, Site()))) == []


def test_job_alone_on_its_nodes_has_all_their_gpus(plan: Callable[..., LaunchPlan]) -> None:
    """Slurm gives it them, also those that it did not ask for (recorded with 22.05)."""
    made = plan(nodes=2, gpus_per_node=1, exclusive=True, timeout=timedelta(hours=1))
    made = replace(made, cluster=replace(made.cluster, gpus_per_node=4))
    assert estimate_launch_cost(made, Site()).gpu_hours == 8
