"""Promises of planning.checks.slips: variables no shell reads, what this machine ignores."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig, Recovery, Resources, StragglerPolicy
from hpckit.model.plain import to_plain
from hpckit.model.plan import LaunchPlan, SweepPoint
from hpckit.model.settings import NoticeKind, Notify, Observe, Profile, Tracker, TrackerKind
from hpckit.planning.checks.slips import find_plan_mistakes, list_value_keys
from hpckit.planning.plan import LaunchIdentity, build_launch_plan
from hpckit.values import replace


def plan(*words: str, kind: ClusterKind = ClusterKind.local, **given: Any) -> LaunchPlan:
    """Return a plan of one run, launched with these words."""
    default: dict[str, Any] = {"entry_point": "train:main", "cluster": Cluster(kind=kind)}
    settings = LaunchConfig(**(default | given))
    point = SweepPoint(overrides=(), config=to_plain(settings), settings=settings)
    return build_launch_plan(
        [point],
        identity=LaunchIdentity(id="demo", created_at=datetime(2026, 1, 1, tzinfo=UTC)),
        folder="/f",
        arguments=("launch", *words),
        python="/usr/bin/python3",
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("/scratch/$USER", "$USER"),
        ("/scratch/${SLURM_JOB_ID}/x", "${SLURM_JOB_ID}"),
        ("~/cache", "~/"),
        ("5$", None),
        ("a$b", None),
        ("/scratch/me", None),
        ("", None),
    ],
)
def test_variable_in_a_variable_is_said(value: str, shown: str | None) -> None:
    """Values are exported as they are, on Slurm as here: `$USER` would stay `$USER`."""
    for key in ("env", "cluster.env"):
        cluster = Cluster(kind=ClusterKind.slurm, env={"T": value} if key != "env" else {})
        made = plan(env={"T": value} if key == "env" else {}, cluster=cluster)
        found = find_plan_mistakes(made)
        assert [one.key for one in found] == ([] if shown is None else [f"{key}.T"])
        for one in found:
            assert one.message.startswith(f"{shown} in {key}.T is not expanded")
            assert "${oc.env:" in one.hint


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"])
def test_variable_that_ranks_get_from_hpckit_is_said_to_have_no_effect(name: str) -> None:
    """Dropped in silence, a site's own address or port would be looked for in vain."""
    for key in ("env", "cluster.env"):
        cluster = Cluster(kind=ClusterKind.slurm, env={name: "1"} if key != "env" else {})
        (found,) = find_plan_mistakes(plan(env={name: "1"} if key == "env" else {}, cluster=cluster))
        assert found.key == f"{key}.{name}"
        assert "has no effect: each rank gets its own" in found.message
    assert find_plan_mistakes(plan(env={"MASTERS": "1", "NCCL_DEBUG": "INFO"})) == ()


def test_what_was_typed_for_slurm_is_named_once() -> None:
    """All of it in one remark, in one order, whatever it was prefixed with."""
    words = (
        *("+resources.additional_parameters.x=1", "resources.timeout_min=5", "cluster=local"),
        *("train:cluster.setup=[a:b]", "++cluster.modules=[cuda]", "params.partition=3"),
    )
    (found,) = find_plan_mistakes(plan(*words))
    assert (
        "nothing reads cluster.modules, cluster.setup, resources.timeout_min, "
        "resources.additional_parameters: there" in found.message
    )


def test_what_files_say_for_slurm_is_not_named() -> None:
    """An experiment that is meant for the cluster is tried here without a remark."""
    asked = Resources(timeout_min=60, partition="gpu", mem_gb=4)
    assert find_plan_mistakes(plan("experiment=big", resources=asked)) == ()
    typed = plan("resources.timeout_min=60", kind=ClusterKind.slurm, resources=asked)
    assert find_plan_mistakes(typed) == ()


IDLE: dict[str, dict[str, Any]] = {
    "observe.profile.ranks=[9]": {"observe": Observe(profile=Profile(ranks=[9]))},
    "tracker.project=x": {"tracker": Tracker(project="x")},
    "+notify.file=/x": {"notify": Notify(file="/x")},
    "recovery.on_straggler=move": {"recovery": Recovery(on_straggler=StragglerPolicy.move)},
}
BUSY: dict[str, dict[str, Any]] = {
    "observe.profile.ranks=[0]": {"observe": Observe(profile=Profile(at_step=1))},
    "tracker.project=x": {"tracker": Tracker(project="x", kind=TrackerKind.wandb)},
    "+notify.file=/x": {"notify": Notify(file="/x", events=[NoticeKind.failed])},
    "recovery.on_straggler=move": IDLE["recovery.on_straggler=move"]
    | {"resources": Resources(spare_nodes=1)},
    "recovery.on_straggler=warn": {},
}


@pytest.mark.parametrize("word", IDLE)
def test_word_that_changes_nothing_is_said_if_it_was_typed(word: str) -> None:
    """A value in a file may be meant for other launches."""
    (found,) = find_plan_mistakes(plan(word, **IDLE[word]))
    assert found.key == word.lstrip("+").partition("=")[0]
    assert found.message.startswith(f"{word.lstrip('+')} ")
    assert found.hint
    assert find_plan_mistakes(plan(**IDLE[word])) == ()


@pytest.mark.parametrize("word", BUSY)
def test_word_with_what_it_needs_is_not_said(word: str) -> None:
    """One spare node, one planned step, one event is enough."""
    assert find_plan_mistakes(plan(word, kind=ClusterKind.slurm, **BUSY[word])) == ()


def test_keys_of_a_configuration_are_dotted() -> None:
    """Leaves alone; an empty mapping and a list are none and one."""
    assert list_value_keys({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b", "d"}


def test_placeholders_are_looked_for_among_the_configured_keys() -> None:
    """`{lr}` is answered with the key that has it."""
    made = plan(entry_point=None, command="python train.py {lr}", params={"lr": 1})
    (found,) = find_plan_mistakes(made)
    assert "${params.lr}" in found.hint


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cd /p && uv sync --frozen", "uv sync"),
        ("uv --quiet run true", "uv --quiet run"),
        ("python3 -m pip install -e .", "python3 -m pip install"),
        ("pip3 install torch", "pip3 install"),
        ("conda env create -f e.yml", "conda env create"),
        ("mamba install numpy", "mamba install"),
        ("pixi run true", "pixi run"),
        ("source .venv/bin/activate  # made by uv sync", None),
        ("conda activate mine", None),
        ("export UV_CACHE=/x; module load pip", None),
    ],
)
def test_installing_in_every_job_of_a_sweep_is_said(line: str, said: str | None) -> None:
    """Jobs of an array would write one environment at the same time; a single job may."""
    settings = LaunchConfig(
        entry_point="t:main", cluster=Cluster(kind=ClusterKind.slurm, setup=["true", line, line])
    )
    point = SweepPoint(overrides=(), config=to_plain(settings), settings=settings)
    made = [
        build_launch_plan(
            points,
            identity=LaunchIdentity(id="demo", created_at=datetime(2026, 1, 1, tzinfo=UTC)),
            folder="/f",
            arguments=("launch",),
            python="/usr/bin/python3",
        )
        for points in ([replace(point, config={**point.config, "params": {"x": x}}) for x in (1, 2)], [point])
    ]
    found = [[one for one in find_plan_mistakes(one) if one.key.startswith("cluster.setup")] for one in made]
    assert [len(one) for one in found] == [0 if said is None else 1, 0]
    if said is not None:
        assert f"`{said}`" in found[0][0].message
