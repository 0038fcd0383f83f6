"""Which parameters a loss takes by itself, and not through the outputs of the model.

`run.train_step` sees to the gradients of the model's parameters. What a loss function has or takes
besides these would be trained otherwise in each layout, and nothing would tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hpckit.values import dataclass, field

_REACHED = (
    "return such terms from forward, among the outputs, and add them up there; or choose a layout "
    "with parallel.pipeline=1. parallel.self_check=false trains it unchecked"
)
_OWN = (
    "put them into the model that run.parallelize lays out, and let forward return what they make. "
    "parallel.self_check=false trains it unchecked"
)


@dataclass(slots=True, kw_only=True)
class LossGraph:
    """Finds the parameters that a loss takes by itself, not through the outputs of the model.

    With pipeline stages, those of other ranks would be missed. What is no part of the model gets
    neither the mean over ranks nor the weight of a sum.

    `of_model` and `of_others` tell the parameters that `run.train_step` knows: those of the model,
    and of other laid out ones. `pipelined` says that other ranks have other parts of the model;
    `alone` that no other rank has a part of the batch.
    """

    of_model: Callable[[Tensor], bool]
    of_others: Callable[[Tensor], bool]
    pipelined: bool
    alone: bool
    _direct: list[Tensor] = field(default_factory=list)
    _through: set[int] = field(default_factory=set)

    def trace(self, value: Tensor, outputs: Any, targets: Any) -> None:
        """Look at the graph of a loss of these, before its backward pass."""
        given = [leaf for leaf in leaves_of((outputs, targets)) if isinstance(leaf, Tensor)]
        ends = {tensor.grad_fn for tensor in given} - {None}
        known = {id(tensor) for tensor in given}
        below = _leaves_below(value.grad_fn, ends)
        self._direct = [node for node in below if id(node) not in known]
        if self._direct:
            every = (_leaves_below(end, set()) for end in ends)
            self._through = {id(one) for found in every for one in found}

    def problem(self, *, pair: bool) -> tuple[str, str]:
        """Return what is wrong, and what to do, after the backward pass; empty if nothing is."""
        direct, self._direct = self._direct, []
        if self.pipelined:
            reached = [node for node in direct if self._is_of_a_stage(node)]
            if reached:
                problem = (
                    f"loss(outputs, targets) takes {_shapes(reached)} of the model by itself, and "
                    "only the last pipeline stage calls it: what other stages have would be missed"
                )
                return problem, _REACHED
        own = [node for node in direct if self._is_its_own(node)]
        others = [node for node in own if not self.of_others(node)]
        if pair and own:
            problem = (
                f"loss(outputs, targets) returns a sum with its weight, and has {_shapes(own)} "
                "that the model does not have: their gradients would not be divided by the weight"
            )
            return problem, f"return a mean over rows; or {_OWN}"
        if others and not self.alone:
            problem = (
                f"loss(outputs, targets) has {_shapes(others)} that the model does not have: each "
                "rank would train its own"
            )
            return problem, _OWN
        return "", ""

    def _is_of_a_stage(self, one: Tensor) -> bool:
        return id(one) in self._through or (_is_sharded(one) and self.of_model(one))

    def _is_its_own(self, one: Tensor) -> bool:
        if id(one) in self._through or self.of_model(one):
            return False
        # FSDP gathers parameters into others, which have no memory after the backward pass.
        return _is_sharded(one) or one.untyped_storage().size() > 0


def _is_sharded(one: Tensor) -> bool:
    """Return whether this is a DTensor; to import that would take each rank half a second."""
    return hasattr(one, "full_tensor")


def _leaves_below(node: Any, ends: Collection[Any]) -> Iterator[Tensor]:
    """Yield what learns of what a value depends on, but for what is below these ends."""
    seen, waiting = set(ends), [node]
    while waiting:
        one = waiting.pop()
        if one is None or one in seen:
            continue
        seen.add(one)
        found = getattr(one, "variable", None)
        if isinstance(found, Tensor):
            yield found
        waiting += [below for below, _ in one.next_functions]


def _shapes(parameters: Sequence[Tensor]) -> str:
    """Return how many parameters these are, and the shape of the first."""
    first = f"a parameter {list(parameters[0].shape)}"
    return first if len(parameters) == 1 else f"{len(parameters)} parameters, such as {first}"


def leaves_of(value: Any) -> list[Any]:
    """Return all that is in tuples, lists and dictionaries."""
    found: list[Any] = torch.utils._pytree.tree_leaves(value)  # noqa: SLF001  # torch has no other
    return found
