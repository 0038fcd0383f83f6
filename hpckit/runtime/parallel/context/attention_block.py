"""Attention of queries to one block of keys, by the kernels behind `scaled_dot_product_attention`.

They also return the logarithm of the sum that each softmax divides by, which is what puts several
blocks together. None keeps what grows with queries times keys.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention

from hpckit.values import dataclass, replace

_aten = torch.ops.aten
_CUDA_WIDTHS = 8
"""Kernels for CUDA take widths that are multiples of it."""
_EFFICIENT_SUMS = 32
"""The memory-efficient kernel has sums for a multiple of so many queries."""
_ROWS = 256
"""Queries that are computed at once where torch has no kernel."""


def head_width_for_kernels(query: Tensor, value: Tensor) -> int:
    """Return the width that queries, keys and values need to have for the kernels."""
    width = max(query.shape[-1], value.shape[-1])
    return width + (-width % _CUDA_WIDTHS if query.is_cuda else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBlock:
    """Queries [batch, heads, queries, width], and the keys and values that they look at.

    Keys are [batch, heads, keys, width]; they may have fewer heads, each for as many of the
    queries'. All have the width that `head_width_for_kernels` returns. With `is_causal` there are as many
    keys as queries, and each looks at those up to its own.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    is_causal: bool

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return what queries take, and the logarithms of their sums [batch, heads, queries]."""
        block, kernel = self._pick_kernel_and_expand_heads()
        out, sums = kernel.forward(block)
        return out, sums[..., : self.query.shape[-2]]

    def backward(self, gradient: Tensor, out: Tensor, sums: Tensor) -> list[Tensor]:
        """Return the gradients of queries, keys and values.

        `out` and `sums` are those of all blocks that the queries look at. `gradient` is that of `out`.
        """
        block, kernel = self._pick_kernel_and_expand_heads()
        found = kernel.backward(block, pad_to_width(gradient, out.shape[-1]), out, sums)
        return [
            _sum_gradient_over_shared_heads(one, of)
            for one, of in zip(found, self.query_key_value, strict=False)
        ]

    @property
    def query_key_value(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        return self.query, self.key, self.value

    def _pick_kernel_and_expand_heads(self) -> tuple[AttentionBlock, _Kernel]:
        block, shared = self, self.query.shape[1] // self.key.shape[1]
        kernel = _choose_kernel(block, grouped=shared > 1)
        if shared > 1 and not kernel.takes_groups:
            key, value = (tensor.repeat_interleave(shared, dim=1) for tensor in (self.key, self.value))
            block = replace(block, key=key, value=value)
        if (
            kernel is _PLAIN
            and block.query.is_cuda
            and can_use_efficient_attention(_build_sdpa_params(block))
        ):
            return block, _EFFICIENT
        return block, kernel


@dataclass(frozen=True, slots=True)
class _Kernel:
    forward: Callable[[AttentionBlock], tuple[Tensor, Tensor]]
    backward: Callable[[AttentionBlock, Tensor, Tensor, Tensor], tuple[Tensor, ...]]
    takes_groups: bool = False
    """Whether keys may have fewer heads than queries."""


def _choose_kernel(block: AttentionBlock, *, grouped: bool) -> _Kernel:
    if block.query.device.type == "cpu":
        return _FOR_CPU
    if block.query.is_cuda and can_use_flash_attention(_build_sdpa_params(block, grouped=grouped)):
        return _FLASH
    return _PLAIN


def _build_sdpa_params(block: AttentionBlock, *, grouped: bool = False) -> SDPAParams:
    return SDPAParams(*block.query_key_value, None, 0.0, block.is_causal, grouped)


def pad_to_width(one: Tensor, width: int) -> Tensor:
    """Return a tensor with zeros behind, which add nothing to a product, and with dense rows."""
    if one.shape[-1] != width:
        return F.pad(one, (0, width - one.shape[-1]))
    return one if one.stride(-1) == 1 else one.contiguous()


def _sum_gradient_over_shared_heads(gradient: Tensor, like: Tensor) -> Tensor:
    heads = like.shape[1]
    if gradient.shape[1] == heads:
        return gradient
    return gradient.view(gradient.shape[0], heads, -1, *gradient.shape[2:]).sum(dim=2)


def _cpu_attention(block: AttentionBlock) -> tuple[Tensor, Tensor]:
    out, sums = _aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001  # no public one
        *block.query_key_value, 0.0, block.is_causal, scale=block.scale
    )
    return out, sums


def _cpu_attention_backward(
    block: AttentionBlock, gradient: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = _aten._scaled_dot_product_flash_attention_for_cpu_backward(  # noqa: SLF001
        gradient, *block.query_key_value, out, sums, 0.0, block.is_causal, scale=block.scale
    )
    return found


def _flash_attention(block: AttentionBlock) -> tuple[Tensor, Tensor]:
    out, sums, *_ = _aten._scaled_dot_product_flash_attention(  # noqa: SLF001
        *block.query_key_value, 0.0, block.is_causal, scale=block.scale
    )
    return out, sums


def _flash_attention_backward(
    block: AttentionBlock, gradient: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, ...]:
    lengths = block.query.shape[-2], block.key.shape[-2]
    unused = torch.zeros(2, dtype=torch.int64, device=out.device)  # for dropout
    found: tuple[Tensor, ...] = _aten._scaled_dot_product_flash_attention_backward(  # noqa: SLF001
        *(gradient, *block.query_key_value, out, sums.contiguous(), None, None, *lengths),
        *(0.0, block.is_causal, unused, unused),
        scale=block.scale,
    )
    return found


def _efficient_attention(block: AttentionBlock) -> tuple[Tensor, Tensor]:
    out, sums, *_ = _aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
        *block.query_key_value, None, compute_log_sumexp=True, is_causal=block.is_causal, scale=block.scale
    )
    return out, sums


def _efficient_attention_backward(
    block: AttentionBlock, gradient: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, ...]:
    sums = F.pad(sums, (0, -sums.shape[-1] % _EFFICIENT_SUMS), value=torch.inf)
    unused = torch.zeros((), dtype=torch.int64, device=out.device)  # for dropout
    found: tuple[Tensor, ...] = _aten._scaled_dot_product_efficient_attention_backward(  # noqa: SLF001
        *(gradient, *block.query_key_value, None, out, sums, unused, unused, 0.0),
        *([True, True, True, False], block.is_causal),
        scale=block.scale,
    )
    return found


def _plain_attention(block: AttentionBlock) -> tuple[Tensor, Tensor]:
    outs, sums = [], []
    for start in range(0, block.query.shape[-2], _ROWS):
        scores = _compute_attention_scores(block, start)
        sums.append(scores.logsumexp(dim=-1))
        outs.append(scores.softmax(dim=-1) @ block.value.to(scores.dtype))
    return torch.cat(outs, dim=-2), torch.cat(sums, dim=-1)


def _plain_attention_backward(
    block: AttentionBlock, gradient: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, ...]:
    query, key, value, gradient, out = (
        tensor.to(sums.dtype) for tensor in (*block.query_key_value, gradient, out)
    )
    found = query_gradient, key_gradient, value_gradient = tuple(
        torch.zeros_like(tensor) for tensor in (query, key, value)
    )
    for start in range(0, query.shape[-2], _ROWS):
        rows = slice(start, start + _ROWS)
        taken = (_compute_attention_scores(block, start) - sums[..., rows, None]).exp()
        value_gradient += taken.mT @ gradient[..., rows, :]
        shift = (gradient[..., rows, :] * out[..., rows, :]).sum(dim=-1, keepdim=True)
        change = taken * (gradient[..., rows, :] @ value.mT - shift) * block.scale
        query_gradient[..., rows, :] = change @ key
        key_gradient += change.mT @ query[..., rows, :]
    return found


def _compute_attention_scores(block: AttentionBlock, start: int) -> Tensor:
    """Return the scaled products of some queries with all keys, in float32 at least."""
    exact = torch.promote_types(block.query.dtype, torch.float32)
    query = block.query[..., start : start + _ROWS, :].to(exact)
    scores = query @ block.key.to(exact).mT * block.scale
    if block.is_causal:
        shape = scores.shape[-2:]
        later = torch.ones(shape, dtype=torch.bool, device=query.device).triu(start + 1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


_FOR_CPU = _Kernel(_cpu_attention, _cpu_attention_backward, takes_groups=True)
_FLASH = _Kernel(_flash_attention, _flash_attention_backward, takes_groups=True)
_EFFICIENT = _Kernel(_efficient_attention, _efficient_attention_backward)
_PLAIN = _Kernel(_plain_attention, _plain_attention_backward)
