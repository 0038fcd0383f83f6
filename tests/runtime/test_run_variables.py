"""Promises of runtime.run_variables: what ranks see of the shell around, and of GPUs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from cli_world import Desk

from hpckit.model.launch import Cluster, ClusterKind, Resources
from hpckit.model.plan import SecretVariables
from hpckit.observe.gpu_choice import read_gpus_given_to_run
from hpckit.record.launches import load_run_settings
from hpckit.runtime.run_variables import run_variables

JOB = {"SLURM_JOB_ID": "7"}
WITH_GPUS = {**JOB, "SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}


def seen(
    desk: Desk, environ: dict[str, str], kind: ClusterKind, env: Any = None, **asked: Any
) -> dict[str, str]:
    """Return the environment of a run's ranks."""
    launch = desk.freeze(
        cluster=Cluster(kind=kind, gpus_per_node=8),
        resources=Resources(**asked),
        env=env or {},
        minute=next(_MINUTES),
    )
    settings, _ = load_run_settings(launch, 0)
    return run_variables(launch, 0, settings, SecretVariables(), environ)


_MINUTES = itertools.count()


def counted(environ: dict[str, str], count: int = 4) -> list[int]:
    """Return which of so many GPUs are counted as the run's."""
    choice = read_gpus_given_to_run(environ)
    return [one for one in range(count) if choice.includes_gpu(one, f"GPU-{one}", count)]


@pytest.mark.parametrize(
    ("environ", "asked", "env", "shown", "expected"),
    [
        ({}, {"gpus_per_node": 0}, {}, "", []),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, {"gpus_per_node": 0}, {}, "", []),
        ({}, {}, {}, None, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {}, {}, "1", [1]),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}, {}, "", []),
        ({}, {}, {"CUDA_VISIBLE_DEVICES": "3"}, "3", [3]),
        ({}, {"gpus_per_node": 0}, {"CUDA_VISIBLE_DEVICES": "3"}, "3", [3]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {}, {"CUDA_VISIBLE_DEVICES": "3"}, "3", [3]),
        ({}, {"gpus_per_node": 2}, {}, "0,1", [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "3,2,1"}, {"gpus_per_node": 2}, {}, "3,2", [2, 3]),
        ({}, {"gres": "gpu:1"}, {}, "0", [0]),
        (JOB, {}, {}, "", []),
        (WITH_GPUS, {"gpus_per_node": 1}, {}, "2", [2]),
        (WITH_GPUS, {}, {}, "2,3", [2, 3]),
    ],
)
def test_run_on_this_machine_sees_and_counts_the_same_gpus(
    desk: Desk,
    environ: dict[str, str],
    asked: dict[str, Any],
    env: dict[str, str],
    shown: str | None,
    expected: list[int],
) -> None:
    """As many as it asks for, those that its own variables name, or all if it says nothing."""
    found = seen(desk, environ, ClusterKind.local, env, **asked)
    assert found.get("CUDA_VISIBLE_DEVICES") == shown
    assert counted(found) == expected


@pytest.mark.parametrize(
    ("environ", "asked", "shown", "expected"),
    [
        (JOB, {"gpus_per_node": 0}, "", []),
        (JOB, {}, "", []),
        ({**JOB, "CUDA_VISIBLE_DEVICES": "0"}, {}, "", []),
        (WITH_GPUS, {"gpus_per_node": 2}, "2,3", [2, 3]),
        (WITH_GPUS, {"additional_parameters": {"gpus": 2}}, "2,3", [2, 3]),
        (WITH_GPUS, {}, "2,3", [2, 3]),
        (WITH_GPUS, {"gpus_per_node": 0, "exclusive": True}, "", [0, 1, 2, 3]),
        (JOB, {"exclusive": True}, None, [0, 1, 2, 3]),
        ({**JOB, "ROCR_VISIBLE_DEVICES": "1"}, {"gpus_per_node": 0}, "", []),
    ],
)
def test_job_sees_no_gpu_that_slurm_did_not_give(
    desk: Desk, environ: dict[str, str], asked: dict[str, Any], shown: str | None, expected: Any
) -> None:
    """A variable of the shell that launched gives none; a job alone on its node has all of it."""
    found = seen(desk, environ, ClusterKind.slurm, **asked)
    assert found.get("CUDA_VISIBLE_DEVICES") == shown
    assert counted(found) == expected
    if shown == "" and "ROCR_VISIBLE_DEVICES" in environ:
        assert found["ROCR_VISIBLE_DEVICES"] == ""


def test_variables_of_gpus_are_the_same_when_made_twice(desk: Desk) -> None:
    """An agent has them, and makes those of its ranks of them."""
    for kind, environ, asked in itertools.product(
        (ClusterKind.local, ClusterKind.slurm),
        ({}, JOB, WITH_GPUS, {"CUDA_VISIBLE_DEVICES": "1,0", "ROCR_VISIBLE_DEVICES": "2,3"}),
        ({}, {"gpus_per_node": 0}, {"gpus_per_node": 1}),
    ):
        once = seen(desk, environ, kind, **asked)
        assert counted(seen(desk, once, kind, **asked)) == counted(once)


def test_a_rank_does_not_end_as_a_prompt(desk: Desk) -> None:
    """PYTHONINSPECT of the launching shell would keep each rank, and fail it without input."""
    shown = seen(desk, {"PYTHONINSPECT": "1"}, ClusterKind.local)
    assert "PYTHONINSPECT" not in shown
    own = seen(desk, {}, ClusterKind.local, {"PYTHONINSPECT": "1"})
    assert own["PYTHONINSPECT"] == "1"
