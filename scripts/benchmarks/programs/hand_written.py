"""A transformer, laid out by torch alone as one would write it by hand, for each layout.

The rival of `run.parallelize` and `run.train_step` in `layout_steps.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, BLOCKS, LENGTH, VALUES, ROWS = 256, 4, 4, 64, 256, 8

Step = Callable[[Tensor, Tensor], Tensor]
"""Takes this data rank's inputs and targets; adds gradients, returns the loss of all ranks."""


class Attention(nn.Module):
    """Causal attention; [rows, length, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.ringed = False

    def forward(self, x: Tensor) -> Tensor:
        """Return what each position takes from those before it."""
        heads = [
            part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        if self.ringed:
            taken: Tensor = RingAttention.apply(*heads)  # type: ignore[no-untyped-call]
        else:
            query, key, value = heads
            taken = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.out(taken.transpose(1, 2).flatten(2))
        return mixed


class FeedForward(nn.Module):
    """Two layers; [rows, length, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layers make of it."""
        made: Tensor = self.down(F.gelu(self.up(x)))
        return made


class Block(nn.Module):
    """Attention, then a feed-forward pair; [rows, length, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.feed = Attention(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states after this block."""
        x = x + self.attention(self.norm1(x))
        moved: Tensor = x + self.feed(self.norm2(x))
        return moved


class Model(nn.Module):
    """Tokens [rows, length] to logits [rows, length, values]; the ends may be None."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: nn.Embedding | None = nn.Embedding(VALUES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm: nn.LayerNorm | None = nn.LayerNorm(WIDTH)
        self.head: nn.Linear | None = nn.Linear(WIDTH, VALUES, bias=False)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Run what this rank has; no layer asks for the positions of a part of a sequence."""
        if self.tokens is not None:
            x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        if self.norm is None or self.head is None:
            return x
        logits: Tensor = self.head(self.norm(x))
        return logits


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def lay_out(sizes: dict[str, int], rank: int) -> tuple[nn.Module, Step]:
    """Return a model in the layout of these sizes, and a step of it."""
    model = Model()
    if "pipeline" in sizes:
        return by_stages(model, rank, sizes["pipeline"])
    if "context" in sizes:
        return by_ring(model, rank, sizes["context"])
    names = tuple(sizes)
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=names)
    if "tensor" in sizes:
        cut(model, mesh["tensor"])
    if "shard" in sizes:
        over = mesh["replicate", "shard"] if "replicate" in sizes else mesh["shard"]
        for module in (*model.blocks, model):
            fully_shard(module, mesh=over)
    whole: nn.Module = DistributedDataParallel(model) if names == ("replicate",) else model

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        with loss_parallel() if "tensor" in sizes else nullcontext():
            loss = loss_of(whole(inputs), targets)
            torch.autograd.backward(loss)
        return mean_over_ranks(loss.full_tensor() if isinstance(loss, DTensor) else loss)

    return whole, step


def mean_over_ranks(loss: Tensor) -> Tensor:
    """Return the mean of a loss that each rank has of as much: what a program would log."""
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def cut(model: Model, mesh: Any) -> None:
    """Cut matrices, and activations between them along the sequence, as torch's tutorial does."""
    along, whole = Shard(1), Replicate()
    gathered = PrepareModuleInput(input_layouts=along, desired_input_layouts=whole)
    scattered = RowwiseParallel(output_layouts=along, use_local_output=False)
    block = {
        **dict.fromkeys(("norm1", "norm2"), SequenceParallel()),
        **dict.fromkeys(("attention", "feed"), gathered),
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "feed.up": ColwiseParallel(),
        **dict.fromkeys(("attention.out", "feed.down"), scattered),
    }
    ends = {
        "tokens": RowwiseParallel(input_layouts=whole, output_layouts=along, use_local_output=False),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=along, output_layouts=Shard(-1), use_local_output=False),
    }
    for one in model.blocks:
        parallelize_module(one, mesh, block)
    parallelize_module(model, mesh, ends)


def by_stages(model: Model, rank: int, stages: int) -> tuple[nn.Module, Step]:
    """Keep this rank's part, and run it by torch's 1F1B."""
    each = BLOCKS // stages
    model.blocks = nn.ModuleList(model.blocks[rank * each : (rank + 1) * each])
    if rank > 0:
        model.tokens = None
    if rank < stages - 1:
        model.norm = model.head = None
    stage = PipelineStage(model, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=2 * stages, loss_fn=loss_of)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == stages - 1:
            schedule.step(target=targets, losses=losses, return_outputs=False)
        else:
            schedule.step()
        own = torch.stack(losses).mean() if losses else torch.zeros(())
        return mean_over_ranks(own) * stages

    return model, step


def by_ring(model: Model, rank: int, size: int) -> tuple[nn.Module, Step]:
    """Cut sequences over ranks and states by FSDP; keys and values go round."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.ringed = True
    for module in (*model.blocks, model):
        fully_shard(module, mesh=init_device_mesh("cpu", (size,)))
    pieces = torch.arange(LENGTH).view(2 * size, -1)
    own = torch.cat([pieces[rank], pieces[-1 - rank]])

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = loss_of(model(inputs[:, own]), targets[:, own])
        torch.autograd.backward(loss)
        return mean_over_ranks(loss)

    return model, step


class RingAttention(torch.autograd.Function):
    """Causal attention over all ranks, of which each has a piece from either end of a sequence."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Merge what the queries take from each rank's part: [rows, heads, own, width]."""
        rank, size, half = dist.get_rank(), dist.get_world_size(), query.shape[-2] // 2
        out, sums, part = query, query, torch.stack([key, value])
        for step in range(size):
            works, coming = send_on(part) if step + 1 < size else ([], part)
            if step == 0:
                out, sums = _FLASH(query, key, value, 0.0, True)  # noqa: FBT003  # causal
            else:
                seen = part[..., :half, :] if step <= rank else part
                late = slice(0 if step <= rank else half, None)
                new, new_sums = _FLASH(query[..., late, :], *seen)
                old = sums[..., late]
                out[..., late, :].lerp_(new, torch.sigmoid(new_sums - old)[..., None])
                old.copy_(torch.logaddexp(old, new_sums))
            part = arrived(works, coming)
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Go round again; the gradients of keys and values travel with them."""
        query, key, value, out, sums = ctx.saved_tensors
        rank, size, half = dist.get_rank(), dist.get_world_size(), query.shape[-2] // 2
        part, of_query, own, travelling = torch.stack([key, value]), query, query, query
        under_way: tuple[list[Any], Tensor] | None = None
        for step in range(size):
            works, coming = send_on(part) if step + 1 < size else ([], part)
            keys, late = slice(None), slice(None)
            if step > rank:
                late = slice(half, None)
            elif step > 0:
                keys = slice(half)
            new = _FLASH_BACKWARD(
                gradients[0][..., late, :],
                query[..., late, :],
                *part[..., keys, :],
                out[..., late, :],
                sums[..., late],
                0.0,
                step == 0,
            )
            if step == 0:
                of_query, own = new[0], torch.stack(new[1:])
            else:
                of_query[..., late, :] += new[0]
                travelling = arrived(*under_way) if under_way else torch.zeros_like(own)
                travelling[..., keys, :] += torch.stack(new[1:])
                under_way = send_on(travelling)
            part = arrived(works, coming)
        if under_way:
            own += arrived(*under_way)
        return of_query, *own


_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001  # no other name
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001


def send_on(part: Tensor) -> tuple[list[Any], Tensor]:
    """Begin to send a tensor to the next rank; return what is under way, and what will arrive."""
    rank, size = dist.get_rank(), dist.get_world_size()
    coming = torch.empty_like(part)
    sent = dist.P2POp(dist.isend, part, (rank + 1) % size)
    return dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, coming, (rank - 1) % size)]), coming


def arrived(works: list[Any], coming: Tensor) -> Tensor:
    """Wait for what is under way."""
    for work in works:
        work.wait()
    return coming
