"""One rank of a world that trains odd models, each compared with one process."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from adversarial.odd_models import MODELS, batch, mean_loss
from byte_world import rank_of_world, run_cases
from torch import Tensor
from torch.distributed.tensor import DTensor

from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import Parallel, Recompute
from hpckit.runtime.rank.parallel_run import ParallelRun

STEPS = 3


def make_run(case: dict[str, Any]) -> ParallelRun:
    """Return this rank's run."""
    settings = dict(case.get("parallel", {}))
    if "recompute" in settings:
        settings["recompute"] = Recompute(settings["recompute"])
    return ParallelRun(
        info=rank_of_world(),
        device=torch.device("cpu"),
        seed=7,
        layout=Layout(**case["layout"]),
        parallel=Parallel(**settings),
    )


@cache
def expected(name: str, parts: int) -> tuple[list[float], dict[str, Tensor]]:
    """Return losses and the state of one process that takes each batch in so many parts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = MODELS[name][0]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        total = 0.0
        for some, wanted in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
            loss = mean_loss(model(some), wanted) / parts
            torch.autograd.backward(loss)
            total += float(loss.detach())
        optimizer.step()
        losses.append(total)
    return losses, model.state_dict()


def compared(case: dict[str, Any]) -> dict[str, Any]:
    """Train some steps; return how far losses and state are from those of one process."""
    run = make_run(case)
    build, plan = MODELS[case["model"]]
    model = run.parallelize(build, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(step)
        rows = run.share(len(inputs)).rows
        optimizer.zero_grad()
        losses.append(float(run.train_step(model, inputs[rows], targets[rows])))
        optimizer.step()
    wanted, state = expected(case["model"], case.get("parallel", {}).get("microbatches", 1))
    return {
        "loss": max(abs(one - other) for one, other in zip(losses, wanted, strict=True)),
        "state": max(
            float((whole(one).double() - state[name.removeprefix("module.")].double()).abs().max())
            for name, one in model.state_dict().items()
        ),
        "seen": [one.seen for one in model.modules() if hasattr(one, "seen")],
    }


def whole(tensor: Any) -> Tensor:
    """Return all of a tensor."""
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found


def of_many_shapes(case: dict[str, Any]) -> dict[str, Any]:
    """Train on sequences of many lengths; return how many schedules of torch are kept."""
    run = make_run(case)
    model = run.parallelize(*MODELS["plain"])
    for length in range(4, 20):
        text = torch.zeros(4, length, dtype=torch.int64)
        run.train_step(model, text, text)
    pipeline: Any = run._models.training(model).model.pipeline  # noqa: SLF001  # nothing else tells
    return {"kept": len(pipeline._schedules)}  # noqa: SLF001


WAYS = {"compared": compared, "many shapes": of_many_shapes}


def tried(case: dict[str, Any]) -> dict[str, Any]:
    """Try one case in its way."""
    return WAYS[case.get("way", "compared")](case)


if __name__ == "__main__":
    run_cases(tried)
