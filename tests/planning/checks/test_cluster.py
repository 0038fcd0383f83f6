"""Promises of the comparison of a plan with what a cluster says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpckit.model.cluster.site import Association, NodeGroup, Partition, Qos, Site, SiteSettings
from hpckit.model.finding import Finding, Severity
from hpckit.model.plan import SharedJobSpec
from hpckit.planning.checks.cluster import find_cluster_problems
from hpckit.planning.jobs.shared_jobs import build_shared_job

PlanMaker = Callable[..., Any]

SITE = Site(
    settings=SiteSettings(
        cluster="here", enforced=frozenset({"associations", "limits", "qos"}), accounting=True
    ),
    partitions={
        "cpu": Partition(name="cpu", default=True, nodes=4, max_time=timedelta(days=1)),
        "gpu": Partition(
            name="gpu",
            nodes=3,
            max_nodes=2,
            max_time=timedelta(hours=2),
            allowed_qos=frozenset({"normal", "long"}),
        ),
        "old": Partition(name="old", nodes=9, state="INACTIVE"),
        "off": Partition(name="off", nodes=9, state="DOWN"),
    },
    nodes=(
        NodeGroup(partition="cpu", nodes=4, cpus=16, memory_mb=1000, gres={}),
        NodeGroup(partition="gpu", nodes=2, cpus=16, memory_mb=1, gres={"gpu": 4, "gpu:a100": 4}),
        NodeGroup(partition="gpu", nodes=1, cpus=16, memory_mb=1, gres={"gpu": 8, "gpu:h100": 8}),
    ),
    default_account="lab",
    associations=(
        Association(account="lab", qos=("normal", "long", "short"), default_qos="normal"),
        Association(account="side", qos=("normal",), max_wall=timedelta(hours=3)),
    ),
    accounts={},
    qos={
        "normal": Qos(name="normal"),
        "short": Qos(name="short", max_wall=timedelta(minutes=30), user_submit=5),
        "long": Qos(name="long", flags=frozenset({"partitiontimelimit"})),
        "closed": Qos(name="closed", user_submit=0),
    },
)


@pytest.fixture
def found(plan_of_one_job: PlanMaker) -> Callable[..., tuple[Finding, ...]]:
    """Return a function that checks a job which asks for the given resources."""

    def _found(site: Site = SITE, **asked: Any) -> tuple[Finding, ...]:
        return find_cluster_problems(plan_of_one_job(Path("/launch"), **asked), site)

    return _found


def hours(count: float) -> timedelta:
    """Return so many hours."""
    return timedelta(hours=count)


@pytest.mark.parametrize(
    ("asked", "key", "words"),
    [
        ({"partition": "gpuu"}, "resources.partition", "cpu, gpu, off, old"),
        ({"partition": "old"}, "resources.partition", "INACTIVE"),
        ({"account": "labb"}, "resources.account", "lab, side"),
        ({"qos": "nromal"}, "resources.qos", "closed, long, normal, short"),
        ({"account": "side", "qos": "long"}, "resources.qos", "may use normal"),
        ({"timeout": hours(25)}, "resources.timeout_min", "1500; partition cpu allows 1440"),
        ({"timeout": hours(1), "qos": "short"}, "resources.timeout_min", "QOS short allows 30"),
        ({"timeout": hours(4), "account": "side"}, "resources.timeout_min", "side allows 180"),
        ({"nodes": 4, "spare_nodes": 1}, "resources.nodes", "5 nodes"),
        ({"nodes": 3, "partition": "gpu"}, "resources.nodes", "gives a job 2 at most"),
        ({"gpus_per_node": 1}, "resources.gpus_per_node", "partition cpu has 0:"),
        ({"gpus_per_node": 8, "nodes": 2, "partition": "gpu"}, "resources.gpus_per_node", "has 1"),
        ({"gres": "gpu:v100:1", "partition": "gpu"}, "resources.gres", "gpu:a100=4"),
        (
            {"tasks_per_node": 4, "cpus_per_task": 5},
            "resources.tasks_per_node",
            "4 tasks x 5 CPUs = 20; the largest node of partition cpu has 16",
        ),
        ({"cpus_per_task": 17}, "resources.cpus_per_task", "17 CPUs; the largest node of"),
        ({"mem_gb": 2.0}, "resources.mem_gb", "2 GB; the largest node of partition cpu has 0.977 GB"),
        (
            {"gpus_per_node": 8, "cpus_per_task": 16, "nodes": 2, "partition": "gpu"},
            "resources.gpus_per_node",
            "2 nodes with 8 x gpu asked for; partition gpu has 1 such",
        ),
        (
            {"gres": "gpu:a100:4", "gpus_per_node": 4, "partition": "gpu"},
            "resources.gres",
            "gpus_per_node=4 and resources.gres=gpu:a100:4 both ask for GPUs",
        ),
        (
            {"constraint": "fast", "additional_parameters": (("constraint", "slow"),)},
            "resources.additional_parameters.constraint",
            "resources.constraint and resources.additional_parameters.constraint (slow) are both",
        ),
        (
            {"mail_type": "END", "additional_parameters": (("mail-type", "FAIL"),)},
            "resources.additional_parameters.mail-type",
            "resources.mail_type and",
        ),
        (
            {"timeout": hours(1), "additional_parameters": (("time", "9:00"),)},
            "resources.additional_parameters.time",
            "resources.timeout_min and",
        ),
        ({"runs": 3, "qos": "closed"}, "resources.qos", "its limit is 0"),
    ],
)
def test_what_slurm_would_refuse_is_an_error_that_says_what_is_allowed(
    found: Callable[..., tuple[Finding, ...]], asked: dict[str, Any], key: str, words: str
) -> None:
    """Each error names the key, what is there or allowed, and what to do."""
    errors = [one for one in found(**asked) if one.severity is Severity.error]
    assert key in [error.key for error in errors]
    (mine,) = [error for error in errors if error.key == key and words in error.message]
    assert mine.hint


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"account": "LAB", "qos": "Normal"},
        {"timeout": hours(24)},
        {"timeout": hours(5), "partition": "gpu", "qos": "long"},
        {"gpus_per_node": 4, "nodes": 2, "partition": "gpu"},
        {"gres": "gpu:h100:8", "partition": "gpu"},
        {"tasks_per_node": 4, "cpus_per_task": 4},
        {"cpus_per_task": 17, "additional_parameters": (("overcommit", True),)},
        {"mem_gb": 999.0, "partition": "gpu"},
        {"gpus_per_node": 4, "cpus_per_task": 16, "partition": "gpu"},
        {"constraint": "fast", "additional_parameters": (("constraint", None),)},
        {"runs": 6, "qos": "short"},
    ],
)
def test_what_slurm_would_take_has_no_findings(
    found: Callable[..., tuple[Finding, ...]], asked: dict[str, Any]
) -> None:
    """Nothing is said of a job that fits, nor of a QOS that lifts the partition's limit."""
    assert found(**asked) == ()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"partition": "off"}, "is DOWN"),
        ({"partition": "gpu", "qos": "short", "timeout": hours(0.1)}, "may not take qos short"),
        ({"partition": "cpu,gpu", "timeout": hours(3)}, "partition gpu allows 120"),
    ],
)
def test_what_slurm_may_take_is_a_warning(
    found: Callable[..., tuple[Finding, ...]], asked: dict[str, Any], words: str
) -> None:
    """A job that one of several partitions fits or that waits may start."""
    (warning,) = found(**asked)
    assert warning.severity is Severity.warning
    assert words in warning.message


def test_what_is_not_known_is_not_held_against_a_launch(found: Callable[..., tuple[Finding, ...]]) -> None:
    """Where nobody answered, nothing is refused."""
    everything = {"partition": "x", "account": "y", "qos": "z", "timeout": hours(999), "nodes": 99}
    assert found(Site(), **everything, gpus_per_node=9, runs=9) == ()


def test_limits_that_are_not_enforced_refuse_nothing(found: Callable[..., tuple[Finding, ...]]) -> None:
    """Without enforcement an account is any word, and a QOS that is none is only warned about."""
    free = replace(SITE, settings=SiteSettings(accounting=True))
    assert found(free, account="any", timeout=hours(4)) == ()
    (warning,) = found(free, qos="nromal")
    assert warning.severity is Severity.warning
    assert "resources.qos=normal" in warning.hint


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({"mem_gb": 4.0, "additional_parameters": (("mem_per_cpu", "1G"),)}, "--mem and --mem-per"),
        ({"additional_parameters": (("mem-per-gpu", "1G"), ("mem_per_cpu", "1G"))}, "--mem-per-c"),
        ({"additional_parameters": (("cpus_per_gpu", "2"),)}, "--cpus-per-task and --cpus-per-gpu"),
        (
            {"additional_parameters": (("gpus_per_task", "1"), ("ntasks-per-gpu", "1"))},
            "--gpus-per-task and --ntasks-per-gpu",
        ),
        ({"nodelist": "n[1-3]", "exclude": "n3,n4"}, "both name n3"),
    ],
)
def test_options_that_exclude_each_other_are_errors(
    found: Callable[..., tuple[Finding, ...]], asked: dict[str, Any], options: str
) -> None:
    """What sbatch refuses without asking anybody is said without asking anybody."""
    (error,) = found(Site(), **asked)
    assert error.severity is Severity.error
    assert options in error.message
    assert error.hint


def test_options_that_are_not_given_contradict_nothing(found: Callable[..., tuple[Finding, ...]]) -> None:
    """Null and false are no options."""
    unsaid = (("mem_per_cpu", None), ("mem_per_gpu", False))
    assert found(Site(), mem_gb=4.0, additional_parameters=unsaid) == ()


MIXED = replace(
    SITE,
    nodes=(
        NodeGroup(partition="cpu", nodes=3, cpus=64, memory_mb=8192, gres={}),
        NodeGroup(partition="cpu", nodes=1, cpus=8, memory_mb=4096, gres={"gpu": 8}),
    ),
)


def test_what_no_single_node_has_together_is_an_error(found: Callable[..., tuple[Finding, ...]]) -> None:
    """Each wish fits some node, and all of them none: all are named, with what nodes have."""
    (finding,) = found(MIXED, gpus_per_node=4, cpus_per_task=16)
    assert finding.severity is Severity.error
    assert "1 node with 4 x gpu, 16 CPUs each asked for; partition cpu has 0" in finding.message
    assert "3 with 64 CPUs 8 GB no gres; 1 with 8 CPUs 4 GB gpu=8" in finding.message
    assert found(MIXED, gpus_per_node=4, cpus_per_task=8) == ()


def test_one_partition_of_several_that_fits_is_enough_for_a_shape(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    """What does not fit the other one is a warning."""
    (finding,) = found(partition="cpu,gpu", gpus_per_node=4)
    assert finding.severity is Severity.warning


@pytest.mark.parametrize(
    ("each", "slots", "key", "words", "hint"),
    [
        ({}, 25, "sweep.runs_per_job", "25 runs x 1 CPU = 25; the largest", "runs_per_job=16"),
        (
            {"tasks_per_node": 2, "cpus_per_task": 3},
            3,
            "sweep.runs_per_job",
            "3 runs x 2 tasks x 3 CPUs = 18",
            "runs_per_job=2",
        ),
        ({"mem_gb": 0.5}, 2, "sweep.runs_per_job", "2 runs x 0.5 GB = 1;", "runs_per_job=1"),
        (
            {"gpus_per_node": 2, "partition": "gpu"},
            5,
            "sweep.runs_per_job",
            "a shared job asks for 10 x gpu for 5 runs; the largest node of partition gpu has 8",
            "runs_per_job=4",
        ),
        (
            {"cpus_per_task": 20},
            2,
            "resources.cpus_per_task",
            "a node is asked for 20 CPUs; the largest",
            "lower resources.tasks_per_node",
        ),
    ],
)
def test_runs_that_share_a_job_are_added_up(
    each: dict[str, Any], slots: int, key: str, words: str, hint: str, plan_of_one_job: PlanMaker
) -> None:
    """The sum is shown with how it comes about; the hint names how many runs do fit."""
    (single,) = plan_of_one_job(Path("/launch"), **each).jobs
    spec = SharedJobSpec(runs_per_job=slots, runs_per_gpu=1, slots=slots, jobs=1, each=single.resources)
    plan = plan_of_one_job(Path("/launch"))
    job = build_shared_job(0, "demo", range(slots), spec, requeue=False)
    (finding,) = find_cluster_problems(replace(plan, jobs=(job,)), SITE)
    assert (finding.key, finding.severity) == (key, Severity.error)
    assert words in finding.message
    assert hint in finding.hint


@pytest.mark.parametrize(
    ("release", "qos", "errors"),
    [
        ("24.11.5", "normal,long", []),
        ("24.11.5", "normal,lng", ["resources.qos"]),
        ("", "normal,long", []),
        ("23.11.10", "normal,long", ["resources.qos"]),
        ("23.11.10", "long", []),
    ],
)
def test_list_of_qos_is_taken_from_the_release_on_that_takes_it(
    release: str, qos: str, errors: list[str], found: Callable[..., tuple[Finding, ...]]
) -> None:
    """Slurm 24.11 was the first: a job with `normal,long` waited with both in its queue."""
    assert SITE.settings is not None
    site = replace(SITE, settings=replace(SITE.settings, release=release))
    assert [one.key for one in found(site, qos=qos) if one.is_error] == errors
