"""One rank of a world that trains odd models, each compared with one process."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

import torch
from byte_world import make_run, run_cases
from runtime.parallel.models.odd_models import LOSSES, MODELS, OddModel, TiedEnds, batch, mean_loss, plan
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings

STEPS = 3


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
    model = run.parallelize(*MODELS[case["model"]])
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
        "seen": [module.seen for module in model.modules() if hasattr(module, "seen")],
    }


def whole(tensor: Any) -> Tensor:
    """Return all of a tensor."""
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found


def one_step(case: dict[str, Any]) -> dict[str, Any]:
    """Take one step and evaluate; return what is left in the model, and what could not be told."""
    run = make_run(case)
    model = run.parallelize(*MODELS[case["model"]])
    told: list[str] = []
    logger = logging.getLogger("hpckit.rank")
    logger.setLevel(logging.DEBUG)

    def keep(record: logging.LogRecord) -> bool:
        told.append(record.getMessage())
        return True

    logger.addFilter(keep)
    inputs, targets = batch(0)
    rows = run.share(len(inputs)).rows
    drawn = torch.get_rng_state()
    blocks = [*model.get_submodule("blocks").children()]
    for block in blocks:
        block.eval()
    try:
        run.train_step(model, inputs[rows], targets[rows])
    finally:
        logger.filters.clear()
    run.evaluate(model, inputs[rows], targets[rows])
    return {
        "told": told,
        "undrawn": torch.equal(drawn, torch.get_rng_state()),
        "modes": [one.training for one in (model, *blocks)],
        "calls": [float(one) for name, one in model.named_buffers() if name.endswith("calls")],
    }


def of_many_shapes(case: dict[str, Any]) -> dict[str, Any]:
    """Train on sequences of many lengths; return how many schedules of torch are kept."""
    run = make_run(case)
    model = run.parallelize(*MODELS["plain"])
    for length in range(4, 20):
        text = torch.zeros(4, length, dtype=torch.int64)
        run.train_step(model, text, text)
    pipeline: Any = run._parallel_models.find_training(model).model.pipeline  # noqa: SLF001  # nothing else tells
    return {"kept": len(pipeline._schedules)}  # noqa: SLF001


def two_models(case: dict[str, Any]) -> dict[str, Any]:
    """Save a model with tied ends and one without; return which tensors changed in between."""
    run = make_run(case)
    tied, ends = plan(tied=(("tokens.weight", "head.weight"),)), plan()
    objects = {"student": run.parallelize(TiedEnds, tied), "critic": run.parallelize(OddModel, ends)}
    checkpointer = Checkpointer(Path(case["folder"]), CheckpointSettings(layout=run.layout))
    checkpointer.tie(run._tied)  # noqa: SLF001  # as Run does
    checkpointer.save(objects, 1, 1, wait=True)
    before = {
        f"{model}.{name}": whole(value).clone()
        for model, one in objects.items()
        for name, value in one.state_dict().items()
    }
    with torch.no_grad():
        for parameter in nn.ModuleList(objects.values()).parameters():
            parameter.zero_()
    checkpointer.restore(objects)
    checkpointer.close()
    after = {
        f"{model}.{name}": whole(value)
        for model, one in objects.items()
        for name, value in one.state_dict().items()
    }
    return {"changed": [name for name, one in before.items() if not torch.equal(one, after[name])]}


def evaluated(case: dict[str, Any]) -> dict[str, Any]:
    """Return the loss of a model that is not trained."""
    run = make_run(case)
    model = run.parallelize(*MODELS[case["model"]])
    norm = run.clip_grad_norm_(model, 1.0)
    return {"values": [float(run.evaluate(model, *batch(0))), float(norm)]}


def tempered(case: dict[str, Any]) -> dict[str, Any]:
    """Set what the model is to do between steps; return the losses without dropout."""
    run = make_run(case)
    model: Any = run.parallelize(*MODELS["tempered"])
    inputs, targets = batch(0)
    run.train_step(model, inputs, targets)
    values = []
    for temperature in (1.0, 4.0):
        model.eval()
        model.temperature = temperature
        values += [float(run.train_step(model, inputs, targets))]
        model.train()
        values += [float(run.evaluate(model, inputs, targets))]
    drawn = [float(run.train_step(model, inputs, targets)) for _ in range(2)]
    return {"values": values, "drawn": drawn}


def with_losses(case: dict[str, Any]) -> dict[str, Any]:
    """Take a step with one loss after the other; return the values."""
    run = make_run(case)
    model = run.parallelize(*MODELS[case.get("model", "plain")])
    inputs, targets = batch(0)
    rows = run.share(len(inputs)).rows
    wanted: Any = {
        "tokens": targets[rows],
        "labels": targets[rows, 0],
        "dictionary": {"y": targets[rows]},
        "labels in a dictionary": {"y": targets[rows, 0]},
        "parts": (targets[rows], (targets[rows] > 2).float()),
        "nothing": None,
    }[case.get("targets", "tokens")]
    losses = [LOSSES[one] for one in case["losses"]]
    values = [run.train_step(model, inputs[rows], wanted, loss=loss) for loss in losses]
    return {"values": [float(one) for one in values]}


def early_optimizer(case: dict[str, Any]) -> dict[str, Any]:
    """Make the optimizer before the model is laid out; return how far a step moves the model."""
    run = make_run(case)
    early = OddModel()
    optimizer = torch.optim.SGD(early.parameters(), lr=0.1)
    model = run.parallelize(lambda: early, plan())
    inputs, targets = batch(0)
    rows = run.share(len(inputs)).rows
    run.train_step(model, inputs[rows], targets[rows])
    before = [whole(parameter).detach().clone() for parameter in model.parameters()]
    optimizer.step()
    pairs = zip(before, model.parameters(), strict=True)
    return {"moved": max(float((one - whole(other)).abs().max()) for one, other in pairs)}


def own_copies(case: dict[str, Any]) -> dict[str, Any]:
    """Save a plain model that ranks train by themselves, or together; return the warnings."""
    run = make_run(case)
    torch.manual_seed(7)
    model: nn.Module = nn.Linear(2, 2)
    model = nn.parallel.DistributedDataParallel(model) if case["wrapped"] else model
    checkpointer = Checkpointer(Path(case["folder"]), CheckpointSettings(layout=run.layout))
    warnings = []
    for step in range(3):
        outcome = checkpointer.save({"model": model}, step, step, wait=True)
        assert outcome is not None
        warnings.append(outcome.warning)
        torch.autograd.backward(model(torch.full((1, 2), 1.0 + run.rank)).sum())
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad)
    checkpointer.close()
    return {"warnings": warnings}


WAYS = {
    "tempered": tempered,
    "evaluated": evaluated,
    "losses": with_losses,
    "compared": compared,
    "one step": one_step,
    "many shapes": of_many_shapes,
    "two models": two_models,
    "early optimizer": early_optimizer,
    "own copies": own_copies,
}


def tried(case: dict[str, Any]) -> dict[str, Any]:
    """Try one case in its way."""
    return WAYS[case.get("way", "compared")](case)


if __name__ == "__main__":
    run_cases(tried)
