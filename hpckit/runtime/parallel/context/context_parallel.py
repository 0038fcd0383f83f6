"""Attention when each sequence is cut over the ranks of the context axis.

Each rank has two pieces of every sequence, one from its beginning and one from its end, so that
causal attention is as much work on each. Keys and values go round all ranks; queries stay. It works
with what calls `torch.nn.functional.scaled_dot_product_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hpckit.errors import UsageError
from hpckit.runtime.parallel.context.ring_attention import Ring, RingAttention
from hpckit.values import dataclass, field


@dataclass(slots=True)
class ContextShards:
    """Which positions of each sequence a rank has. `place` and `size` are those on the axis."""

    group: dist.ProcessGroup
    place: int
    size: int
    _positions: Tensor | None = field(default=None)
    """Those of this rank, in the sequences of now."""
    is_apart: bool = field(default=False, init=False)
    """Whether this rank has whole sequences, for now."""
    _mode: _RingedAttention = field(init=False)

    def __post_init__(self) -> None:
        """Make the mode that all modules share."""
        self._mode = _RingedAttention(self)

    def find_own_positions(self, length: int, device: torch.device) -> Tensor:
        """Return the positions of this rank in sequences of this length: int [length / size].

        They hold for the attention that follows. Raises UsageError if the length cannot be cut.
        """
        if length % (2 * self.size):
            raise UsageError(
                f"sequences of {length} positions cannot be cut into {2 * self.size} equal pieces",
                hint=f"parallel.context={self.size} gives each rank two pieces: take a multiple of "
                f"{2 * self.size}",
            )
        if self._positions is None or len(self._positions) * self.size != length:
            self._positions = self._positions_of_all_ranks(length)[self.place].to(device)
        return self._positions

    def _positions_of_all_ranks(self, length: int) -> Tensor:
        """Return the positions of all ranks: int [size, length / size]."""
        pieces = torch.arange(length).view(2 * self.size, -1)
        return torch.stack([torch.cat([pieces[one], pieces[-1 - one]]) for one in range(self.size)])

    def gather_sequence(self, own: Tensor) -> Tensor:
        """Return all positions of what this rank has some of: [rows, own, …]; collective.

        What has another length is returned as it is.
        """
        if self._positions is None or own.shape[1] != len(self._positions):
            return own
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own.contiguous(), group=self.group)
        everyone = self._positions_of_all_ranks(own.shape[1] * self.size).to(own.device)
        return torch.cat(parts, dim=1)[:, everyone.flatten().argsort()]

    @contextmanager
    def disable_ring_attention(self) -> Iterator[None]:
        """Have attention look at what this rank has alone: whole sequences."""
        self.is_apart = True
        try:
            yield
        finally:
            self.is_apart = False

    def install_ring_attention(self, modules: Sequence[nn.Module]) -> None:
        """Have the attention of these modules, and of what they call, look at all positions."""
        for module in modules:
            module.forward = _wrap_forward(self._mode, module.forward)

    def pause_ring_during_hooks(self, units: Iterable[nn.Module]) -> None:
        """Do not look at what hooks call before and after the forward of joined modules.

        FSDP's call several functions for each parameter, and a mode costs microseconds for each.
        """
        for unit in units:
            unit.register_forward_pre_hook(self._mode.pause, prepend=True)
            unit.register_forward_hook(self._mode.resume, always_call=True)

    def build_ring(self, *tensors: Tensor) -> Ring:
        """Return what attention of these goes round: [batch, heads, own, width].

        Raises UsageError for tensors of other positions than this rank's.
        """
        own = None if self._positions is None else len(self._positions)
        if {tensor.shape[-2] for tensor in tensors} != {own}:
            raise UsageError(
                "attention was called outside of run.train_step and run.evaluate, or on something "
                "other than this rank's part of the sequence",
                hint="with parallel.context, call the model only through run.train_step",
            )
        return Ring(group=self.group, place=self.place, size=self.size)


_topmost: Callable[[], object] = getattr(torch.overrides, "_get_current_function_mode", bool)
"""Returns the mode that sees a call first; torch has no public name for it."""


class _RingedAttention(TorchFunctionMode):
    """Calls attention round a context's ranks in place of torch's."""

    def __init__(self, shards: ContextShards) -> None:
        super().__init__()
        self._shards = shards
        self._paused: list[bool] = []
        self.is_on = False

    def pause(self, *_: object) -> None:
        """Look at nothing until `resume`; a mode that was entered later stays the topmost one."""
        self._paused.append(self.is_on and _topmost() is self)
        if self._paused[-1]:
            self.is_on = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def resume(self, *_: object) -> None:
        """Look again, if `pause` ended it."""
        if self._paused and self._paused.pop():
            self.__enter__()  # type: ignore[no-untyped-call]
            self.is_on = True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],  # torch's signature
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _WITH_ATTENTION:
            raise UsageError(
                f"{func.__name__} attends to this rank's part of each sequence only",
                hint="call torch.nn.functional.scaled_dot_product_attention in place of "
                "nn.MultiheadAttention, or choose parallel.context=1",
            )
        if func is not F.scaled_dot_product_attention or self._shards.is_apart:
            return func(*args, **(kwargs or {}))
        return _attend_in_ring(self._shards, *args, **(kwargs or {}))


_WITH_ATTENTION = frozenset(
    {
        F.multi_head_attention_forward,
        torch._native_multi_head_attention,  # noqa: SLF001  # what nn.MultiheadAttention calls
        torch._transformer_encoder_layer_fwd,  # noqa: SLF001  # what its encoder layers call
    }
)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it sends and receives
def _attend_in_ring(  # noqa: PLR0913, PLR0917  # torch's signature
    shards: ContextShards,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002  # likewise
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if attn_mask is not None or dropout_p:
        what = "a mask of its own" if attn_mask is not None else "dropout"
        raise UsageError(
            f"attention with {what} cannot be cut along the sequence",
            hint="leave it out, use is_causal=True, or choose parallel.context=1",
        )
    attention = RingAttention(
        ring=shards.build_ring(query, key, value), is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return attention(query, key, value)


def _wrap_forward(mode: _RingedAttention, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def forward_in_mode(*args: Any, **kwargs: Any) -> Any:
        if mode.is_on:  # of the module that calls this one: each call would go through it twice
            return forward(*args, **kwargs)
        mode.is_on = True
        try:
            with mode:
                return forward(*args, **kwargs)
        finally:
            mode.is_on = False

    return forward_in_mode
