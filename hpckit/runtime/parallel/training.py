"""Steps of a model that is laid out over ranks: forward, backward, and the loss on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from hpckit.errors import UsageError
from hpckit.model.counted import format_short_list
from hpckit.model.parallel.layout import MeshAxis
from hpckit.model.parallel.settings import Parallel, Reduction
from hpckit.model.parallel.share import BatchShare
from hpckit.runtime.parallel import batch_checks
from hpckit.runtime.parallel.arguments import LossFunction
from hpckit.runtime.parallel.batch_pieces import BatchCut, BatchPiece
from hpckit.runtime.parallel.build import LaidOutModel
from hpckit.runtime.parallel.gradients import (
    TreeReduction,
    clip_gradients,
    refuse_non_tree_reductions,
    scale_gradients,
    set_earlier_gradients_aside,
)
from hpckit.runtime.parallel.kept_state import use_evaluation_mode
from hpckit.runtime.parallel.loss.loss_check import LOOKS, KnownLoss, KnownLosses, LossCheck, LossGraph
from hpckit.runtime.parallel.loss.step_loss import (
    StepLoss,
    compute_loss_and_weight,
    count_targets,
    divide_or_zero,
)
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.runtime.parallel.self_check import compare_cut_units_with_whole
from hpckit.runtime.parallel.shared_parts import GradientSets, SharedBuffers
from hpckit.runtime.parallel.step_errors import explain_torch_errors
from hpckit.runtime.parallel.tensor_parallel import keep_logits_cut
from hpckit.values import dataclass, field


@dataclass(slots=True, kw_only=True)
class ModelTraining:
    """Training steps of one model. Every rank makes the same calls in the same order.

    `cut` says what this rank has of a batch. `is_laid_out` tells the parameters of all models that
    are trained like this one.
    """

    model: LaidOutModel
    mesh: RankMesh
    settings: Parallel
    cut: BatchCut
    is_laid_out: Callable[[Tensor], bool]
    _checked: bool = field(default=False)
    _steps: int = field(default=0)
    _losses: KnownLosses = field(default_factory=KnownLosses)
    _learning: tuple[tuple[str, nn.Parameter, bool], ...] = field(init=False)
    _buffers: SharedBuffers = field(init=False)
    _sets: GradientSets = field(init=False)
    _is_torn: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Prepare the model; raises UsageError if its gradients cannot be summed as asked for."""
        named = self.model.module.named_parameters()
        self._learning = tuple((name, one, one.requires_grad) for name, one in named)
        if self.settings.reduce is Reduction.tree:
            refuse_non_tree_reductions(self.model.module)
        self._buffers = SharedBuffers(module=self.model.module, mesh=self.mesh)
        self._sets = GradientSets(module=self.model.module, mesh=self.mesh)

    def step(
        self, inputs: Tensor, targets: Any, loss: LossFunction | None, share: BatchShare | None
    ) -> Tensor:
        """Add the gradients of a batch; return its loss over all data ranks."""
        self._check_trainable_state()
        if not len(inputs):
            raise UsageError(
                "this data rank's batch has no rows",
                hint="take them by share = run.share(batch_size), and pass it: share=share",
            )
        self._sets.refuse_unequal_gradient_sets(may_wait=True)
        self._reshard_root_module()
        self._steps += 1
        if self._steps in LOOKS:  # streams may part later on; later losses tell of uneven shares
            weighted = share is not None or self._steps > 1
            batch_checks.check_batches_agree_over_ranks(self.mesh, inputs, targets, weighted=weighted)
        self.cut.check_rows_fit_layout(inputs, targets, share)
        self._buffers.broadcast_buffers()
        if not self._checked:
            self._buffers.copy_buffers_to_find_changes()
        own = StepLoss(function=loss, scale=1.0)
        known = None if loss is None else self._losses.find_loss_and_count_step(loss)
        if known is not None and known.is_checked_step:
            own.check = self._make_loss_check(inputs)
        checks = () if self._checked else self.model.checks
        # Their gradients are changed after the backward pass of a step.
        changing = [tie.parameter for tie in self.model.tied]
        if known is not None and known.pair is not False:
            changing = list(self.model.module.parameters())
        try:
            with (
                explain_torch_errors(self.settings, self.mesh.layout, self.model.cut),
                compare_cut_units_with_whole(checks, self.mesh, self.model.cut) if checks else nullcontext(),
                keep_logits_cut(self.model.cut, given=loss is not None),
                set_earlier_gradients_aside(changing),
            ):
                self._sets.remember_gradients_before_backward()
                value = self._compute_gradients(inputs, targets, own, share, known)
        except BaseException:
            self._clean_up_failed_step()
            raise
        self._sets.refuse_unequal_gradient_sets(may_wait=False)
        if not self._checked:
            self._compare_with_whole(inputs)
            self._buffers.agree_on_changed_buffers()
        self._checked = True
        return value

    def _make_loss_check(self, inputs: Tensor) -> LossCheck:
        module, layout, graph = self.model.module, self.mesh.layout, None
        if self.settings.self_check:
            graph = LossGraph(model=module, of_others=self.is_laid_out, layout=layout)
        positions = inputs.shape[1] // layout.context if layout.context > 1 else 0
        return LossCheck(positions=positions, graph=graph)

    def _clean_up_failed_step(self) -> None:
        self.model.reshard()
        module, layout = self.model.module, self.mesh.layout
        if not isinstance(module, FSDPModule):
            return
        if hasattr(module, "reset_iter_state"):
            with suppress(RuntimeError):  # no forward pass has begun yet
                module.reset_iter_state()
        elif layout.replicate > 1:
            self._is_torn = True

    def _check_trainable_state(self) -> None:
        """Raise UsageError if a step failed before, or if what learns has been changed."""
        if self._is_torn:
            raise UsageError(
                f"an earlier step failed, and with {self.mesh.layout} torch {torch.__version__} "
                "would add what it left to the gradients of this one",
                hint="let the run restart from its checkpoint, or install torch 2.13 or newer",
            )
        layout, module = self.mesh.layout, self.model.module
        followed = isinstance(module, FSDPModule) or self.settings.reduce is Reduction.tree
        changed = [tie for tie in self.model.tied if tie.parameter.requires_grad != tie.learns]
        if not changed and (followed or layout.replicate == 1):
            return
        names = [name for name, one, learns in self._learning if one.requires_grad != learns]
        if names and (changed or not self.model.pipeline):
            shown = format_short_list([name.removeprefix("module.") for name in names], 3)
            raise UsageError(
                f"{shown} {'has' if len(names) == 1 else 'have'} been frozen or unfrozen "
                "since run.parallelize, but the other ranks do not know that",
                hint="set requires_grad in the function that builds the model; parallel=fsdp "
                "follows later changes; a learning rate of 0 lets parameters wait in any layout",
            )

    def _compare_with_whole(self, inputs: Tensor) -> None:
        """Compare stages, or parts of a sequence, with the whole, on one row; collective."""
        check = self.model.whole_check
        if check is None:
            return
        row, _, kwargs = self.cut.select_own_sequence_positions(inputs[:1], None)
        try:
            batch_checks.raise_problem_on_all_ranks(
                self.mesh, check.explain_difference_from_whole(row, kwargs), check.hint
            )
        finally:
            self.model.reshard()

    def _compute_gradients(
        self, inputs: Tensor, targets: Any, own: StepLoss, share: BatchShare | None, known: KnownLoss | None
    ) -> Tensor:
        if self.settings.reduce is Reduction.tree:
            return self._compute_gradients_in_tree(inputs, targets, own, share, known)
        pieces = self.cut.split_own_batch_into_pieces(inputs, targets, share)
        own.scale = self._choose_loss_multiplier(inputs, pieces, own.function, share)
        coming = self._join_loss_sum_without_loss(known)
        self._accumulate_gradients(pieces, own)
        own.wait_for_loss_multiplier()
        for tied in self.model.tied:
            tied.sum_gradient_over_copies()
        self._sets.refuse_missing_gradients()
        if not self._checked:
            module, staged = self.model.module, self.model.pipeline is not None
            batch_checks.check_first_gradients(
                self.mesh, module, pipelined=staged, replaced=self.model.replaced
            )
        layout = self.mesh.layout
        alike = layout.tensor * layout.context * layout.data_size
        if coming is not None:
            return coming()[0] / alike
        if self._are_losses_weighted_sums(own, known):
            totals = self._sets.sum_over_ranks(torch.stack([own.total, own.total_weight])) / layout.tensor
            return self._divide_gradients_by_weight(totals, layout.data_size * layout.context)
        # Of a pipeline only the last stage has a loss, not 0.
        if own.function is None or share is not None or layout.data_size == 1:
            return self._sets.sum_over_ranks(own.total.reshape(1))[0] / alike
        return self._sum_if_rows_are_equal(own.total, len(inputs)) / alike

    def _join_loss_sum_without_loss(self, known: KnownLoss | None) -> Callable[[], Tensor] | None:
        """Begin the sum of the loss on a rank of a pipeline that has none of it; None on others.

        So stages need not wait for each other once they have their gradients. On a GPU the host
        does not wait anyway, and exchanges must begin in the same order on all ranks. The batch has
        been checked: what all ranks refuse is refused before.
        """
        pipeline = self.model.pipeline
        if pipeline is None or pipeline.has_last_stage or self.mesh.device.type != "cpu":
            return None
        is_known = self._checked and (known is None or (known.pair is False and not known.is_checked_step))
        if not is_known or self.mesh.averages_gradients:  # those exchange more, and other, numbers
            return None
        return self.mesh.begin_sum_over_ranks(torch.zeros(1))

    def _are_losses_weighted_sums(self, own: StepLoss, known: KnownLoss | None) -> bool:
        """Return whether losses of this step are sums with weights; if it is looked at, collective.

        Raises UsageError on all ranks if a function returns anything else than it should.
        """
        if known is None:
            return False
        if known.pair is None or known.is_checked_step:
            everyone = self.mesh.gather_from_all_ranks((own.pair, own.explain_refused_loss()))
            pair = batch_checks.agree_if_loss_has_weight(everyone)
            known.pair = pair if known.pair is None else known.pair
        if own.pair not in {None, known.pair}:
            raise UsageError(
                "a loss returned a sum with its weight in one step, but a mean in another",
                hint="return the pair, or the mean, in all steps",
            )
        return known.pair

    def _divide_gradients_by_weight(self, totals: Tensor, parts: int) -> Tensor:
        """Divide gradients, each a mean of `parts` sums, by the weight of all; return the loss."""
        value, weight = totals
        factor = divide_or_zero(torch.full_like(weight, parts), weight)
        scale_gradients(self.model.module.parameters(), factor)
        return divide_or_zero(value, weight)

    def _choose_loss_multiplier(
        self,
        inputs: Tensor,
        pieces: Sequence[BatchPiece],
        loss: LossFunction | None,
        share: BatchShare | None,
    ) -> Tensor | float | Callable[[], Tensor]:
        """Return what losses are multiplied by, as gradients are averaged over data ranks."""
        layout = self.mesh.layout
        if loss is not None:
            return 1.0 if share is None else self.cut.weight_of_batch_share(inputs, share) * layout.data_size
        counted = [count_targets(piece.targets) for piece in pieces if piece.weight]
        return self._make_loss_sum_multiplier(torch.stack(counted).sum(), layout.data_size * layout.context)

    def _make_loss_sum_multiplier(self, own: Tensor, parts: int) -> Tensor | Callable[[], Tensor]:
        """Return what a sum over targets is multiplied by, if a mean of `parts` is taken after.

        `own` is the number of this rank's targets. Without any on all ranks it is 0. Ranks count
        while they compute: no rank waits for the others before the loss is known.
        """
        layout = self.mesh.layout
        if layout.data_size * layout.context == 1:
            return divide_or_zero(torch.full_like(own.double(), parts), own.double())
        counted, alike = self.mesh.begin_sum_over_ranks(own), layout.tensor * layout.pipeline

        def compute_multiplier() -> Tensor:
            count = counted() / alike
            return divide_or_zero(torch.full_like(count, parts), count)

        return compute_multiplier

    def _compute_gradients_in_tree(
        self, inputs: Tensor, targets: Any, own: StepLoss, share: BatchShare | None, known: KnownLoss | None
    ) -> Tensor:
        leaves, pieces = self.cut.split_rows_for_tree_reduction(inputs, targets, share, self.mesh.rank)
        if own.function is None:
            own.scale = self._make_loss_sum_multiplier(count_targets(targets), leaves[-1].stop)

        def compute_leaf_loss(number: int) -> Tensor:
            piece = pieces[number]
            return own.compute_part_loss(self.model.module(piece.inputs), piece.targets, 1.0)

        rank = self.mesh.layout.data_rank(self.mesh.rank)
        tree = TreeReduction(module=self.model.module, rank=rank, leaves=leaves)
        with self._sum_gradients_in_last_piece(last=False):
            value = tree.add_mean_gradients(compute_leaf_loss)
        own.wait_for_loss_multiplier()
        if not self._are_losses_weighted_sums(own, known):
            return value
        weight = tree.gather_value_per_leaf(own.weights).sum()
        return self._divide_gradients_by_weight(
            torch.stack([value * tree.leaf_count, weight]), tree.leaf_count
        )

    def evaluate(self, inputs: Tensor, targets: Any, loss: LossFunction | None) -> Tensor:
        """Return the loss of this data rank's rows, on all ranks that share them."""
        module, layout = self.model.module, self.mesh.layout
        batch_checks.check_target_rows(inputs, targets)
        self._buffers.broadcast_buffers()
        inputs, targets, kwargs = self.cut.select_own_sequence_positions(inputs, targets)
        measured = torch.zeros(2, dtype=torch.float64, device=inputs.device)

        def measure_loss(outputs: Any, wanted: Any, _part: float) -> Tensor:
            value, weight, _ = compute_loss_and_weight(loss, outputs, wanted)
            measured.copy_(torch.stack([value, weight]))
            return value

        try:
            kept = keep_logits_cut(self.model.cut, given=loss is not None)
            explained = explain_torch_errors(self.settings, layout, self.model.cut)
            still = use_evaluation_mode(*self.model.running_modules)
            with explained, torch.no_grad(), kept, still:
                if self.model.pipeline is not None:
                    self.model.pipeline.evaluate(inputs, targets, loss=measure_loss, kwargs=kwargs)
                else:
                    measure_loss(module(inputs, **kwargs), targets, 1.0)
        finally:
            self.model.reshard()
        for axis in (MeshAxis.pipeline, MeshAxis.context):
            if layout.sizes[axis] > 1:
                torch.distributed.all_reduce(measured, group=self.mesh.axis_group(axis))
        return divide_or_zero(*measured)

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Scale the gradients to a 2-norm of `max_norm` at most; return what it was."""
        self._reshard_root_module()
        parameters = list(self.model.module.parameters())
        if isinstance(self.model.module, DistributedDataParallel):
            return nn.utils.clip_grad_norm_(parameters, max_norm)
        pipeline = self.mesh.axis_group(MeshAxis.pipeline) if self.model.pipeline else None
        return clip_gradients(
            parameters, max_norm, device=self.mesh.device, pipeline=pipeline, tied=self.model.tied
        )

    def _accumulate_gradients(self, pieces: Sequence[BatchPiece], loss: StepLoss) -> None:
        for piece in pieces:
            if self.model.pipeline is not None:
                of_part = partial(loss.compute_part_loss, whole=piece.weight)
                self.model.pipeline.step(piece.inputs, piece.targets, loss=of_part, kwargs=piece.kwargs)
                continue
            with self._sum_gradients_in_last_piece(last=piece is pieces[-1]):
                # Outputs have no name here: the backward pass begins without those of all words.
                torch.autograd.backward(
                    loss.compute_part_loss(
                        self.model.module(piece.inputs, **piece.kwargs), piece.targets, piece.weight
                    )
                )

    def _sum_gradients_in_last_piece(self, *, last: bool) -> Any:
        """Sum gradients over replicas in the last piece only.

        Sharded ones are summed over shards in each, as a rank has no room for all of them.
        """
        module = self.model.module
        if isinstance(module, DistributedDataParallel):
            # Alone there is nothing to sum, and a step may leave parameters out.
            summed = last and self.mesh.averages_gradients
            return nullcontext() if summed else module.no_sync()
        if isinstance(module, FSDPModule):
            module.set_requires_all_reduce(last)
        return nullcontext()

    def _sum_if_rows_are_equal(self, value: Tensor, rows: int) -> Tensor:
        """Return the sum over all ranks; raises UsageError on all ranks if rows are uneven."""
        numbers = torch.tensor([rows, rows**2], dtype=torch.float64, device=value.device)
        both = torch.cat([value.detach().double().reshape(1), numbers])
        total: Tensor
        total, all_rows, squares = self._sets.sum_over_ranks(both)
        if all_rows**2 != squares * self.mesh.layout.world_size:
            raise UsageError(
                "data ranks have different numbers of rows of this batch, and their losses would "
                "count the same",
                hint=batch_checks.SHARE_HINT,
            )
        return total

    def _reshard_root_module(self) -> None:
        """Free what a forward pass of the user's has left gathered: units free their own parts."""
        if isinstance(self.model.module, FSDPModule):
            self.model.module.reshard()
