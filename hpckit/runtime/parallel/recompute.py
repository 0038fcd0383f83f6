"""Units that the backward pass computes again, from the same buffers and generators.

A unit that changes its buffers, such as a running mean, would change them twice otherwise, and the
second time compute from other ones; one that draws numbers would have the gradients of others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from hpckit.model.parallel.settings import Parallel, Recompute
from hpckit.runtime.generators import capture_generator_states, preserve_generators
from hpckit.runtime.parallel.kept_state import find_module_generators
from hpckit.values import dataclass, field

_Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
_Forward = Callable[..., Any]
_BufferName = tuple[str, str]
"""The name of a module in its unit, and that of its buffer."""


def recompute_and_compile_unit(unit: nn.Module, settings: Parallel) -> None:
    """Have a unit recomputed and compiled as configured, in place.

    A wrapper module would change the names of parameters.
    """
    kept = RecomputedState(
        unit=unit, own=find_module_generators(unit), selective=settings.recompute is Recompute.selective
    )
    match settings.recompute:
        case Recompute.none:
            if settings.compile:
                unit.compile()
        case Recompute.blocks:
            unit.forward = RecomputedForward(
                unit.forward, kept.make_recompute_contexts, compiled=settings.compile
            )
        case Recompute.selective:
            # It keeps results of operations, which in compiled code only the compiler sees.
            contexts = _make_selective_contexts if settings.compile else kept.make_recompute_contexts
            unit.forward = RecomputedForward(unit.forward, contexts)
            if settings.compile:
                unit.compile()


class RecomputedForward:
    """The forward of a unit, whose results are computed again in the backward pass.

    A copy of the unit, such as an average of its weights, has one that computes with the copy's.
    """

    def __init__(
        self, forward: _Forward, contexts: Callable[[], _Contexts], *, compiled: bool = False
    ) -> None:
        self._forward, self._contexts, self._compiled = forward, contexts, compiled
        self._computed = torch.compile(forward) if compiled else forward

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return what the unit's own forward does."""
        return checkpoint(self._computed, *inputs, use_reentrant=False, context_fn=self._contexts, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> RecomputedForward:
        """Return the forward of the copied unit, whose methods are bound to the copy."""
        forward, contexts = copy.deepcopy((self._forward, self._contexts), memo)
        return RecomputedForward(forward, contexts, compiled=self._compiled)


def _make_selective_contexts() -> Any:
    aten = torch.ops.aten
    products = [aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default]
    return create_selective_checkpoint_contexts(products)  # type: ignore[no-untyped-call]


@dataclass(slots=True, kw_only=True)
class RecomputedState:
    """The buffers of a unit, which it may change in its forward pass, and where generators are.

    Buffers that it has changed before, in this mode, are copied for each forward pass; all of them
    for the first one. `own` are generators of the unit's own.
    """

    unit: nn.Module
    own: Sequence[Any]
    selective: bool
    _changing: dict[bool, set[_BufferName]] = field(default_factory=dict)

    def make_recompute_contexts(self) -> _Contexts:
        """Return the contexts of a forward pass, and of computing it again."""
        first, second = _make_selective_contexts() if self.selective else (nullcontext(), nullcontext())
        mode = self.unit.training
        known = self._changing.get(mode)
        held = self._list_buffers()
        before = {name: one.detach().clone() for name, one in held.items() if known is None or name in known}
        changing = self._changing.setdefault(mode, set())
        watching = self._learn_changing_buffers(held, before, changing, compared=known is None)
        drawing = preserve_generators(self.own, begin=capture_generator_states(self.own))
        return _enter_all_contexts(watching, first), _enter_all_contexts(
            drawing, self._swap_in_buffer_copies(before), second
        )

    def _list_buffers(self) -> dict[_BufferName, Tensor]:
        return {
            (place, key): one
            for place, module in self.unit.named_modules()
            for key, one in module._buffers.items()  # noqa: SLF001  # torch has no other way
            if one is not None
        }

    @contextmanager
    def _learn_changing_buffers(
        self,
        held: Mapping[_BufferName, Tensor],
        before: dict[_BufferName, Tensor],
        changing: set[_BufferName],
        *,
        compared: bool,
    ) -> Iterator[None]:
        """Learn which buffers change; forget the copies of the others.

        Batch normalisation changes its own without torch's counter of changes: they count always,
        and in the first pass all are compared by their values, too.
        """
        versions = {name: one._version for name, one in held.items()}  # noqa: SLF001
        yield
        now = self._list_buffers()
        changing |= self._list_running_statistics() & before.keys()
        changing |= {
            name
            for name, one in held.items()
            if now.get(name) is not one
            or one._version != versions[name]  # noqa: SLF001
            or (compared and _values_differ(before[name], one))
        }
        for name in [name for name in before if name not in changing]:
            del before[name]

    def _list_running_statistics(self) -> set[_BufferName]:
        return {
            (place, key)
            for place, module in self.unit.named_modules()
            if module.training and getattr(module, "track_running_stats", False)
            for key in ("running_mean", "running_var")
        }

    @contextmanager
    def _swap_in_buffer_copies(self, before: Mapping[_BufferName, Tensor]) -> Iterator[None]:
        live = []
        for (place, key), earlier in before.items():
            buffers = self.unit.get_submodule(place)._buffers  # noqa: SLF001
            live.append((buffers, key, buffers.get(key)))
            buffers[key] = earlier.clone()
        try:
            yield
        finally:
            for buffers, key, now in live:
                buffers[key] = now


def _values_differ(before: Tensor, now: Tensor) -> bool:
    """Return whether values differ; tensors that have none, or are no plain ones, do not."""
    return type(now) is Tensor and not now.is_meta and not torch.equal(before, now)


@contextmanager
def _enter_all_contexts(*contexts: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
