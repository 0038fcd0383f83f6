"""Promises of `checkpoint.weights`: no copy of a model keeps the weights it was built with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.conftest import Workshop, ranks
from tiers import thorough

from hpckit.model.launch import Checkpoint, Recovery
from hpckit.model.parallel.settings import Parallel
from hpckit.model.states import RunState

pytestmark = pytest.mark.training

PROGRAM = """
import copy, json, torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel
from hpckit import Plan

class Average:
    def __init__(self, model):
        self.shadow = {{name: one.detach().clone() for name, one in model.named_parameters()}}
    def state_dict(self):
        return {{"shadow": self.shadow}}
    def load_state_dict(self, state):
        for name, one in state["shadow"].items():
            self.shadow[name].copy_(one)

class Masters(torch.optim.SGD):
    def __init__(self, parameters):
        parameters = list(parameters)
        self.masters = [one.detach().float().clone() for one in parameters]
        super().__init__(parameters, lr=0.1)

def build():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

def values(tensors):
    local = [one.to_local() if isinstance(one, DTensor) else one for one in tensors]
    return sorted({{float(value) for one in local for value in one.detach().float().flatten()}})

def main(config, run):
    {body}
    for step in run.steps(3):
        run.log(found=json.dumps({{name: values(one) for name, one in found().items()}}))
"""
BUILT = "model = run.parallelize(build, Plan(units='[01]'))"
COPIES = """
    average = Average(model)
    reference = build() if run.layout.shard > 1 else copy.deepcopy(model)  # FSDP takes no deepcopy
    if run.layout.shard > 1:
        whole = {name: one.full_tensor() for name, one in model.state_dict().items()}
        reference.load_state_dict(whole)
    masters = Masters(model.parameters())
    run.state(average=average, masters=masters)
    def found():
        return dict(model=model.parameters(), average=average.shadow.values(),
                    reference=reference.parameters(), masters=masters.masters)"""
STATED = "torch.manual_seed(5); model = build()"
RIGHT = {
    "parallelize": f"{BUILT}; run.state(model=model)\n{COPIES}",
    "before state": f"{BUILT}\n{COPIES}\n    run.state(model=model)",
    "state": f"{STATED}; run.state(model=model)\n{COPIES}",
    "averaged": f"""{BUILT}; average = AveragedModel(model)
    run.state(model=model, average=average)
    found = lambda: dict(model=model.parameters(), average=average.module.parameters())""",
    "two": f"""{BUILT}; other = run.parallelize(build, Plan(units='[01]'))
    run.state(model=model, other=other)
    found = lambda: dict(model=model.parameters(), other=other.parameters())""",
}
WRONG = {
    "average": f"{STATED}; average = Average(model); run.state(model=model, average=average)",
    "reference": f"{STATED}; reference = copy.deepcopy(model); run.state(model=model)",
    "masters": f"{STATED}; masters = Masters(model.parameters()); run.state(model=model)",
    "half": f"{STATED}; half = copy.deepcopy(model).half(); run.state(model=model)",
    "list": f"{STATED}; own = [one.clone() for one in model.parameters()]; run.state(model=model)",
}


def seven(folder: Path, prefix: str = "") -> Path:
    """Write a file whose weights are all 7."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    state = {prefix + name: torch.full_like(one, 7.0) for name, one in model.state_dict().items()}
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / "seven.pt")
    return folder / "seven.pt"


def attempt(shop: Workshop, body: str, number: int = 1, prefix: str = "", **more: Any) -> Any:
    """Run the program, which begins with the file."""
    weights = str(seven(shop.project.parent / "weights", prefix))
    checkpoint = Checkpoint(weights=weights, interval_steps=1)
    code = PROGRAM.format(body=body)
    return shop.attempt(code, **ranks(number, checkpoint=checkpoint, **more))


@pytest.mark.parametrize(
    ("way", "layout", "number"),
    [
        ("parallelize", {}, 1),
        ("state", {}, 1),
        ("two", {}, 1),
        pytest.param("averaged", {}, 1, marks=thorough),
        pytest.param("before state", {}, 1, marks=thorough),
        ("before state", {"shard": 2}, 2),
        pytest.param("parallelize", {"pipeline": 2}, 2, marks=thorough),
        pytest.param("parallelize", {}, 2, marks=thorough),
    ],
)
def test_copy_of_a_model_has_the_weights_that_the_run_begins_with(
    workshop: Workshop, way: str, layout: dict[str, Any], number: int
) -> None:
    """Averages, references and an optimizer's own weights, also those made again by a restart."""
    if "pipeline" in layout:
        body = RIGHT[way].replace("run.state(average=average, masters=masters)", "pass")
    else:
        body = RIGHT[way]
    ended = attempt(
        workshop,
        body,
        number,
        parallel=Parallel(**layout),
        chaos=("kill rank=0 step=1",),
        recovery=Recovery(restarts={"signal": 1, "communication": 1}),
    )
    assert ended.record.state is RunState.completed, ended.record.failure
    assert ended.record.round == 1
    for name, found in json.loads(ended.record.metrics["found"]).items():
        assert found == [7.0], name


@pytest.mark.parametrize(
    "way", [one if one == "average" else pytest.param(one, marks=thorough) for one in WRONG]
)
def test_copy_that_would_keep_random_weights_is_refused(workshop: Workshop, way: str) -> None:
    """What is copied before the model is known to hpckit is named, with what to do."""
    ended = attempt(workshop, WRONG[way])
    assert ended.record.state is RunState.failed
    failure = ended.record.failure
    assert failure is not None
    assert "a copy of the model's 0.weight was made before its weights were loaded" in failure.message
    assert "after run.state(model=…)" in failure.message


def test_models_of_one_file_have_their_weights_when_they_are_registered(workshop: Workshop) -> None:
    """With names before their tensors: copies made after `run.state` have the file's numbers."""
    body = f"{STATED}; run.state(actor=model)\n{COPIES}"
    ended = attempt(workshop, body, prefix="actor.")
    assert ended.record.state is RunState.failed, "one model: the file's names are others"
    both = f"{STATED}; other = nn.Linear(1, 1); run.state(actor=model, other=other)\n{COPIES}"
    weights = seven(workshop.project.parent / "weights", "actor.")
    state = torch.load(weights) | {"other.weight": torch.ones(1, 1), "other.bias": torch.ones(1)}
    torch.save(state, weights.with_name("both.pt"))
    checkpoint = Checkpoint(weights=str(weights.with_name("both.pt")))
    ended = workshop.attempt(PROGRAM.format(body=both), **ranks(1, checkpoint=checkpoint))
    assert ended.record.state is RunState.completed, ended.record.failure
    assert {*map(tuple, json.loads(ended.record.metrics["found"]).values())} == {(7.0,)}
