"""Promises of the layout in `status`: what the ranks themselves report, in real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpckit.model import events
from hpckit.model.parallel.layout import Layout
from hpckit.record.attempts import read_attempt_events
from hpckit.record.launches import load_launch, read_run_records

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys
import torch
from torch.distributed.device_mesh import init_device_mesh

def main(config, run):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
    model[1].bias = torch.nn.Parameter(torch.zeros(3))
    if run.layout.shard > 1:
        from torch.distributed.fsdp import fully_shard
        fully_shard(model, mesh=init_device_mesh("cpu", (run.layout.shard,)))
    fixed = os.path.exists(os.path.join(os.environ["HPCKIT_PROJECT"], "fixed"))
    if not fixed and run.attempt > 1:
        sys.exit(3)
    optimizer = torch.optim.SGD(model.parameters())
    run.state(model=model, tied=torch.nn.ModuleList([model[0]]), optimizer=optimizer)
    for step in run.steps(2):
        if step == 1 and not fixed:
            sys.exit(4)
"""
QUICK = ("experiment=function", "cluster=local", "resources.tasks_per_node=2")
WHOLE = 4 * 8 + 8 + 8 * 3 + 3


def run_of(shell: Any) -> dict[str, Any]:
    """Return the run of the latest launch, as `status --json` has it."""
    (run,) = json.loads(shell("status", "--json").out)["runs"]
    return dict(run)


def test_layout_is_reported_by_ranks_and_kept_over_attempts(shell: Any) -> None:
    """Null before the first loop; an attempt that dies earlier keeps what the one before said."""
    (shell.cwd / "job.py").write_text(SCRIPT)
    said = shell("launch", "--wait", *QUICK, "entry_point=job:main")
    assert said.code == 1, said.err
    first = run_of(shell)
    assert (first["layout"]["replicate"], first["replicas"]) == (2, 2)
    assert first["parameters_per_rank"] == [WHOLE, WHOLE]
    assert first["model_parameters"] == WHOLE
    assert f"layout: replicate 2; {WHOLE} parameters on each rank" in shell("status").out
    assert shell("resume", "parallel=fsdp", "--wait").code == 1
    assert run_of(shell)["layout"] == first["layout"], "the second attempt came to no step"
    (shell.cwd / "fixed").touch()
    assert shell("resume", "--wait").code == 0
    last = run_of(shell)
    sizes = {"replicate": 1, "pipeline": 1, "shard": 2, "context": 1, "tensor": 1}
    assert (last["layout"], last["replicas"]) == (sizes, 1)
    assert sum(last["parameters_per_rank"]) == last["model_parameters"] == WHOLE
    assert "of 67 parameters on each rank" in shell("status").out
    check_events(Path(shell.outputs[0]))


def check_events(folder: Path) -> None:
    """Check that every round has one event at most, and that readers without a cache agree."""
    launch = load_launch(folder)
    told = [list(read_attempt_events(launch.paths.run(0).attempt(number))) for number in (1, 2, 3)]
    counts = [sum(isinstance(one, events.LayoutReported) for one in some) for some in told]
    assert counts == [1, 0, 1]
    (record,) = read_run_records(launch)
    assert record.layout is not None
    assert record.layout.layout == Layout(shard=2)


def test_command_that_reports_nothing_has_no_layout(shell: Any) -> None:
    """What is configured is not what is reported."""
    words = ("experiment=command", "cluster=local", "command=true", "parallel=fsdp")
    assert shell("launch", "--wait", *words).code == 0
    run = run_of(shell)
    fields = ("layout", "replicas", "parameters_per_rank", "model_parameters")
    assert [run[field] for field in fields] == [None] * 4
    assert "layout" not in shell("status").out
