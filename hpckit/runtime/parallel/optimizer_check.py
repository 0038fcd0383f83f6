"""Whether optimizers update what is trained, not the parameters that a model had before.

Sharding and cutting matrices put new parameters into a model. An optimizer that was made before has
the old ones, which get no gradients: it would train nothing, and nothing would tell.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import LBFGS
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from hpckit.errors import UsageError
from hpckit.values import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedParameter:
    """A parameter that has another one in its place; it lives only if something else holds it."""

    name: str
    earlier: weakref.ref[nn.Parameter]

    @property
    def is_used(self) -> bool:
        """Whether a backward pass gave it a gradient."""
        one = self.earlier()
        return one is not None and one.grad is not None


@dataclass(eq=False, slots=True, weakref_slot=True)
class OptimizerCheck:
    """Looks at each optimizer of this process once, before its first step, while this is kept.

    `stages` is the number of ranks over which models are cut into pipeline stages.
    """

    stages: int = 1
    _replaced: list[tuple[str, str, weakref.ref[nn.Parameter]]] = field(default_factory=list)
    _seen: weakref.WeakSet[Optimizer] = field(default_factory=weakref.WeakSet)

    def __post_init__(self) -> None:
        own = weakref.ref(self)

        def before(optimizer: Optimizer, *_: Any) -> None:
            check = own()
            if check is not None:
                check.look(optimizer)

        handle = register_optimizer_step_pre_hook(before)
        weakref.finalize(self, handle.remove)

    def add(self, replaced: Iterable[ReplacedParameter], model: nn.Module) -> None:
        """Take note of what a model no longer has, since it is laid out."""
        kind = type(model).__name__.removeprefix("FSDP")
        self._replaced += [(state.name, kind, state.earlier) for state in replaced]

    def look(self, optimizer: Optimizer) -> None:
        """Raise UsageError if an optimizer has parameters of before, or needs all of a model."""
        if optimizer in self._seen:
            return
        self._seen.add(optimizer)
        if self.stages > 1 and isinstance(optimizer, LBFGS):
            raise UsageError(
                f"{type(optimizer).__name__} weighs all parameters against each other, and with "
                "parallel.pipeline each rank has those of its stages only",
                hint="choose an optimizer that treats each parameter by itself, such as AdamW, or "
                "a layout with parallel.pipeline=1",
            )
        known = {id(one()): (name, kind) for name, kind, one in self._replaced if one() is not None}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in known:
                    name, kind = known[id(parameter)]
                    raise UsageError(
                        f"{type(optimizer).__name__} updates {name} as {kind} had it before "
                        "run.parallelize(), which put another parameter in its place: it would "
                        "train nothing",
                        hint="make the optimizer after it: model = run.parallelize(build, plan); "
                        f"{type(optimizer).__name__}(model.parameters())",
                    )
