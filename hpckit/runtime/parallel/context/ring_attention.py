"""Attention to keys and values that lie on several ranks, which pass them on in a ring.

Each rank has an equal part of every sequence. Its queries look at one part after the other, and
what they take is merged by the logarithms of the sums of each softmax (Liu et al. 2023, "Ring
Attention with Blockwise Transformers"). Besides its own part, a rank holds the one that it looks at
and the one under way; the backward pass goes round the ring again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from hpckit.runtime.parallel.context.attention_block import (
    AttentionBlock,
    head_width_for_kernels,
    pad_to_width,
)
from hpckit.values import dataclass, replace

_ALL = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The ranks that share sequences; `place` is this one's among `size`."""

    group: dist.ProcessGroup
    place: int
    size: int

    def start_passing_to_next_rank(self, sent: Tensor) -> _Arriving:
        """Begin to send a tensor to the next rank; collective.

        The previous rank sends one of the same shape.
        """
        received = torch.empty_like(sent)
        onwards, back = (self.place + 1) % self.size, (self.place - 1) % self.size
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent, None, self.group, group_peer=onwards),
                dist.P2POp(dist.irecv, received, None, self.group, group_peer=back),
            ]
        )
        return _Arriving(works=works, sent=sent, received=received)


@dataclass(slots=True, kw_only=True)
class _Arriving:
    """What the previous rank sends, while this one sends something else."""

    works: list[dist.Work]
    sent: Tensor | None
    received: Tensor

    def wait_for_tensor(self) -> Tensor:
        """Return what has arrived; what was sent is no longer kept."""
        for work in self.works:
            work.wait()
        self.works, self.sent = [], None
        return self.received


@dataclass(frozen=True, slots=True, kw_only=True)
class RingAttention:
    """How queries look at the parts of all ranks.

    With `is_causal` each rank has two pieces of a sequence of 2 x size: one as far from its
    beginning as the other is from its end.
    """

    ring: Ring
    is_causal: bool
    scale: float | None = None
    enable_gqa: bool = False

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return what this rank's queries take; collective.

        Arguments and result are those of `scaled_dot_product_attention`. All ranks have the same shapes.
        """
        # Torch itself refuses types and shapes, and has its type of autocast, for no queries, too.
        nothing: Tensor = torch.ops.aten.scaled_dot_product_attention(
            *(tensor[..., :0, :] for tensor in (query, key, value)), enable_gqa=self.enable_gqa
        )
        whole = (*nothing.shape[:-2], query.shape[-2], value.shape[-1])
        if query.is_meta:
            return nothing.new_empty(whole)
        width = head_width_for_kernels(query, value)
        given = (self._reshape_to_heads(tensor, whole).to(nothing.dtype) for tensor in (query, key, value))
        wide = (pad_to_width(tensor, width) for tensor in given)
        how = self if self.scale is not None else replace(self, scale=query.shape[-1] ** -0.5)
        taken: Tensor = _Attended.apply(*wide, how)  # type: ignore[no-untyped-call]
        return taken[..., : value.shape[-1]].reshape(whole)

    def _reshape_to_heads(self, one: Tensor, whole: Sequence[int]) -> Tensor:
        """Return a tensor as [batch, heads, length, width]."""
        heads = one.shape[-3:-2] if self.enable_gqa else whole[-3:-2]
        spread = one.expand(*whole[:-3], *heads, *one.shape[-2:])
        return spread[(None,) * (4 - spread.dim())].flatten(0, -4)

    def visible_slices(self, step: int, length: int) -> tuple[slice, slice]:
        """Return which own queries look at which keys of the part that comes in this step.

        All that are returned see each other, except in step 0, which is this rank's own.
        """
        if not self.is_causal or step == 0:
            return _ALL, _ALL
        if step <= self.ring.place:  # of a rank before: its piece at the end is later than all here
            return _ALL, slice(length // 2)
        return slice(length // 2, None), _ALL  # its pieces lie between the two of this rank

    def build_attention_block(self, step: int, query: Tensor, part: Tensor) -> AttentionBlock:
        """Return what queries look at in this step. `part` is keys and values, as one stack."""
        queries, keys = self.visible_slices(step, query.shape[-2])
        key, value = _take_positions(part, keys).unbind()
        assert self.scale is not None, "it is known once there are queries"  # noqa: S101
        return AttentionBlock(
            query=_take_positions(query, queries),
            key=key,
            value=value,
            scale=self.scale,
            is_causal=self.is_causal and step == 0,
        )


class _Attended(torch.autograd.Function):
    """Attention round the ring; keeps this rank's own tensors only."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, how: RingAttention) -> Tensor:
        """Merge what the queries take from each part; collective."""
        exact = torch.promote_types(query.dtype, torch.float32)
        part, out, sums = _stack_key_value(key, value), query, query  # the first step replaces them
        for step in range(how.ring.size):
            coming = how.ring.start_passing_to_next_rank(part) if step + 1 < how.ring.size else None
            found = [
                gradient.to(exact) for gradient in how.build_attention_block(step, query, part).forward()
            ]
            if step == 0:
                out, sums = found
            else:
                queries, _ = how.visible_slices(step, query.shape[-2])
                _merge_attention((_take_positions(out, queries), sums[..., queries]), found)
            del found
            if coming is not None:
                part = coming.wait_for_tensor()
        out = out.to(query.dtype)
        ctx.how = how
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients of this rank's tensors; collective.

        Those of keys and values travel with them, and each rank adds what its queries ask for.
        """
        query, key, value, out, sums = ctx.saved_tensors
        how: RingAttention = ctx.how
        travels = any(ctx.needs_input_grad[1:3])
        part, arriving = _stack_key_value(key, value), None
        of_query, own = query, part  # the first step replaces them
        for step in range(how.ring.size):
            coming = how.ring.start_passing_to_next_rank(part) if step + 1 < how.ring.size else None
            queries, keys = how.visible_slices(step, query.shape[-2])
            of_queries, *of_part = how.build_attention_block(step, query, part).backward(
                _take_positions(gradient, queries), _take_positions(out, queries), sums[..., queries]
            )
            if step == 0:  # of this rank's own part: they stay here
                of_query, own = of_queries.to(sums.dtype), _stack_key_value(*of_part).to(sums.dtype)
            else:
                _take_positions(of_query, queries).add_(of_queries)
            if step > 0 and travels:
                sent = arriving.wait_for_tensor() if arriving else torch.zeros_like(own)
                _take_positions(sent, keys).add_(torch.stack(of_part))
                arriving = how.ring.start_passing_to_next_rank(sent)
            del of_queries, of_part
            if coming is not None:
                part = coming.wait_for_tensor()
        if arriving is not None:
            own += arriving.wait_for_tensor()
        return *(one.to(query.dtype) for one in (of_query, *own)), None


def _take_positions(one: Tensor, positions: slice) -> Tensor:
    return one if positions is _ALL else one[..., positions, :]


def _merge_attention(into: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Add what queries take from further keys, in place; both are a mean and logarithms of sums."""
    (out, sums), (new_out, new_sums) = into, new
    out.lerp_(new_out, torch.sigmoid(new_sums - sums)[..., None])
    sums.copy_(torch.logaddexp(sums, new_sums))


def _stack_key_value(key: Tensor, value: Tensor) -> Tensor:
    """Return keys and values as one message: [2, batch, heads, length, width]."""
    return torch.stack([key, value]).contiguous()  # torch keeps some orders of dimensions
