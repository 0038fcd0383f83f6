"""Steps of a model that is laid out over ranks: forward, backward, and the loss on every rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from hpckit.errors import UsageError
from hpckit.model.parallel.layout import MeshAxis
from hpckit.model.parallel.settings import Parallel
from hpckit.model.parallel.share import BatchShare
from hpckit.runtime.parallel import batch_checks
from hpckit.runtime.parallel.build import LaidOutModel
from hpckit.runtime.parallel.gradients import clip, total_norm
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.runtime.parallel.pipeline import check_microbatches

LossFunction = Callable[[Any, Any], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of logits [..., classes] for whole numbers [...]."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


@dataclass(slots=True, kw_only=True)
class ModelTraining:
    """Training steps of one model. Every rank makes the same calls in the same order."""

    model: LaidOutModel
    mesh: RankMesh
    settings: Parallel
    _checked: bool = field(default=False)

    def step(
        self, inputs: Tensor, targets: Any, loss: LossFunction | None, share: BatchShare | None
    ) -> Tensor:
        """Add the gradients of a batch; return its mean loss over all data ranks."""
        loss = loss or cross_entropy
        if not self._checked:
            batch_checks.check_batches(self.mesh, inputs, targets, weighted=share is not None)
            self.check_shapes(inputs, targets, share)
        size = self.mesh.layout.data_size
        # Gradients are averaged over data ranks, so that an even share counts as 1.
        scale = 1.0 if share is None else self._weight(inputs, share) * size
        inputs, targets, kwargs = self._own_positions(inputs, targets)
        if self.model.pipeline is not None:
            value = self.model.pipeline.step(inputs, targets, loss=loss, scale=scale, kwargs=kwargs)
        else:
            value = self._accumulate(inputs, targets, loss, scale, kwargs)
        for tied in self.model.tied:
            tied.sum_gradient()
        if not self._checked:
            batch_checks.check_gradients(
                self.mesh, self.model.module, pipelined=self.model.pipeline is not None
            )
            self._checked = True
        return self._mean(value * scale)

    def check_shapes(self, inputs: Tensor, targets: Any, share: BatchShare | None) -> None:
        """Raise UsageError if this rank's rows of a batch do not fit the layout."""
        if share is not None:
            self._weight(inputs, share)
        batch_checks.check_targets(inputs, targets)
        length = inputs.shape[1] if inputs.dim() > 1 else 0
        if self.model.context is not None:
            self.model.context.cut(length, inputs.device)
        if self.model.pipeline is None:
            check_microbatches(len(inputs), self.settings.microbatches or 1)
            return
        self.model.pipeline.parts_of_batch(len(inputs))
        if self.settings.sequence:
            batch_checks.check_sequence(self.mesh.layout, length)

    def evaluate(self, inputs: Tensor, targets: Any, loss: LossFunction | None) -> Tensor:
        """Return the loss of this data rank's rows, on all ranks that share them."""
        loss = loss or cross_entropy
        module, layout = self.model.module, self.mesh.layout
        inputs, targets, kwargs = self._own_positions(inputs, targets)
        training = module.training
        module.eval()
        try:
            if self.model.pipeline is not None:
                value = self.model.pipeline.evaluate(inputs, targets, loss=loss, kwargs=kwargs)
            else:
                with torch.no_grad():
                    value = loss(module(inputs, **kwargs), targets)
        finally:
            module.train(training)
            _reshard(self.model)
        value = value.detach().double().clone()
        for axis in (MeshAxis.pipeline, MeshAxis.context):
            if layout.sizes[axis] > 1:
                torch.distributed.all_reduce(value, group=self.mesh.group(axis))
        return value / layout.context

    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradients to a 2-norm of `max_norm` at most; return what it was."""
        parameters = list(self.model.module.parameters())
        if isinstance(self.model.module, DistributedDataParallel):
            return nn.utils.clip_grad_norm_(parameters, max_norm)
        pipeline = self.mesh.group(MeshAxis.pipeline) if self.model.pipeline else None
        total = total_norm(parameters, pipeline=pipeline, tied=self.model.tied)
        clip(parameters, total, max_norm)
        return total

    def _weight(self, inputs: Tensor, share: BatchShare) -> float:
        if len(inputs) != len(share):
            raise UsageError(
                f"the batch has {len(inputs)} rows, and the share {len(share)}",
                hint="index the whole batch by share.rows",
            )
        return share.weight

    def _own_positions(self, inputs: Tensor, targets: Any) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """Return this rank's positions of each sequence, and the arguments that tell them."""
        length = inputs.shape[1] if inputs.dim() > 1 else 0
        if self.model.context is None:
            return inputs, targets, {}
        positions = self.model.context.cut(length, inputs.device)
        targets = targets[:, positions] if isinstance(targets, Tensor) else targets
        everywhere = positions.expand(len(inputs), -1)
        return inputs[:, positions], targets, {"positions": everywhere}

    def _accumulate(
        self,
        inputs: Tensor,
        targets: Any,
        loss: LossFunction,
        scale: float,
        kwargs: dict[str, Tensor],
    ) -> Tensor:
        """Run forward and backward over the parts of a batch; return their mean loss."""
        count = self.settings.microbatches or 1
        check_microbatches(len(inputs), count)
        values = []
        each = len(inputs) // count
        for turn in range(count):
            rows = slice(turn * each, (turn + 1) * each)
            given = {name: one[rows] for name, one in kwargs.items()}
            with self._summing(last=turn == count - 1):
                value = loss(self.model.module(inputs[rows], **given), targets[rows])
                torch.autograd.backward(value * (scale / count))
            values.append(value.detach())
        return torch.stack(values).mean()

    def _summing(self, *, last: bool) -> Any:
        """Sum gradients over ranks in the last part only."""
        module = self.model.module
        if isinstance(module, DistributedDataParallel):
            return nullcontext() if last else module.no_sync()
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(last)
        return nullcontext()

    def _mean(self, value: Tensor) -> Tensor:
        """Return the mean over data ranks of what the ranks of each data rank have."""
        layout = self.mesh.layout
        # Of a pipeline only the ranks with the last stage have a loss; the others have 0.
        alike = layout.tensor * layout.context * layout.data_size
        return self.mesh.sum_over_world(value) / alike


def _reshard(model: LaidOutModel) -> None:
    """Free what a forward pass without a backward pass leaves gathered."""
    parts = [] if model.pipeline is None else [one.module for one in model.pipeline.parts]
    for module in (model.module, *parts):
        for one in module.modules():
            if isinstance(one, FSDPModule):
                one.reshard()
