"""What one rank has of a batch, and in which pieces it computes that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from hpckit.errors import UsageError
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.reduction_tree import assign_tree_leaves_to_ranks, compute_whole_group_batch_share
from hpckit.model.parallel.settings import Parallel, Reduction
from hpckit.model.parallel.share import (
    BatchShare,
    count_equal_microbatches_to_fit,
    count_microbatches_to_fit_memory,
    split_rows,
)
from hpckit.runtime.parallel import batch_checks
from hpckit.runtime.parallel.context.context_parallel import ContextShards
from hpckit.runtime.parallel.loss.loss_check import slice_tensors_in_value
from hpckit.runtime.parallel.pipeline import Pipeline, check_microbatches_divide_rows
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPiece:
    """Rows of a batch that are computed at once. `weight` is which part of this rank's they are."""

    inputs: Tensor
    targets: Any
    kwargs: Mapping[str, Tensor]
    weight: float


def slice_batch_by_rows(
    pieces: Sequence[slice], inputs: Tensor, targets: Any, kwargs: Mapping[str, Tensor]
) -> list[BatchPiece]:
    """Return the pieces of a batch, by their rows.

    A piece without rows gets the first one, which then counts nothing: data ranks gather
    parameters together, so that each of them has to run the model as often as the others.
    """
    if len(pieces) == 1:
        return [BatchPiece(inputs=inputs, targets=targets, kwargs=kwargs, weight=1.0)]
    cut = []
    for piece in pieces:
        rows = piece if piece.stop > piece.start else slice(0, 1)
        cut.append(
            BatchPiece(
                inputs=inputs[rows],
                targets=slice_tensors_in_value(targets, rows, axis=0, size=len(inputs)),
                kwargs={name: one[rows] for name, one in kwargs.items()},
                weight=(piece.stop - piece.start) / len(inputs),
            )
        )
    return cut


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCut:
    """How batches of one model are cut.

    `full_data_size` is the number of data ranks that were asked for: if fewer are left, each cuts
    its rows into pieces, which need no more memory than its rows did before.
    """

    layout: Layout
    settings: Parallel
    full_data_size: int
    pipeline: Pipeline | None
    context: ContextShards | None

    def split_own_batch_into_pieces(
        self, inputs: Tensor, targets: Any, share: BatchShare | None
    ) -> list[BatchPiece]:
        """Return what this rank computes at once, each with its positions of the sequences."""
        return slice_batch_by_rows(
            self.list_piece_rows(len(inputs), share), *self.select_own_sequence_positions(inputs, targets)
        )

    def check_rows_fit_layout(self, inputs: Tensor, targets: Any, share: BatchShare | None) -> None:
        """Raise UsageError if this rank's rows of a batch do not fit the layout."""
        if share is not None:
            self.weight_of_batch_share(inputs, share)
        batch_checks.check_target_rows(inputs, targets)
        length = inputs.shape[1] if inputs.dim() > 1 else 0
        if self.context is not None:
            self.context.find_own_positions(length, inputs.device)
            batch_checks.check_target_positions(inputs, targets)
        if self.settings.reduce is Reduction.tree:
            return
        pieces = self.list_piece_rows(len(inputs), share)
        if self.pipeline is None:
            return
        for piece in pieces:
            self.pipeline.count_microbatches(piece.stop - piece.start)
        if self.settings.sequence:
            batch_checks.check_sequence_divides_evenly(self.layout, length)

    def split_rows_for_tree_reduction(
        self, inputs: Tensor, targets: Any, share: BatchShare | None, rank: int
    ) -> tuple[Sequence[range], list[BatchPiece]]:
        """Return the groups of each rank with parallel.reduce=tree, and what this one has of them.

        Raises UsageError if its rows are not whole groups.
        """
        batch_size = self.whole_batch_size(len(inputs), share)
        size, full = self.layout.data_size, self.full_data_size
        parts = self.settings.microbatches or 1
        place = self.layout.data_rank(rank)
        expected = compute_whole_group_batch_share(batch_size, place, size, full)
        if len(inputs) != len(expected):
            raise UsageError(
                f"this data rank has {len(inputs)} rows, and parallel.reduce=tree needs "
                f"{len(expected)} of a batch of {batch_size}: whole groups",
                hint="take the rows by share = run.share(batch_size), and pass it: share=share",
            )
        check_microbatches_divide_rows(batch_size // full, parts)
        leaves = assign_tree_leaves_to_ranks(size, full, parts)
        rows = split_rows(len(inputs), len(leaves[place]))
        return leaves, slice_batch_by_rows(rows, inputs, targets, {})

    def weight_of_batch_share(self, inputs: Tensor, share: BatchShare) -> float:
        """Return which part of the batch this rank's rows are; raises UsageError for others."""
        if len(inputs) != len(share):
            raise UsageError(
                f"the batch has {len(inputs)} rows, and the share {len(share)}",
                hint="index the whole batch by share.rows",
            )
        return share.weight

    def select_own_sequence_positions(
        self, inputs: Tensor, targets: Any
    ) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """Return this rank's positions of each sequence, and the arguments that tell them."""
        length = inputs.shape[1] if inputs.dim() > 1 else 0
        if self.context is None:
            return inputs, targets, {}
        positions = self.context.find_own_positions(length, inputs.device)
        batch_checks.check_target_positions(inputs, targets)
        targets = slice_tensors_in_value(targets, positions, axis=1, size=length)
        everywhere = positions.expand(len(inputs), -1)
        return inputs[:, positions], targets, {"positions": everywhere}

    def list_piece_rows(self, rows: int, share: BatchShare | None) -> list[slice]:
        """Return which of this rank's rows of a batch are computed at once."""
        batch_size = self.whole_batch_size(rows, share)
        size, full, pipeline = self.layout.data_size, self.full_data_size, self.pipeline
        if pipeline is not None:
            return split_rows(
                rows, count_equal_microbatches_to_fit(batch_size, size, full, pipeline.can_split_batch)
            )
        count = count_microbatches_to_fit_memory(batch_size, size, full)
        if count == 1:
            check_microbatches_divide_rows(rows, self.settings.microbatches or 1)
        return split_rows(rows, count * (self.settings.microbatches or 1))

    def whole_batch_size(self, rows: int, share: BatchShare | None) -> int:
        """Return the rows of the whole batch, if this rank has so many of it."""
        return rows * self.layout.data_size if share is None else share.batch_size
