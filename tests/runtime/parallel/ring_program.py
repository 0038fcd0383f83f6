"""One rank of a world whose attention goes round a ring, each case compared with one process."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from byte_world import run_cases
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpckit.runtime.parallel.context import attention_block
from hpckit.runtime.parallel.context.context_parallel import ContextShards
from hpckit.runtime.parallel.context.ring_attention import RingAttention

OPTIONS = ("is_causal", "scale", "enable_gqa")


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that are made and not yet given up: now, and at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and count what it has made."""
        found = func(*args, **(kwargs or {}))
        before = storages((args, kwargs)).keys() | self.held.keys()
        for key, storage in storages(found).items():
            if key not in before:
                self.held[key] = storage.nbytes()
                weakref.finalize(storage, self.held.pop, key, None)
        self.peak = max(self.peak, sum(self.held.values()))
        return found


def storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    """Return the memory of all tensors in a tree."""
    found = [leaf.untyped_storage() for leaf in tree_leaves(tree) if type(leaf) is Tensor]
    return {one._cdata: one for one in found}  # noqa: SLF001  # it outlives the Python object


def tensors(case: dict[str, Any]) -> tuple[list[Tensor], Tensor]:
    """Return whole queries, keys and values, the same on all ranks, and the output's gradient."""
    generator = torch.Generator().manual_seed(3)
    dtype = getattr(torch, case.get("dtype", "float64"))
    lead, length = case.get("lead", [2, 4]), case.get("length", 24)
    width, value_width = case.get("widths", [8, 8])
    shapes = [(*lead, length, width), (*case.get("key_lead", lead), length, width)]
    shapes += [(*case.get("key_lead", lead), length, value_width), (*lead, length, value_width)]
    found = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    if case.get("far"):  # sums of other ranks' keys are larger by many orders
        found[1] *= 10 * torch.linspace(0, 1, length, dtype=torch.float64)[:, None]
    *given, gradient = (one.to(dtype) for one in found)
    return given, gradient


def attended(case: dict[str, Any]) -> dict[str, Any]:
    """Return how far output and gradients are from those of one process."""
    given, gradient = tensors(case)
    options: dict[str, Any] = {"is_causal": True} | {name: case[name] for name in OPTIONS if name in case}
    whole = [one.clone().double().requires_grad_() for one in given]
    query, key, value = shared(case, whole)
    wanted = F.scaled_dot_product_attention(query, key, value, **options)
    torch.autograd.backward(wanted, gradient.double())
    shards = shards_of_world()
    mine = shards.find_own_positions(wanted.shape[-2], torch.device("cpu"))
    own = [own_part(case, one, mine) for one in given]
    for one, learns in zip(own, case.get("learns", [True] * 3), strict=True):
        one.requires_grad_(learns)
    kernel = attention_block._PLAIN if case.get("plain") else attention_block._FOR_CPU  # noqa: SLF001
    few_rows = mock.patch.object(attention_block, "_ROWS", 5)
    with few_rows, mock.patch.object(attention_block, "_FOR_CPU", kernel):
        query, key, value = shared(case, own)
        found = RingAttention(ring=shards.build_ring(*own), **options)(query, key, value)
        torch.autograd.backward(found, gradient[..., mine, :])
    pairs = [(found, wanted), *((one.grad, it.grad) for one, it in zip(own, whole, strict=True))]
    return {
        "far": max(distance(one, it, mine) for one, it in pairs if one is not None),
        "gradients": [one.grad is not None for one in own],
        "dtype": str(found.dtype),
    }


def distance(found: Tensor, wanted: Tensor | None, mine: Tensor) -> float:
    """Return how far a tensor is from these positions of another, as a share of its norm."""
    assert wanted is not None
    part = wanted.detach()[..., mine, :]
    return float((found.detach().double() - part).norm() / part.norm())


def shards_of_world() -> ContextShards:
    """Return the shards of a world that is one context group."""
    group = dist.group.WORLD
    assert group is not None
    return ContextShards(group, dist.get_rank(), dist.get_world_size())


def own_part(case: dict[str, Any], whole: Tensor, mine: Tensor) -> Tensor:
    """Return this rank's positions; strided if the case says so."""
    part = whole[..., mine, :].clone()
    return part.mT.contiguous().mT if case.get("strided") else part


def shared(case: dict[str, Any], given: list[Tensor]) -> list[Tensor]:
    """Return what attention is given: with `shared`, keys are values, too."""
    return [given[0], given[1], given[1] + given[2]] if case.get("shared") else given


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Return the most bytes that are held besides this rank's own, as multiples of its queries'."""
    part = case["part"]
    given, gradient = tensors({"length": part, "dtype": "float32", "lead": [1, 4], "widths": [16, 16]})
    shards = shards_of_world()
    shards.find_own_positions(part * dist.get_world_size(), torch.device("cpu"))
    own = [one.requires_grad_() for one in given]
    with LiveBytes() as forward:
        found = RingAttention(ring=shards.build_ring(*own), is_causal=True)(*own)
    with LiveBytes() as backward:
        torch.autograd.backward(found, gradient)
    return {"forward": forward.peak / gradient.nbytes, "backward": backward.peak / gradient.nbytes}


if __name__ == "__main__":
    run_cases(lambda case: measured(case) if "part" in case else attended(case))
