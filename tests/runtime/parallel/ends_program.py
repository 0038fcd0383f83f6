"""One rank of a world whose model has large modules outside of its units, beside one process."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from byte_model import LENGTH, WIDTH, Block
from byte_world import make_run, run_cases
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpckit import Plan

WORDS, ROWS = 256, 8


class EndsModel(nn.Module):
    """Embedding and head of their own, each nearly as large as a unit, used in several ways."""

    def __init__(self, way: str = "called") -> None:
        super().__init__()
        self.way = way
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = None if way.startswith("read") else nn.Linear(WIDTH, WORDS)
        if self.head is not None and way == "tied":
            self.head.weight = self.tokens.weight
        if way == "listed":
            self.lists = nn.ParameterList([torch.ones(WORDS, WIDTH) / WIDTH])
        if way == "unused":
            self.spare = nn.Linear(WIDTH, WORDS)

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return logits [rows, length, words]."""
        scale = self.tokens.weight.pow(2).mean() + 1.0 if self.way == "read first" else 1.0
        hidden = self.tokens(hidden).to(self.tokens.weight.dtype) * scale
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.norm(hidden)
        if self.head is None:
            return F.linear(hidden, self.tokens.weight)
        logits: Tensor = self.head(hidden)
        match self.way:
            case "called twice":
                logits = logits + self.head(hidden * 2)
            case "listed":
                logits = logits + F.linear(hidden, self.lists[0])
            case "added to":
                logits += 1
                logits *= 2
            case "capped":
                logits = 3 * torch.tanh(logits.float() / 3).to(logits.dtype)
            case "shifted":
                logits = logits + torch.arange(WORDS, dtype=logits.dtype) / WORDS
        return logits


def plan(way: str) -> Plan:
    """Return the plan of such a model."""
    tied = (("tokens.weight", "head.weight"),) if way == "tied" else ()
    head = () if way.startswith("read") else ("head",)
    return Plan(
        units="blocks.*",
        tied=tied,
        columns=(
            *("blocks.*.attention.query", "blocks.*.attention.key", "blocks.*.attention.value"),
            *("blocks.*.up", *head),
        ),
        rows=("blocks.*.attention.out", "blocks.*.down", "tokens"),
        sequence=("blocks.*.attention_norm", "blocks.*.feed_norm", "norm"),
    )


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets [rows, length]; some targets do not count."""
    generator = torch.Generator().manual_seed(step)
    text = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=generator)
    targets = text[:, 1:].clone()
    targets[::3, ::2] = -100
    return text[:, :-1], targets


def reference(way: str, steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """Return the losses of one process, and its last gradients."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = EndsModel(way).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        torch.autograd.backward(loss)
        losses.append(float(loss.detach()))
        if step < steps - 1:
            optimizer.step()
    named = model.named_parameters()
    return losses, {name: one.grad for name, one in named if one.grad is not None}


class Watch:
    """Notes which modules outside of the units are gathered while a unit runs."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.seen: set[tuple[str, ...]] = set()
        for name, one in model.named_modules():
            if isinstance(one, Block) or name == "head":
                one.register_forward_hook(self.after)

    def after(self, _: nn.Module, __: Any, output: Tensor) -> None:
        """Look now, and when the gradient of this output comes."""
        self.look()
        if output.requires_grad:
            output.register_hook(lambda _: self.look())  # type: ignore[no-untyped-call]

    def look(self) -> None:
        """Note what is gathered now."""
        kept = {name: one for name, one in self.model.named_modules() if "block" not in name}
        whole = [
            name
            for name, one in kept.items()
            if any(type(each) is nn.Parameter for each in one._parameters.values())  # noqa: SLF001
        ]
        self.seen.add(tuple(sorted(whole)))


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes how many elements the largest tensor had that was made on this rank."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation of plain tensors; others end in these."""
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.elements = max(self.elements, *(tensor.numel() for tensor in tensors), 0)
        return made


def own_loss(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross entropy, and its weight, as a user may write it."""
    summed = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")
    return summed, (targets != -100).sum()


def trained(case: dict[str, Any]) -> dict[str, Any]:
    """Take three steps with a look in between; return how far they are from one process."""
    run, way = make_run(case), case.get("way", "called")
    half = "params" in case.get("parallel", {})
    dtype = torch.float32 if half else torch.float64
    model = run.parallelize(lambda: EndsModel(way).to(dtype), plan(way))
    watch = Watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted, gradients = reference(way, 3)
    far, evaluated, largest = [], [], Largest()
    loss_of = own_loss if case.get("own") else None
    for step, expected in enumerate(wanted):
        inputs, targets = batch(step)
        share = run.share(ROWS)
        mine = share.rows
        evaluated.append(float(run.evaluate(model, inputs[mine], targets[mine], loss=loss_of)))
        optimizer.zero_grad()
        with largest if step else nullcontext():  # the first step checks more
            loss = run.train_step(model, inputs[mine], targets[mine], share=share, loss=loss_of)
        far.append(abs(float(loss) - expected))
        if step < len(wanted) - 1:
            optimizer.step()
    return {
        "loss": max(far),
        "gradient": max(gradients_far(model, gradients).values()),
        "evaluated": evaluated,
        "gathered": sorted(watch.seen),
        "wanted": wanted,
        "largest": largest.elements,
    }


def gradients_far(model: nn.Module, expected: dict[str, Tensor]) -> dict[str, float]:
    """Return by name how far gradients are from those expected, as a share of their norm."""
    far = {}
    for name, one in model.named_parameters():
        bare = name.removeprefix("module.")
        if bare not in expected:
            continue
        assert one.grad is not None, name
        found = one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad
        far[bare] = float((found - expected[bare]).norm() / expected[bare].norm())
    return far


if __name__ == "__main__":
    run_cases(trained)
