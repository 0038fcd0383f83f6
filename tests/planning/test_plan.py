"""Promises of planning.plan, planning.check, planning.check_recovery and planning.command."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hpckit.errors import ConfigError
from hpckit.model.command import split_command
from hpckit.model.failure import RESTARTABLE
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig, Recovery, Resources, Runtime
from hpckit.model.plain import to_plain
from hpckit.model.plan import LaunchPlan, SweepPoint
from hpckit.planning.plan import LaunchIdentity, build_launch_plan, choose_launch_name

SLURM = Cluster(kind=ClusterKind.slurm, partition="batch", partitions=["batch", "urgent"], gpus_per_node=4)
TASK = LaunchConfig(entry_point="train:main", cluster=SLURM)


def point(settings: LaunchConfig, *overrides: str) -> SweepPoint:
    """Return the point that would have composed to these settings."""
    return SweepPoint(overrides=overrides, config=to_plain(settings), settings=settings)


def plan(*points: SweepPoint) -> LaunchPlan:
    """Plan these points under a fixed identity."""
    return build_launch_plan(
        points,
        identity=LaunchIdentity(id="demo-1", created_at=datetime(2026, 1, 2, tzinfo=UTC)),
        folder="/shared/outputs/demo-1",
        arguments=("launch",),
        python="/usr/bin/python3",
    )


def asking(**resources: Any) -> LaunchConfig:
    """Return a task that asks for these resources."""
    return replace(TASK, resources=Resources(**resources))


def restarting(**restarts: int) -> LaunchConfig:
    """Return a task with these budgets."""
    return replace(TASK, recovery=Recovery(restarts=restarts))


def timed(**runtime: float) -> LaunchConfig:
    """Return a task with these times."""
    return replace(TASK, runtime=Runtime(**runtime))  # type: ignore[arg-type]  # floats, all


def test_plan_makes_one_job_of_one_run() -> None:
    """A single configuration is one run in one job, named as the launch is."""
    made = plan(point(TASK, "seed=0"))
    assert [job.name for job in made.jobs] == ["demo-1"]
    assert made.jobs[0].runs == (0,)
    assert not made.jobs[0].is_array
    assert made.runs[0].id == "demo-1.0"
    assert made.runs[0].overrides == ("seed=0",)


def test_plan_makes_one_array_of_a_sweep() -> None:
    """Runs that ask the same of Slurm share one array, in the order of the sweep."""
    made = plan(*(point(replace(TASK, seed=seed)) for seed in range(5)))
    assert [job.runs for job in made.jobs] == [(0, 1, 2, 3, 4)]
    assert made.jobs[0].is_array
    assert len({run.signature for run in made.runs}) == 5


def test_plan_groups_runs_by_what_they_ask_for() -> None:
    """A sweep over resources becomes one job for each shape, and no run is lost."""
    made = plan(*(point(asking(nodes=nodes)) for nodes in (1, 2, 1, 2, 3)))
    assert [job.runs for job in made.jobs] == [(0, 2), (1, 3), (4,)]
    assert [job.name for job in made.jobs] == ["demo-1", "demo-1-1", "demo-1-2"]
    assert [job.resources.nodes for job in made.jobs] == [1, 2, 3]


def test_plan_groups_runs_by_whether_slurm_may_requeue_them() -> None:
    """`requeue` is stated per script, so runs that differ in it are different jobs."""
    again = replace(TASK, recovery=Recovery(requeue=True))
    made = plan(point(TASK), point(again))
    assert [(job.runs, job.requeue) for job in made.jobs] == [((0,), False), ((1,), True)]


def test_plan_never_lets_slurm_requeue_a_run_with_a_successor() -> None:
    """The successor waits for the end of the job; a requeue would put that off, and start twice."""
    chained = replace(TASK, recovery=Recovery(requeue=True, queue_successor=True))
    assert [job.requeue for job in plan(point(chained)).jobs] == [False]


def test_plan_takes_the_clusters_defaults_and_units() -> None:
    """Partition, account and QOS fall back to the cluster's; minutes become a duration."""
    cluster = replace(SLURM, account="lab", qos="normal")
    settings = replace(TASK, cluster=cluster, resources=Resources(timeout_min=90, qos="high"))
    asked = plan(point(settings)).jobs[0].resources
    assert (asked.partition, asked.account, asked.qos) == ("batch", "lab", "high")
    assert asked.timeout == timedelta(minutes=90)


@pytest.mark.parametrize(
    ("resources", "allocated", "outlives"),
    [
        ({"nodes": 2}, 2, False),
        ({"nodes": 2, "min_nodes": 2}, 2, False),
        ({"nodes": 2, "min_nodes": 1}, 2, True),
        ({"nodes": 2, "spare_nodes": 1}, 3, True),
    ],
)
def test_plan_asks_for_spare_nodes_beside_those_that_train(
    resources: dict[str, int],
    allocated: int,
    outlives: bool,  # noqa: FBT001  # what is expected
) -> None:
    """Spare nodes are allocated and train nobody: the world is as large as without them."""
    asked = plan(point(asking(**resources, tasks_per_node=4))).jobs[0].resources
    assert asked.allocated_nodes == allocated
    assert asked.survives_node_loss is outlives
    assert asked.world_size == 8


def test_plan_passes_additional_parameters_as_text_flags_or_nothing() -> None:
    """Numbers become text; true, false and null keep their meaning for the script."""
    extra = {"nice": 100, "wait-all-nodes": True, "begin": "now+1hour", "hold": None}
    asked = plan(point(asking(additional_parameters=extra))).jobs[0].resources
    assert asked.additional_parameters == (
        ("nice", "100"),
        ("wait-all-nodes", True),
        ("begin", "now+1hour"),
        ("hold", None),
    )


@pytest.mark.parametrize(
    ("gpus", "cap", "option", "asked"),
    [
        (2, 300.0, "gpu-power", (("gpu-power", "300"),)),
        (2, 300.0, None, ()),
        (2, None, "gpu-power", ()),
        (0, 300.0, "gpu-power", ()),
        ({"gres": "gpu:0"}, 300.0, "gpu-power", ()),
        ({"additional_parameters": {"gpus": None}}, 300.0, "gpu-power", (("gpus", None),)),
        (
            {"additional_parameters": {"tres_per_task": "gres/gpu:1", "gpu_power": False}},
            300.0,
            "gpu-power",
            (("tres_per_task", "gres/gpu:1"), ("gpu_power", False), ("gpu-power", "300")),
        ),
    ],
)
def test_slurm_is_asked_for_a_power_cap_where_the_site_has_an_option(
    gpus: int | dict[str, Any], cap: float | None, option: str | None, asked: tuple[Any, ...]
) -> None:
    """Of runs with GPUs alone: an unknown option would have the job refused."""
    cluster = Cluster(kind=ClusterKind.slurm, gpus_per_node=4, power_cap_w=cap, power_cap_option=option)
    resources = gpus if isinstance(gpus, dict) else {"gpus_per_node": gpus}
    settings = replace(asking(**resources), cluster=cluster)
    assert plan(point(settings)).jobs[0].resources.additional_parameters == asked


@pytest.mark.parametrize(
    ("cluster", "error"),
    [
        ({"power_cap_w": 0.0}, "cluster.power_cap_w is 0"),
        ({"power_cap_option": "--gpu-power"}, "cluster.power_cap_option='--gpu-power'"),
        ({"power_cap_w": 300.0, "power_cap_option": "gpu-power"}, "both set --gpu-power"),
    ],
)
def test_power_cap_that_cannot_be_is_refused(cluster: dict[str, Any], error: str) -> None:
    """One error that names the key, before anything is submitted."""
    settings = replace(
        asking(gpus_per_node=1, additional_parameters={"gpu_power": 200}),
        cluster=Cluster(kind=ClusterKind.slurm, gpus_per_node=4, **cluster),
    )
    with pytest.raises(ConfigError, match=error):
        plan(point(settings))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (replace(TASK, name="my run $(x)"), "my run $(x)"),
        (TASK, "train-main"),
        (replace(TASK, entry_point="pkg.train:main"), "train-main"),
        (replace(TASK, entry_point=None, command="./bin/one.sh 1"), "one"),
        (replace(TASK, entry_point=None, command="python -u src/train.py --lr 1"), "train"),
        (replace(TASK, entry_point=None, command="python -m pkg.train --lr 1"), "train"),
        (replace(TASK, entry_point=None, command="bash -c 'a | b'"), "bash"),
    ],
)
def test_launch_name_is_as_configured_or_says_what_runs(settings: LaunchConfig, name: str) -> None:
    """A name is kept as given; without one the task names the launch."""
    assert choose_launch_name(settings) == name


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (replace(TASK, entry_point=None), "nothing to run"),
        (replace(TASK, command="true"), "exactly one"),
        (replace(TASK, entry_point="train"), "package.module:function"),
        (replace(TASK, entry_point="train.py"), "names a file"),
        (replace(TASK, entry_point="sub/train.py:run"), "names a file"),
        (replace(TASK, seed=-1), "seed is -1; it must be at least 0, and at most 4294967295"),
        (replace(TASK, seed=5_000_000_000), "seed is 5000000000"),
        (replace(TASK, entry_point=None, command=""), "empty"),
        (replace(TASK, entry_point=None, command="echo 'x"), "no closing quotation"),
        (replace(TASK, entry_point=None, command=["echo", {"a": 1}]), "not a word"),
        (asking(nodes=0), "resources.nodes is 0"),
        (asking(tasks_per_node=-1), "resources.tasks_per_node is -1"),
        (asking(cpus_per_task=0), "resources.cpus_per_task is 0"),
        (asking(gpus_per_node=-1), "resources.gpus_per_node is -1"),
        (asking(timeout_min=0), "resources.timeout_min is 0"),
        (asking(mem_gb=0), "resources.mem_gb is 0"),
        (asking(spare_nodes=-1), "resources.spare_nodes is -1"),
        (asking(min_nodes=0), "resources.min_nodes is 0"),
        (asking(nodes=2, min_nodes=3), "resources.min_nodes is 3, more than resources.nodes"),
        (asking(array_parallelism=0), "resources.array_parallelism is 0"),
        (asking(gpus_per_node=8), "a node of this cluster has 4"),
        (
            replace(asking(tasks_per_node=4, cpus_per_task=5), cluster=replace(SLURM, cpus_per_node=16)),
            "needs 20 CPUs, but a node of this cluster has 16 (cluster.cpus_per_node)",
        ),
        (asking(partition="bacth"), "'bacth' is not one of this cluster's: batch, urgent"),
        (asking(partition="batch,nope"), "'nope' is not one"),
        (asking(additional_parameters={"x": [1]}), "additional_parameters.x is [1]"),
        (replace(TASK, env={"1A": "x"}), "'1A', which cannot be an environment variable"),
        (replace(TASK, recovery=Recovery(node_failures=0)), "recovery.node_failures is 0"),
        (restarting(sigal=1), "recovery.restarts: 'sigal' is not"),
        (restarting(frozen_folder=1), "recovery.restarts: 'frozen_folder' is not"),
        (restarting(scheduler=1), "recovery.restarts: 'scheduler' is not"),
        (restarting(hang=-1), "recovery.restarts.hang is -1"),
        (replace(TASK, recovery=Recovery(backoff_s=-1)), "recovery.backoff_s is -1"),
        (replace(TASK, recovery=Recovery(max_backoff_s=-2)), "recovery.max_backoff_s is -2"),
        (replace(TASK, recovery=Recovery(nan_patience=-1)), "recovery.nan_patience is -1"),
        (timed(node_timeout_s=1.5), "runtime.node_timeout_s is 1.5; it must be at least 2"),
        (timed(node_timeout_s=float("nan")), "runtime.node_timeout_s is nan"),
        (timed(hang_min_s=-1), "runtime.hang_min_s is -1"),
        (timed(hang_factor=0.5), "runtime.hang_factor is 0.5"),
        (timed(hang_first_s=0), "runtime.hang_first_s is 0"),
        (timed(save_before_timeout_s=-1), "runtime.save_before_timeout_s is -1"),
        (asking(timeout_min=1), "would save and leave as soon as it began"),
        (replace(TASK, chaos=["kil rank=0 step=1"]), "kil"),
        (replace(TASK, chaos=["kill rank=0"]), "step"),
        (replace(TASK, cluster=replace(SLURM, max_parallel=0)), "cluster.max_parallel is 0"),
        (
            replace(asking(nodes=2), cluster=Cluster(kind=ClusterKind.local)),
            "the local executor has only this machine",
        ),
        (
            replace(asking(spare_nodes=1), cluster=Cluster(kind=ClusterKind.local)),
            "resources.spare_nodes is 1, but the local executor",
        ),
    ],
)
def test_plan_refuses_what_does_not_hold_together(settings: LaunchConfig, said: str) -> None:
    """Each refusal names the key, its value and what to do."""
    with pytest.raises(ConfigError) as caught:
        plan(point(settings))
    assert said in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_plan_takes_every_seed_that_python_takes(seed: int) -> None:
    """The ends of the range are seeds like any other."""
    plan(point(replace(TASK, seed=seed)))


def test_plan_asks_for_no_more_cpus_than_are_known_of() -> None:
    """What exactly fits is taken, and nothing is refused where the site does not say."""
    asked = asking(tasks_per_node=4, cpus_per_task=4)
    for known in (16, None):
        plan(point(replace(asked, cluster=replace(SLURM, cpus_per_node=known))))


def test_plan_says_how_a_module_is_named() -> None:
    """An entry point that names a file is answered with the words that work."""
    with pytest.raises(ConfigError) as caught:
        plan(point(replace(TASK, entry_point="sub/train.py:run")))
    assert caught.value.hint == "write entry_point=sub.train:run"


def test_plan_names_the_nearest_partition() -> None:
    """A mistyped partition is answered with the one that was probably meant."""
    with pytest.raises(ConfigError) as caught:
        plan(point(asking(partition="urgnt")))
    assert "resources.partition=urgent" in caught.value.hint


def test_plan_names_the_nearest_cause() -> None:
    """A mistyped cause is answered with the one that was probably meant."""
    with pytest.raises(ConfigError) as caught:
        plan(point(restarting(node_los=1)))
    assert "recovery.restarts.node_lost" in caught.value.hint


@pytest.mark.parametrize(
    "settings",
    [
        restarting(**dict.fromkeys((cause.value for cause in RESTARTABLE), 0)),
        timed(node_timeout_s=2, hang_min_s=0, hang_factor=1, save_before_timeout_s=0),
        replace(asking(timeout_min=1), runtime=Runtime(save_before_timeout_s=30)),
        replace(asking(timeout_min=1), cluster=Cluster(kind=ClusterKind.local)),
        replace(asking(timeout_min=1), entry_point=None, command=["true"]),  # it has no loop of ours
        replace(TASK, chaos=["kill rank=0 step=1", "nan step=2"]),
    ],
)
def test_plan_takes_recovery_at_its_limits(settings: LaunchConfig) -> None:
    """What is allowed at the edge is planned: every cause, no pause, a lead within the limit."""
    assert plan(point(settings)).runs[0].settings == settings


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", "b"), ("output_dir", "elsewhere"), ("cluster", Cluster(kind=ClusterKind.local))],
)
def test_plan_refuses_a_sweep_over_what_a_launch_shares(key: str, value: Any) -> None:
    """Runs of one launch have one folder and one scheduler: sweeping those is an error."""
    with pytest.raises(ConfigError, match=f"{key} differs between the runs"):
        plan(point(TASK), point(replace(TASK, **{key: value})))


def test_plan_says_which_run_of_a_sweep_is_wrong() -> None:
    """In a sweep, the refusal names the run and its overrides."""
    with pytest.raises(ConfigError, match=r"run 1 \(resources.nodes=0\): resources.nodes is 0"):
        plan(point(TASK), point(asking(nodes=0), "resources.nodes=0"))


def test_plan_refuses_an_empty_sweep() -> None:
    """A sweep whose axes matched nothing is an error, not a launch of nothing."""
    with pytest.raises(ConfigError, match="no points"):
        plan()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python train.py --name 'a b' $HOME", ("python", "train.py", "--name", "a b", "$HOME")),
        (["echo", "a b", 1, 0.5, True], ("echo", "a b", "1", "0.5", "true")),
        ('./one.sh "" x', ("./one.sh", "", "x")),
        (True, ("true",)),
    ],
)
def test_command_words_are_split_without_a_shell(command: Any, words: tuple[str, ...]) -> None:
    """Quotes group as in a shell; variables, globs and pipes are words like any other."""
    assert split_command(command) == words
