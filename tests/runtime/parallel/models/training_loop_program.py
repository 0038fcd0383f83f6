"""One rank of a world whose training loops do more than the usual, each beside one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from byte_world import make_run, run_cases
from runtime.parallel.models.odd_models import OddModel, TiedEnds, batch, mean_loss, plan
from torch import Tensor, nn

from hpckit.errors import UsageError
from hpckit.runtime.rank.parallel_run import ParallelRun

STEPS = 4

Turn = Callable[["Side", int], float]
"""One step of a loop: it returns the loss."""


class Side:
    """A model that is trained: by a run, or without one as a single process would."""

    def __init__(self, build: Callable[[], nn.Module], run: ParallelRun | None, tied: Any) -> None:
        self.run = run
        if run is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(7)
                self.model = build()
        else:
            self.model = run.parallelize(build, plan(tied=tied))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    def rows(self, step: int) -> tuple[Tensor, Tensor]:
        """Return this side's part of a batch."""
        inputs, targets = batch(step)
        own = slice(None) if self.run is None else self.run.share(len(inputs)).rows
        return inputs[own], targets[own]

    def learn(self, inputs: Tensor, targets: Tensor, loss: Any = None) -> float:
        """Add the gradients of a batch."""
        if self.run is not None:
            return float(self.run.train_step(self.model, inputs, targets, loss=loss))
        value = mean_loss(self.model(inputs), targets)
        torch.autograd.backward(value)
        return float(value.detach())

    def clip(self) -> float:
        """Clip the gradients; return their norm."""
        if self.run is not None:
            return float(self.run.clip_grad_norm_(self.model, 1.0))
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), 1.0))


def looks_before_clipping(side: Side, step: int) -> float:
    """Compute an accuracy between the gradients and their use."""
    side.optimizer.zero_grad()
    loss = side.learn(*side.rows(step))
    with torch.no_grad():
        side.model(side.rows(step)[0])
    norm = side.clip()
    side.optimizer.step()
    return loss + norm


def looks_after_the_step(side: Side, step: int) -> float:
    """Clear gradients by the model, not by the optimizer."""
    side.model.zero_grad()
    loss = side.learn(*side.rows(step))
    side.optimizer.step()
    with torch.no_grad():
        side.model(side.rows(step)[0])
    return loss


def skips_a_bad_batch(side: Side, step: int) -> float:
    """Catch what a batch raises on all ranks, and go on with the next one."""
    inputs, targets = side.rows(step)
    if step:
        try:
            side.learn(inputs, torch.full_like(targets, 1000))
        except (IndexError, RuntimeError):
            side.model.zero_grad()
    loss = side.learn(inputs, targets)
    norm = side.clip()
    side.optimizer.step()
    side.optimizer.zero_grad()
    return loss + norm


def adds_beside_a_bad_batch(side: Side, step: int) -> float:
    """Keep the gradients of a good batch though the next one is bad."""
    side.optimizer.zero_grad()
    loss = side.learn(*side.rows(step))
    inputs, targets = side.rows(step + 100)
    wrong = torch.full_like(targets, 1000)
    if side.run is not None:
        with suppress(IndexError, RuntimeError):
            side.learn(inputs, wrong)
    side.optimizer.step()
    return loss


def changes_what_learns(side: Side, step: int, *, learns: bool) -> float:
    """Freeze or unfreeze the blocks after the first step."""
    if step == 1:
        for name, one in side.model.named_parameters():
            if "blocks" in name:
                one.requires_grad_(learns)
    side.optimizer.zero_grad()
    loss = side.learn(*side.rows(step))
    norm = side.clip()
    side.optimizer.step()
    return loss + norm


def unfreezes_ends(side: Side, step: int) -> float:
    """Let a tied weight learn after the first step."""
    if step == 1:
        for parameter in side.model.parameters():
            parameter.requires_grad = True
    side.optimizer.zero_grad()
    loss = side.learn(*side.rows(step))
    side.optimizer.step()
    return loss


def has_uneven_rows(side: Side, step: int) -> float:
    """Take a last batch of which ranks have different numbers of rows."""
    inputs, targets = side.rows(step)
    if step == 1 and side.run is not None and side.run.rank:
        inputs, targets = inputs[:1], targets[:1]
    return side.learn(inputs, targets, loss=mean_loss)


def has_no_rows(side: Side, step: int) -> float:
    """Take a batch without rows."""
    inputs, targets = side.rows(step)
    return side.learn(inputs[:0], targets[:0]) if step == 1 else side.learn(inputs, targets)


def has_targets_of_other_rows(side: Side, step: int) -> float:
    """Lose some inputs of a later batch, with a loss that spreads any targets over outputs."""
    inputs, targets = side.rows(step)
    if step == 1:
        inputs = inputs[:1]
    return side.learn(inputs, targets, loss=spread_loss)


def evaluates_targets_of_other_rows(side: Side, step: int) -> float:
    """Lose some inputs of what a model is evaluated on."""
    inputs, targets = side.rows(step)
    if side.run is None:
        return 0.0
    return float(side.run.evaluate(side.model, inputs[:1], targets, loss=spread_loss))


def skips_targets_of_other_rows(side: Side, step: int) -> float:
    """Catch what such a batch raises, and go on with the next one."""
    inputs, targets = side.rows(step)
    if step == 1 and side.run is not None:
        with suppress(UsageError):
            side.learn(inputs[:1], targets)
        if side.run.layout.pipeline > 1:  # one row has no two microbatches
            with suppress(UsageError):
                side.learn(inputs[:1], targets[:1])
    side.optimizer.zero_grad()
    loss = side.learn(inputs, targets)
    side.optimizer.step()
    return loss


def spread_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean distance of rows, whatever their number."""
    return (outputs.mean((1, 2)) - targets.double().mean(1)).square().mean()


TURNS: dict[str, Turn] = {
    "looks before clipping": looks_before_clipping,
    "looks after the step": looks_after_the_step,
    "skips a bad batch": skips_a_bad_batch,
    "adds beside a bad batch": adds_beside_a_bad_batch,
    "unfreezes": partial(changes_what_learns, learns=True),
    "freezes": partial(changes_what_learns, learns=False),
    "unfreezes ends": unfreezes_ends,
    "uneven rows": has_uneven_rows,
    "no rows": has_no_rows,
    "targets of other rows": has_targets_of_other_rows,
    "evaluates targets of other rows": evaluates_targets_of_other_rows,
    "skips targets of other rows": skips_targets_of_other_rows,
}


def build(kind: str) -> nn.Module:
    """Return a model in float64, parts of which may be frozen."""
    model: nn.Module = (TiedEnds if kind == "tied" else OddModel)().double()
    for name, one in model.named_parameters():
        frozen = {"frozen": "blocks" in name, "tied": "tokens" in name or "head" in name}
        if frozen.get(kind, False):
            one.requires_grad = False
    return model


def looped(case: dict[str, Any]) -> dict[str, Any]:
    """Run a loop by hpckit and by one process; return how far the losses are apart."""
    kind, turn = case.get("model", "plain"), TURNS[case["loop"]]
    tied = (("tokens.weight", "head.weight"),) if kind == "tied" else ()
    losses = []
    for run in (make_run(case), None):
        side = Side(partial(build, kind), run, tied)
        losses.append([turn(side, step) for step in range(STEPS)])
    return {"apart": max(abs(one - other) for one, other in zip(*losses, strict=True))}


if __name__ == "__main__":
    run_cases(looped)
