"""Promises of `hpckit check` about models: what does not fit its layout is named before it waits.

Each check runs the user's function in a process of its own, up to its first training step.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

from hpckit.operations import check, model_check

pytestmark = pytest.mark.training

MODEL = """
import os
import torch
from torch import nn
from hpckit import Plan

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(self.up(x).relu())

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

PLAN = Plan(units="blocks.*", columns="blocks.*.up", rows="blocks.*.down",
            heads={"blocks.*": (4, 2)})

def train(config, run):
    print("{not an answer}")
    open("written.txt", "w").write(open("words.txt").read())
    (run.folder / "also.txt").write_text("x")
    model = run.parallelize(Model, PLAN)
    run.state(model=model)
    share = run.share(config.rows)
    batch = torch.zeros(config.rows, 8)[share.rows][: config.get("seen", 99)]
    for step in run.steps(3):
        run.train_step(model, batch, batch.long(), share=share)
        raise SystemExit("a real step would come here")

def by_hand(config, run):
    model = run.parallelize(Model, PLAN)
    for step in run.steps(3):
        model(torch.zeros(2, 8))

def built(config, run):
    run.parallelize(Model(), PLAN)

def misspelt(config, run):
    run.parallelize(Model, Plan(units="blocks.*", columns="blocks.*.upp", rows="blocks.*.down"))

def early(config, run):
    raise ValueError("no data here")

def keyless(config, run):
    run.parallelize(Model, PLAN)
    print(config.learning_rate)

def unfit(config, run):
    run.parallelize(lambda: nn.ModuleDict({"blocks": nn.ModuleList([Block()])}), PLAN)

def without(config, run):
    pass

def stuck(config, run):
    os.fork()
    while True:
        pass
"""
NO_TORCH = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
"""
NODES = ("resources.nodes=1", "resources.tasks_per_node=8", "code.snapshot=false")
WORDS = ("experiment=function", "cluster=local", *NODES, "+rows=16")


@pytest.fixture(name="project")
def project_fixture(shell: Any) -> Any:
    """Return a shell in a project with a model."""
    (shell.cwd / "train.py").write_text(MODEL)
    (shell.cwd / "words.txt").write_text("some words")
    return shell


def checked(project: Any, *words: str, function: str = "train") -> tuple[int, dict[str, Any]]:
    """Return exit code and document of a check."""
    given = words if "cluster=slurm" in words else (*WORDS, *words)
    said = project("check", "--json", *given, f"entry_point=train:{function}")
    return said.code, json.loads(said.out)


def messages(document: dict[str, Any]) -> str:
    """Return what a check found, as lines of severity, key and message."""
    return "\n".join(f"{one['severity']} {one['key']}: {one['message']}" for one in document["findings"])


def test_a_model_that_fits_is_counted_and_nothing_is_written(project: Any) -> None:
    """What a rank of each stage holds, in elements and bytes; the project stays as it was."""
    before = sorted(project.cwd.rglob("*"))
    code, found = checked(project, "parallel=layout", "parallel.pipeline=2", "parallel.shard=4")
    assert (code, found["findings"], found["unchecked"]) == (0, [], [])
    (model,) = found["models"]
    elements = 4 * (8 * 32 + 32 + 32 * 8 + 8)
    assert (model["run"], model["parameters"]) == (0, elements)
    assert [one["stage"] for one in model["stages"]] == [0, 1]
    assert sum(one["parameters"] for one in model["stages"]) * 4 == elements
    for one in model["stages"]:
        held = 4 * one["parameters"]
        assert (one["parameter_bytes"], one["gradient_bytes"]) == (held, held)
        assert one["adam_bytes"] == 2 * held
    assert sorted(project.cwd.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("parallel=tensor",), "parallel.tensor=8 does not divide the 4 attention heads"),
        pytest.param(("parallel=pipeline",), "4 units of the plan cannot make 8 stages", marks=thorough),
        pytest.param(
            ("parallel=fsdp", "rows=4"),
            "a batch of 4 rows cannot be shared out over 8 data ranks",
            marks=thorough,
        ),
        pytest.param(("parallel=fsdp", "+seen=1"), "the batch has 1 rows, and the share 2", marks=thorough),
        pytest.param(
            ("parallel=fsdp", "parallel.microbatches=3"),
            "a batch of 2 rows on this rank cannot be cut into parallel.microbatches=3",
            marks=thorough,
        ),
    ],
)
def test_what_does_not_fit_is_an_error(project: Any, words: tuple[str, ...], message: str) -> None:
    """By the plan, and by the first batch: exit code 2, with the words of the real run."""
    code, found = checked(project, *words)
    assert code == 2
    assert f"error parallel: {message}" in messages(found)


@thorough
def test_a_key_that_is_missing_is_an_error(project: Any) -> None:
    """The run is frozen with this configuration: it would end there after waiting in the queue."""
    code, found = checked(project, "parallel=fsdp", function="keyless")
    assert code == 2
    said = "error parallel: train:keyless ends where the configuration has no 'learning_rate' here"
    assert said in messages(found)
    assert "set it: +KEY=VALUE" in str(found["findings"])


@thorough
def test_a_loop_of_ones_own_over_stages_is_an_error(project: Any) -> None:
    """It would fail at its first step: a rank has some stages of the model only."""
    words = ("parallel=layout", "parallel.pipeline=2", "parallel.shard=4")
    code, found = checked(project, *words, function="by_hand")
    assert code == 2
    assert "error parallel: this Model was called, but with parallel.pipeline" in messages(found)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("early", "run.parallelize, and ended with ValueError: no data here (train.py"),
        pytest.param(
            "without",
            "the model could not be checked in its layout: it does not call run.parallelize",
            marks=thorough,
        ),
        pytest.param("by_hand", "the model fits its layout, but no batch was checked: ", marks=thorough),
    ],
)
def test_code_that_does_not_come_so_far_is_one_warning(project: Any, function: str, message: str) -> None:
    """Which may be right: data, devices or earlier runs may not be here."""
    code, found = checked(project, "parallel=fsdp", function=function)
    assert code == 0
    assert [one["severity"] for one in found["findings"]] == ["warning"]
    assert message in messages(found)


@thorough
def test_code_that_takes_too_long_is_ended(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the processes that it has started."""
    monkeypatch.setattr(model_check, "PATIENCE", timedelta(seconds=8))
    code, found = checked(project, "parallel=fsdp", function="stuck")
    assert code == 0
    assert "did not reach a training step within 8 s" in messages(found)
    assert not running("hpckit.runtime.model_check.process", project.cwd)


def running(words: str, project: Path) -> list[int]:
    """Return the processes with these words that were started for a project."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            line, environ = (one / "cmdline").read_text(), (one / "environ").read_text()
        except OSError:
            continue
        if words in line.replace("\0", " ") and f"HPCKIT_PROJECT={project}\0" in environ:
            found.append(int(one.name))
    return found


def test_no_model_runs_nothing(project: Any) -> None:
    """Nor does plain data parallelism, in which every model fits."""
    code, found = checked(project, "parallel=tensor", "--no-model")
    assert (code, found["findings"], found["models"]) == (0, [], [])
    code, found = checked(project, "parallel=none", function="early")
    assert (code, found["findings"], found["models"]) == (0, [], [])


def test_without_torch_there_is_one_warning(project: Any, tmp_path: Path) -> None:
    """The Python of the run lacks it: the rest of the check holds."""
    (tmp_path / "sitecustomize.py").write_text(NO_TORCH)
    project.environ["PYTHONPATH"] = str(tmp_path)
    code, found = checked(project, "parallel=fsdp")
    assert code == 0
    (one,) = found["findings"]
    assert one["severity"] == "warning"
    assert "needs PyTorch" in one["message"]


@thorough
def test_each_layout_of_a_sweep_is_checked_first(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more runs than are checked, one of each layout comes first; the rest are named."""
    monkeypatch.setattr(model_check, "MODELS", 2)
    words = ("-m", "rows=16,32", "parallel=fsdp,pipeline", "resources.tasks_per_node=4")
    code, found = checked(project, *words)
    assert code == 0, messages(found)
    assert [one["layout"] for one in found["models"]] == ["shard 4", "pipeline 4"]
    assert found["unchecked"] == ["the models of 2 more runs, 2-3: those of 2 are checked at most"]


HUGE = """
import torch
from torch import nn
from hpckit import Plan

class Huge(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(65536, 65536) for _ in range(4))

    def forward(self, x):
        return self.blocks[0](x)

def train(config, run):
    model = run.parallelize(Huge, Plan(units="blocks.*"))
    optimizer = getattr(torch.optim, config.optimizer)(model.parameters(), lr=0.1)
    run.state(model=model, optimizer=optimizer)
    batch = torch.zeros(8, 65536)[run.share(8).rows]
    for step in run.steps(1):
        run.train_step(model, batch, batch.long())
"""


@pytest.mark.parametrize(
    ("optimizer", "gpu", "refused"),
    [
        pytest.param("AdamW", "v100", True, marks=thorough),
        pytest.param("SGD", "v100", False, marks=thorough),
        pytest.param("AdamW", "a100", False, marks=thorough),
    ],
)
def test_states_that_no_such_gpu_holds_are_an_error(
    shell: Any, optimizer: str, gpu: str, *, refused: bool
) -> None:
    """A rank of 8 holds 32 GiB and some with AdamW: too much for 32, but not for 80 or with SGD."""
    (shell.cwd / "huge.py").write_text(HUGE)
    words = ("experiment=function", "entry_point=huge:train", "cluster=slurm", *NODES)
    asked = (f"resources.gres=gpu:{gpu}:8", f"+optimizer={optimizer}", "parallel=fsdp")
    said = shell("check", "--json", *words, *asked)
    found = json.loads(said.out)
    assert found["models"], found
    wrong = "GiB for parameters, gradients and Adam's state alone, and a GPU of type v100"
    assert (wrong in messages(found)) is refused
    assert said.code == (2 if refused else 0)


@pytest.mark.parametrize(
    ("gpu", "more", "refused"),
    [
        ("v100", (), True),
        pytest.param("v100", ("--no-model",), False, marks=thorough),
        pytest.param("a100", (), False, marks=thorough),
    ],
)
def test_launch_refuses_a_model_that_surely_does_not_fit(
    shell: Any, monkeypatch: pytest.MonkeyPatch, gpu: str, more: tuple[str, ...], *, refused: bool
) -> None:
    """Before it is submitted, which fails here as there is no Slurm."""
    monkeypatch.setattr(check, "_SECONDS", model_check.PATIENCE)  # for a machine that is busy
    (shell.cwd / "huge.py").write_text(HUGE)
    words = ("experiment=function", "entry_point=huge:train", "cluster=slurm", *NODES)
    asked = (f"resources.gres=gpu:{gpu}:8", "+optimizer=AdamW", "parallel=fsdp")
    said = shell("launch", *words, *asked, *more)
    assert (" GiB for parameters, gradients and Adam's state alone" in said.err) is refused
    assert ("sbatch" in said.err and said.code == 3) is not refused
    assert said.code == 3 or shell.outputs == []


@thorough
def test_launch_shows_no_more_of_a_model_than_errors(project: Any) -> None:
    """Code that does not come so far here may do so on the cluster: a launch says nothing of it."""
    words = ("experiment=function", "entry_point=train:early", "cluster=slurm", *NODES)
    said = project("launch", *words, "resources.gres=gpu:a100:8", "parallel=fsdp", "+rows=16")
    assert said.code == 3, said.err
    assert "could not be checked" not in said.err


@thorough
def test_model_is_checked_in_its_fallback_layouts(project: Any) -> None:
    """Each number of nodes that has one: what fits is listed, what does not is an error of it."""
    words = (
        *("experiment=function", "cluster=slurm", "code.snapshot=false", "+rows=5"),
        *("resources.nodes=4", "resources.tasks_per_node=1", "resources.min_nodes=2"),
        *("parallel=fsdp", "parallel.fallback=[{replicate: 1, pipeline: nodes}]"),
    )
    code, found = checked(project, *words)
    assert [(m["layout"], m["nodes"], m["fallback"]) for m in found["models"]] == [
        ("shard 4", 4, False),
        ("pipeline 3", 3, True),
    ], messages(found)
    assert code == 2
    assert "error parallel.fallback: on 2 nodes (parallel.fallback): " in messages(found)
    assert "a batch of 5 rows on this rank cannot be cut" in messages(found)


@pytest.mark.parametrize(
    ("function", "said", "hint"),
    [
        pytest.param(
            "built",
            "run.parallelize() got a model, a Model",
            "run.parallelize(lambda: Model(…), pl",
            marks=thorough,
        ),
        ("misspelt", "blocks.*.upp matches no module", "did you mean blocks.*.up? its modules are"),
    ],
)
def test_slips_of_a_call_of_parallelize_are_named(project: Any, function: str, said: str, hint: str) -> None:
    """A model instead of what builds it, and a typing mistake: what is meant is said."""
    found = project("check", *WORDS, f"entry_point=train:{function}", "parallel=tensor", "--json")
    (finding,) = json.loads(found.out)["findings"]
    assert finding["severity"] == "error"
    assert said in finding["message"]
    assert finding["hint"].startswith(hint)
