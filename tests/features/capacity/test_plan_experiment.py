"""Promises of `hpckit plan` for an experiment: its own model is counted, in its own layout."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tiers import thorough

pytestmark = pytest.mark.training

MODEL = """
from torch import nn
from hpckit import Plan

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

def train(config, run):
    model = run.parallelize(Model, Plan(units="blocks.*"))
    raise SystemExit

def without(config, run):
    pass

def fails(config, run):
    if config:
        raise ValueError("no data")
    run.parallelize(Model)
"""
PARAMETERS = 4 * (64 * 64 + 64)
OF = ("experiment=function", "cluster=slurm", "--gpu", "A100-80")


@pytest.fixture
def planned(shell: Any) -> Any:
    """Return a runner of `plan --json` in a folder with a model."""
    (shell.cwd / "model.py").write_text(MODEL)

    def run(*words: str) -> Any:
        said = shell("plan", *OF, "entry_point=model:train", *words, "--json")
        assert said.code == 0, said.err
        return json.loads(said.out)

    return run


@pytest.mark.parametrize(
    ("parallel", "gpus", "shards"),
    [
        ("fsdp", 8, 8),
        pytest.param("none", 2, 1, marks=thorough),
        pytest.param("pipeline", 4, 4, marks=thorough),
    ],
)
def test_states_are_those_of_the_models_own_parameters(
    planned: Any, parallel: str, gpus: int, shards: int
) -> None:
    """Parameters, gradients and Adam's state are counted in 32 bits, in whole or cut."""
    found = planned(f"parallel={parallel}", "--gpus", str(gpus))
    assert (found["parameters"], found["gpus"]) == (PARAMETERS, gpus)
    assert found["memory"]["weights"] == 4 * PARAMETERS // shards
    assert found["memory"]["gradients"] == 4 * PARAMETERS // shards
    assert found["memory"]["optimizer"] == 8 * PARAMETERS // shards
    assert found["layout"]["shard" if parallel == "fsdp" else "pipeline"] in (1, shards)
    assert found["memory"]["activations"] is None
    assert found["step_s"] is None
    assert "--model" in found["unknown"]


@thorough
def test_counted_model_is_launched_as_it_was_counted(planned: Any) -> None:
    """The words are those that were given, with the nodes; whether all of it fits is unknown."""
    found = planned("parallel=fsdp", "--gpus", "16")
    assert found["fits"] is None
    assert found["overrides"][:2] == ["experiment=function", "cluster=slurm"]
    assert found["overrides"][-3:] == [
        *("resources.nodes=2", "resources.tasks_per_node=8", "resources.gpus_per_node=8")
    ]


@thorough
def test_optimizer_of_less_state_needs_less(planned: Any) -> None:
    """SGD keeps one number for each of Adam's two."""
    adam, sgd = planned("--gpus", "1"), planned("--gpus", "1", "--optimizer", "sgd")
    assert 2 * sgd["memory"]["optimizer"] == adam["memory"]["optimizer"]


def test_plan_of_an_experiment_leaves_nothing(planned: Any, shell: Any) -> None:
    """No launch is made, and no file; nor is it bound to the one machine that is here."""
    before = sorted(shell.cwd.iterdir())
    planned("parallel=fsdp", "--gpus", "16", "cluster=local")
    assert sorted(shell.cwd.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("entry_point=model:without",), "cannot be counted: it does not call run.parallelize"),
        pytest.param(
            ("entry_point=model:fails",),
            "before run.parallelize, it ended with ValueError: no data",
            marks=thorough,
        ),
        pytest.param(("entry_point=trane:train",), "there is no module trane", marks=thorough),
        pytest.param(
            ("parallel=fsdp", "experiment=digits"),
            "digits:train) cannot be counted: it does not",
            marks=thorough,
        ),
        (("entry_point=model:train", "--model", "gpt2"), "--model does not go with"),
        (("entry_point=model:train", "--search"), "--search does not go with"),
        (("entry_point=model:train", "--gpus", "12"), "--gpus 12 do not fill whole nodes"),
        (("entry_point=model:train", "--gpus", "0"), "--gpus 0"),
        pytest.param(
            ("entry_point=model:train", "parallel=pipeline", "--gpus", "8"), "8 stages", marks=thorough
        ),
        (("experiment=command", "command=[true]"), "only the command knows"),
    ],
)
def test_experiment_that_cannot_be_planned_is_one_error(
    shell: Any, words: tuple[str, ...], error: str
) -> None:
    """The error names the reason, and there is no traceback."""
    (shell.cwd / "model.py").write_text(MODEL)
    said = shell("plan", *OF[2:], *OF[:2], *words)
    assert said.code == 2
    assert error in said.err
    for never in ("Traceback", "INTERNAL ASSERT", "importlib"):
        assert never not in said.err
