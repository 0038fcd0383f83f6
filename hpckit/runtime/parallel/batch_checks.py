"""Checks of batches and gradients at the first steps, of what else would go wrong silently."""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from hpckit.errors import RunError, UsageError
from hpckit.model.counted import format_ranges, format_short_list
from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.runtime.parallel.loss.loss_check import list_tree_leaves
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.values import dataclass

SHOWN = 5
"""Names that an error has."""


def checksum_tensors(*values: Any) -> int:
    """Return a checksum of the plain tensors among some values: type, shape and content.

    CRC-32, as initialising a model takes ten times as long; a better one would take half of it.
    """
    found = 0
    for value in values:
        if isinstance(value, Tensor):
            found = zlib.crc32(f"{value.dtype}{tuple(value.shape)}".encode(), found)
            whole = value.detach().cpu().contiguous()
            found = zlib.crc32(whole.view(-1).view(torch.uint8).numpy().data, found)
    return found


def checksum_model(model: nn.Module) -> dict[str, int]:
    """Return a checksum of each plain parameter and buffer that has values."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        name: checksum_tensors(one)
        for name, one in tensors
        if not (one.is_meta or one.is_sparse or one.is_quantized or isinstance(one, DTensor))
    }


def check_ranks_built_same_values(mesh: RankMesh, digests: Mapping[str, int], *, whole: bool) -> None:
    """Check that ranks have built the same values, by the checksums of their tensors; collective.

    Raises UsageError on all ranks: shards would be of different models. `whole` says that each rank
    has all tensors; else those are compared that several have.
    """
    if len(set(mesh.gather_from_all_ranks(zlib.crc32(repr(sorted(digests.items())).encode())))) == 1:
        return
    everyone: list[dict[str, int]] = mesh.gather_from_all_ranks(dict(digests))
    found: dict[str, dict[int | None, list[int]]] = {}
    for rank, own in enumerate(everyone):
        for name in dict.fromkeys(chain(*everyone) if whole else own):
            found.setdefault(name, {}).setdefault(own.get(name), []).append(rank)
    differing = {name: list(ranks.values()) for name, ranks in found.items() if len(ranks) > 1}
    for first, second, *_ in differing.values():
        raise UsageError(
            f"ranks {format_ranges(first)} and {format_ranges(second)} have built different values "
            f"of {format_short_list(list(differing), SHOWN)}",
            hint="on each rank torch, numpy's global generator and `random` are seeded alike for "
            "this: values must not depend on the rank, the time, the order of a set, a generator "
            "of your own without a seed, files of each rank, or memory that is not set",
        )


SHARE_HINT = (
    "pass the share: run.train_step(model, inputs, targets, share=share), with "
    "share = run.share(batch_size), or with share=batches.share of run.batches"
)
"""What to do where data ranks have different numbers of rows."""


def check_batches_agree_over_ranks(mesh: RankMesh, inputs: Tensor, targets: Any, *, weighted: bool) -> None:
    """Compare the batches of ranks; collective.

    Raises UsageError on all ranks if those with one data rank have other batches, or if shares are
    not even; `weighted` says that they need not be.
    """
    found = checksum_tensors(inputs, *list_tree_leaves(targets)), len(inputs)
    known: Sequence[tuple[str, int]] = mesh.gather_from_all_ranks(found)
    by_data: dict[int, dict[str, list[int]]] = {}
    for rank, (one, _) in enumerate(known):
        by_data.setdefault(mesh.layout.data_rank(rank), {}).setdefault(one, []).append(rank)
    for data_rank, batches in by_data.items():
        if len(batches) > 1:
            first, second, *_ = batches.values()
            raise UsageError(
                f"ranks {format_ranges(first)} and {format_ranges(second)} got different batches, "
                f"and share data rank {data_rank} of {mesh.layout.data_size}",
                hint="seed and share out data by run.data_rank or run.share(), not by run.rank",
            )
    rows = sorted({count for _, count in known})
    if len(rows) > 1 and not weighted:
        raise UsageError(
            f"data ranks have {rows[0]} to {rows[-1]} rows of the batch, and their losses would "
            "count the same",
            hint=SHARE_HINT,
        )


def agree_if_loss_has_weight(known: Sequence[tuple[bool | None, tuple[str, str]]]) -> bool:
    """Return whether a loss is a sum with its weight; raises UsageError on all ranks.

    `known` has for each rank whether it is, None where it was not called, and what is wrong, with what to do.
    """
    kinds = {pair for pair, _ in known if pair is not None}
    if len(kinds) > 1:
        raise UsageError(
            "loss(outputs, targets) returned a sum with its weight on some ranks only",
            hint="return a mean over rows, or a pair, on all ranks",
        )
    for _, (problem, hint) in known:
        if problem:
            raise UsageError(problem, hint=hint)
    return kinds == {True}


def check_target_rows(inputs: Tensor, targets: Any) -> None:
    """Raise UsageError if targets are a tensor of another number of rows than the inputs."""
    if isinstance(targets, Tensor) and targets.shape[:1] != inputs.shape[:1]:
        raise UsageError(
            f"inputs are {list(inputs.shape)}, and targets {list(targets.shape)}: both need a row "
            "for each sample",
            hint="index both by share.rows",
        )


def check_target_positions(inputs: Tensor, targets: Any) -> None:
    """Raise UsageError if targets cannot be cut along the sequence, as the inputs are."""
    wanted = list(inputs.shape[:2])
    for leaf in list_tree_leaves(targets):
        if leaf is not None and (not isinstance(leaf, Tensor) or list(leaf.shape[:2]) != wanted):
            shown = list(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
            raise UsageError(
                f"targets are {shown}, and parallel.context cuts them along the sequence as it "
                f"cuts the inputs, {wanted}",
                hint="give a target for each position, such as -100 to ignore it, or choose "
                "a layout with parallel.context=1",
            )


def check_sequence_divides_evenly(layout: Layout, length: int) -> None:
    """Raise UsageError if pipeline stages cannot pass on equal parts of a sequence."""
    if layout.pipeline > 1 and (length // layout.context) % layout.tensor:
        raise UsageError(
            f"sequences of {length} positions cannot be cut into "
            f"{layout.context * layout.tensor} equal parts, which the ranks of "
            f"{layout} pass from stage to stage",
            hint="use a length that is a multiple of parallel.tensor x parallel.context, or "
            "parallel.sequence=false",
        )


def raise_problem_on_all_ranks(mesh: RankMesh, problem: str, hint: str) -> None:
    """Raise RunError on all ranks if one found that a part differs from the whole; collective."""
    found = next((said for said in mesh.gather_from_all_ranks(problem) if said), "")
    if found:
        raise RunError(f"with {mesh.layout} {found}", hint=hint)


UNEVEN_HINT = (
    "have each parameter take part in each step, for example by adding 0 * expert(rows[:1]).sum() "
    "of an expert that gets no rows"
)
"""What to do if ranks got gradients of different parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedParameter:
    """A parameter that has another one in its place; it lives only if something else holds it."""

    name: str
    earlier: weakref.ref[nn.Parameter]

    @property
    def has_gradient(self) -> bool:
        """Whether a backward pass gave it a gradient."""
        one = self.earlier()
        return one is not None and one.grad is not None


def check_first_gradients(
    mesh: RankMesh, model: nn.Module, *, pipelined: bool, replaced: Sequence[ReplacedParameter]
) -> None:
    """Check gradients after the first backward pass; collective; raises RunError on all ranks.

    With pipeline stages each parameter must have one; a parameter that all ranks of a tensor group
    hold whole must have the same on each. One that was `replaced` must have none.
    """
    used = [buffer.name for buffer in replaced if buffer.has_gradient]
    strays = [*dict.fromkeys(chain(*mesh.gather_from_all_ranks(used)))]
    if strays:
        raise RunError(
            f"{format_short_list(strays, SHOWN)} from before run.parallelize was used in forward, "
            "but another parameter is trained in its place",
            hint="take it from its module in forward (self.tokens.weight), not from a list or "
            "another place that build filled",
        )
    named = dict(model.named_parameters())
    problem = _explain_unequal_gradients(mesh, _sum_each_replicated_gradient(named))
    lost = [name for name, one in named.items() if one.requires_grad and one.grad is None]
    if lost and pipelined:
        problem = f"{format_short_list(lost, SHOWN)} got no gradient"
    problems = [said for said in mesh.gather_from_all_ranks(problem) if said]
    if problems:
        raise RunError(
            f"wrong gradients at the first step: {problems[0]}",
            hint="is a module with weights between the plan's columns and rows? It works on other "
            "heads on each rank: move it before columns or behind rows, or use another layout",
        )


def _sum_each_replicated_gradient(named: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """Return a sum of each gradient of which every rank of the tensor axis has the whole."""
    sums: dict[str, float] = {}
    for name, one in named.items():
        gradient = one.grad
        if not isinstance(gradient, DTensor):
            continue
        names = gradient.device_mesh.mesh_dim_names or ()
        if "tensor" in names and isinstance(gradient.placements[names.index("tensor")], Replicate):
            sums[name] = float(gradient.to_local().double().abs().sum())
    return sums


def _explain_unequal_gradients(mesh: RankMesh, sums: Mapping[str, float]) -> str:
    if mesh.layout.tensor == 1:
        return ""
    everyone: list[Any] = [None] * mesh.layout.tensor
    dist.all_gather_object(everyone, dict(sums), group=mesh.axis_group(MeshAxis.tensor))
    values = {name: [rank.get(name, 0.0) for rank in everyone] for name in sums}
    wrong = [name for name, held in values.items() if gradient_sums_differ(held)]
    return f"{format_short_list(wrong, SHOWN)} differ between the ranks of a tensor group" if wrong else ""


def gradient_sums_differ(sums: Sequence[float]) -> bool:
    """Return whether ranks hold other gradients: not if none is finite, as with a loss scale."""
    finite = [math.isfinite(value) for value in sums]
    if not all(finite):
        return any(finite)
    return max(sums) - min(sums) > 1e-3 * max(abs(max(sums)), 1e-30)
