"""One rank of a world that trains one step with a loss of some rows, beside one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from byte_model import ByteModel, plan
from byte_world import batch, make_run, run_cases
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def build(frozen: str = "") -> nn.Module:
    """Return the model that is trained; parameters whose name has `frozen` learn nothing."""
    model = ByteModel(blocks=4).double()
    for name, one in model.named_parameters():
        one.requires_grad_(not frozen or frozen not in name)
    return model


def flat(outputs: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """Return the cross entropy of all positions."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), **options)


def each(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each position that is not ignored."""
    return flat(outputs, targets, reduction="none")


def weights(targets: Tensor) -> Tensor:
    """Return what each position counts: 0 where it is ignored, else 0.5 to 1.5."""
    return (targets.flatten() != -100) * (0.5 + targets.flatten().remainder(3) / 2).double()


def weighted(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weighted sum and its weight."""
    own = weights(targets)
    return (each(outputs, targets) * own).sum(), own.sum()


LOSSES: dict[str, Callable[[Tensor, Tensor], Any] | None] = {
    "default": None,
    "pair": weighted,
    "no mean of a mask": flat,
    "mean": lambda o, t: each(o, t).mean(),
    "sum": lambda o, t: each(o, t).sum(),
    "max": lambda o, t: each(o, t).max(),
    "vector": each,
    "drawn": lambda o, t: each(o, t).mean() * torch.rand(()),
}
"""The losses that a step can be told to take."""


def ignoring(rows: int, which: str) -> tuple[Tensor, Tensor]:
    """Return a batch some of whose targets are ignored: more in each row, whole rows, or all."""
    inputs, targets = batch(rows, 0)
    targets = targets.clone()
    for row in range(rows):
        ignored = row * 16 // rows
        if which == "half":
            ignored = 16 if row < rows // 2 else 0
        targets[row, : 16 if which == "all" else ignored] = -100
    return inputs, targets


@cache
def expected(loss: str, frozen: str, rows: int, ignored: str) -> tuple[float, dict[str, Tensor]]:
    """Return the loss and the gradients of one process that has the whole batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = build(frozen)
    inputs, targets = ignoring(rows, ignored)
    value = whole_loss(loss, model(inputs), targets)
    torch.autograd.backward(value)
    learning = {name: one for name, one in model.named_parameters() if one.requires_grad}
    return float(value.detach()), {name: whole(one.grad) for name, one in learning.items()}


def whole_loss(loss: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of a whole batch."""
    if loss == "pair":
        value, weight = weighted(outputs, targets)
        return value / (weight or 1)
    if loss == "mean":
        return each(outputs, targets).mean()
    return flat(outputs, targets, reduction="sum") / (targets != -100).sum().clamp(min=1)


def trained(case: dict[str, Any]) -> dict[str, Any]:
    """Take two steps without zeroing between; return how far the result is from one process."""
    run = make_run(case)
    model = run.parallelize(lambda: build(case.get("frozen", "")), plan())
    inputs, targets = ignoring(case["rows"], case["ignored"])
    share = run.share(case["rows"])
    rows, loss = share.rows, LOSSES[case.get("loss", "default")]
    first = run.train_step(model, inputs[rows], targets[rows], loss=loss, share=share)
    value = run.train_step(model, inputs[rows], targets[rows], loss=loss, share=share)
    evaluated = run.evaluate(model, inputs[rows], targets[rows], loss=loss)
    wanted, gradients = expected(
        case.get("loss", "default"), case.get("frozen", ""), case["rows"], case["ignored"]
    )
    # The step's gradients were added twice.
    far = [
        float((whole(one.grad) - 2 * gradients[bare(name)]).norm())
        / max(float(gradients[bare(name)].norm()), 1e-3)
        for name, one in model.named_parameters()
        if one.requires_grad
    ]
    return {
        "loss": [float(value) - wanted, float(first) - wanted],
        "gradient": max(far),
        "evaluated": float(evaluated),
        "frozen": sorted(bare(n) for n, one in model.named_parameters() if one.grad is None),
        "wanted": wanted,
    }


def whole(tensor: Tensor | None) -> Tensor:
    """Return all of a tensor that is there."""
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def bare(name: str) -> str:
    """Return the name that a parameter has in the model of one process."""
    name = name.removeprefix("module.")
    return "embed.weight" if name == "head.weight" else name


if __name__ == "__main__":
    run_cases(trained)
