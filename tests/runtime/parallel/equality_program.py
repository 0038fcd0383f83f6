"""One rank of a world that trains a model in many layouts, each compared with one process."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from byte_model import ByteModel, plan
from byte_world import batch, make_run, run_cases
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor

from hpckit.runtime.rank.parallel_run import ParallelRun


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy, as a user would write it."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def blocks(dtype: torch.dtype) -> int:
    """Return how many blocks the model has: in float64 enough for all stages, as more add nothing.

    In float32 as many as make the order of sums matter as little as it does in a model of use.
    """
    return 4 if dtype == torch.float64 else 8


def reference(dtype: torch.dtype, steps: int, rows: int) -> dict[str, Any]:
    """Train in one process; return losses, norms and the gradients of the first step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = ByteModel(blocks=blocks(dtype)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    losses, norms, gradients = [], [], {}
    for step in range(steps):
        inputs, targets = batch(rows, step)
        loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if step == 0:
            gradients = {n: copied(p.grad) for n, p in model.named_parameters()}
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        losses.append(float(loss))
    return {"losses": losses, "norms": norms, "gradients": gradients}


def trained(case: dict[str, Any], expected: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Train in a layout; return how far it is from the reference."""
    if backend := case.get("backend"):  # of units that are compiled, instead of torch's default
        with mock.patch.object(torch, "compile", partial(torch.compile, backend=backend)):
            return trained({**case, "backend": None}, expected, dtype)
    run = make_run(case)
    wrong = case.get("wrong", "")
    normed = wrong == "query norm"
    model = run.parallelize(lambda: ByteModel(blocks(dtype), normed=normed).to(dtype), plan())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    rows = case.get("rows", 8)
    computed = []
    if run.parallel.compile:
        # Of one piece of code only so many variants are compiled in a process, over all cases.
        torch._dynamo.reset()  # noqa: SLF001  # in torch's documentation
    counters["stats"].clear()

    def counting(outputs: Tensor, targets: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # the first step also calls it to check it
            computed.append(len(outputs))
        return cross_entropy(outputs, targets)

    far, first = {"loss": 0.0, "norm": 0.0, "gradient": 0.0}, {}
    for step, wanted in enumerate(expected["losses"]):
        inputs, targets = batch(rows, step)
        share = run.share(rows)
        mine = share.rows
        optimizer.zero_grad()
        if wrong:
            go_wrong(run, model, wrong, rows)
        loss = run.train_step(model, inputs[mine], targets[mine], share=share, loss=counting)
        if step == 0:
            first = gradients_far(model, expected["gradients"])
        norm = run.clip_grad_norm_(model, 0.5)
        optimizer.step()
        far["loss"] = max(far["loss"], abs(float(loss) - wanted))
        far["norm"] = max(far["norm"], abs(float(norm) / expected["norms"][step] - 1))
    far["gradient"] = max(first.values())
    inputs, targets = batch(rows, 0)
    value = run.evaluate(model, inputs[mine], targets[mine])
    weighted = float(value) * share.weight * run.data_size
    return {
        **far,
        "names": len(first),
        "computed": computed,
        "graphs": counters["stats"]["unique_graphs"],
        "evaluated": run.mean(weighted),
        "elements": sum(local(p).numel() for p in model.parameters()),
    }


def go_wrong(run: ParallelRun, model: nn.Module, wrong: str, rows: int) -> None:
    """Make a step that has to be refused."""
    inputs, targets = batch(rows, run.rank if wrong == "own batches" else 0)
    share = run.share(rows)
    match wrong:
        case "no share":
            run.train_step(model, inputs[share.rows], targets[share.rows])
        case "other share":
            run.train_step(model, inputs[share.rows], targets[share.rows], share=run.share(6))
        case "odd sequence":
            run.train_step(model, inputs[:, :14], targets[:, :14])
        case "called directly":
            model(inputs)
        case "another model":
            run.train_step(nn.Linear(2, 2), inputs, targets)
        case "batches part":
            for step in range(4):
                inputs, targets = batch(rows, step + (run.rank if step > 1 else 0))
                run.train_step(model, inputs, targets)
                assert step < 3, "the fourth step is looked at, whose batches differ"
        case _:
            run.train_step(model, inputs[share.rows], targets[share.rows])


def gradients_far(model: nn.Module, expected: dict[str, Tensor]) -> dict[str, float]:
    """Return by name how far gradients are from those expected, as a share of their norm."""
    far = {}
    for name, one in model.named_parameters():
        bare = name.removeprefix("module.")
        bare = "embed.weight" if bare == "head.weight" else bare
        found = one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad
        assert found is not None, name
        far[bare] = float((found - expected[bare]).norm() / expected[bare].norm())
    return far


def copied(gradient: Tensor | None) -> Tensor:
    """Return a copy of a gradient that is there."""
    assert gradient is not None
    return gradient.clone()


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


REFERENCES: dict[Any, dict[str, Any]] = {}


def compared(case: dict[str, Any]) -> dict[str, Any]:
    """Train in a layout, and alone if that was not done yet."""
    dtype = getattr(torch, case.get("dtype", "float64"))
    key = (dtype, case.get("steps", 2), case.get("rows", 8))
    if key not in REFERENCES:
        REFERENCES[key] = reference(*key)
    return trained(case, REFERENCES[key], dtype)


if __name__ == "__main__":
    run_cases(compared)
