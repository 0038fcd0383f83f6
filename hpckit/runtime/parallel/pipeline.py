"""Runs batches through the stages of a pipeline by torch's schedules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleLoopedBFS
from torch.distributed.pipelining.schedules import get_schedule_class

from hpckit.errors import UsageError
from hpckit.model.counted import format_count
from hpckit.model.parallel.settings import SCHEDULES
from hpckit.runtime.parallel.gradients import set_earlier_gradients_aside
from hpckit.runtime.parallel.kept_state import preserve_module_state
from hpckit.runtime.parallel.pipeline_split import StagePart
from hpckit.values import dataclass, field

PartLoss = Callable[[Any, Any, float], Tensor]
"""Takes outputs and targets of some rows, and which part they are of all rows."""

_KEPT_SCHEDULES = 8
"""Batches of more shapes than these in turn are rehearsed again."""


def check_microbatches_divide_rows(rows: int, count: int) -> None:
    """Raise UsageError if rows cannot be cut into this many equal parts."""
    if rows % count:
        raise UsageError(
            f"a batch of {rows} rows on this rank cannot be cut into "
            f"parallel.microbatches={count} equal parts",
            hint=f"give each data rank a multiple of {count} rows, or leave parallel.microbatches out",
        )


class RehearsedStage(PipelineStage):
    """A stage that rehearses apart from its model, and has room for microbatches in flight only.

    Before the first batch of each shape torch runs every stage once, to learn the shapes of what
    stages send to each other: all but the first on memory that holds anything, in the mode of the
    step. Here they run on zeros, on copies of the buffers, and what they set is set back, which
    `pipeline` hears of. Torch also keeps what each microbatch of a step is received into.
    """

    def __init__(self, pipeline: Pipeline, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(module, *args, **kwargs)
        self._pipeline = pipeline

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with _rehearse_without_side_effects(self.submod, self._pipeline, on_zeros=not self.is_first):
            return super()._prepare_forward_infra(*args, **kwargs)

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        # With parallel.recompute the backward pass runs units again.
        with _rehearse_without_side_effects(self.submod, self._pipeline, on_zeros=False):
            found = super()._prepare_backward_infra(*args, **kwargs)
        for chunk in self.args_recv_info:
            self._free_received_buffers(chunk)
        return found

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        """Make room for the inputs of a microbatch, and return how they are received."""
        _allocate_receive_buffers(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        """Make room for the gradients of a microbatch, and return how they are received."""
        _allocate_receive_buffers(self.grad_recv_info.get(bwd_chunk_id, ()))
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass of a microbatch, and free what it received."""
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._free_received_buffers(bwd_chunk_id)

    def _free_received_buffers(self, chunk: int) -> None:
        for one in (*self.args_recv_info[chunk], *self.grad_recv_info.get(chunk, ())):
            if one.buffer is not None:
                one.buffer.grad = None
                one.buffer.untyped_storage().resize_(0)


def _allocate_receive_buffers(received: Sequence[Any]) -> None:
    for one in received:
        if one.buffer is not None:
            reach = zip(one.buffer.shape, one.buffer.stride(), strict=True)
            elements = 1 + sum((size - 1) * stride for size, stride in reach)
            one.buffer.untyped_storage().resize_(elements * one.buffer.itemsize)


@contextmanager
def _rehearse_without_side_effects(
    module: nn.Module, pipeline: Pipeline, *, on_zeros: bool
) -> Iterator[None]:
    handle = module.register_forward_pre_hook(_zero_inputs, prepend=True) if on_zeros else None
    pipeline.rehearses = True
    try:
        with preserve_module_state(module):
            yield
    finally:
        pipeline.rehearses = False
        if handle is not None:
            handle.remove()


def _zero_inputs(_: nn.Module, args: tuple[Any, ...]) -> None:
    with torch.no_grad():
        for arg in args:
            if isinstance(arg, Tensor):
                arg.detach().zero_()


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """Runs batches through the stages of this rank's replica; every rank of it makes the calls."""

    parts: Sequence[StagePart]
    stages: int
    schedule: str
    group: dist.ProcessGroup
    device: torch.device
    microbatches: int | None = None
    _schedules: OrderedDict[Any, Any] = field(default_factory=OrderedDict)
    """Those that ran last, by what they are for: each has memory of its own to receive into."""
    _loss: PartLoss | None = None
    _part: float = 1.0
    rehearses: bool = field(default=False, init=False)
    """Whether a rehearsal runs on this rank: torch also calls the loss only to learn of shapes, on
    numbers of no meaning."""

    @property
    def has_last_stage(self) -> bool:
        """Whether this rank has the last stage."""
        return self.parts[-1].number == self.stages - 1

    def step(self, inputs: Tensor, targets: Any, *, loss: PartLoss, kwargs: Mapping[str, Any]) -> None:
        """Run forward and backward.

        `loss`, which only the last stage calls, returns what to differentiate for a microbatch; it
        is told which part of the rows that is.
        """
        parts = self.count_microbatches(len(inputs))
        known, schedule = self._get_schedule(parts, inputs)
        self._part = 1 / parts
        with nullcontext() if known else set_earlier_gradients_aside(self._stage_parameters):
            self._run_schedule(schedule.step, inputs, targets, loss, kwargs)

    def evaluate(self, inputs: Tensor, targets: Any, *, loss: PartLoss, kwargs: Mapping[str, Any]) -> None:
        """Run forward only, all rows at once."""
        _, schedule = self._get_schedule(1, inputs, forward_only=True)
        self._part = 1.0
        with set_earlier_gradients_aside(self._stage_parameters):
            self._run_schedule(schedule.eval, inputs, targets, loss, kwargs)

    def _get_schedule(self, parts: int, inputs: Tensor, *, forward_only: bool = False) -> tuple[bool, Any]:
        key = (parts, tuple(inputs.shape), forward_only)
        schedule = self._schedules.pop(key, None)
        known = schedule is not None
        self._schedules[key] = schedule if known else self._make_schedule(parts, forward_only=forward_only)
        if len(self._schedules) > _KEPT_SCHEDULES:
            self._schedules.popitem(last=False)
        return known, self._schedules[key]

    def can_split_batch(self, rows: int) -> bool:
        """Return whether a batch of this many rows can be cut into microbatches."""
        return self._find_most_microbatches(rows) is not None

    def _find_most_microbatches(self, rows: int) -> int | None:
        if self.microbatches is not None:
            return None if rows % self.microbatches else self.microbatches
        wanted = range(2 * self.stages, self._fewest_microbatches - 1, -1)
        multiple = 1 if SCHEDULES[self.schedule] == 1 else self.group.size()
        return next((count for count in wanted if rows % count == 0 and count % multiple == 0), None)

    @property
    def _fewest_microbatches(self) -> int:
        return 1 if self.schedule == "GPipe" else self.stages

    def count_microbatches(self, rows: int) -> int:
        """Return into how many microbatches a batch is cut; raises UsageError if it cannot be."""
        if self.microbatches is not None:
            check_microbatches_divide_rows(rows, self.microbatches)
        parts, least = self._find_most_microbatches(rows), self._fewest_microbatches
        if parts is None:
            raise UsageError(
                f"a batch of {rows} rows on this rank cannot be cut into {least} to "
                f"{2 * self.stages} equal parts for {format_count(self.stages, 'pipeline stage')}",
                hint=f"take a multiple of {least} rows for each data rank",
            )
        return parts

    @property
    def _stage_parameters(self) -> list[nn.Parameter]:
        """All parameters of the stages; torch drops their gradients as a schedule learns shapes."""
        return [parameter for part in self.parts for parameter in part.module.parameters()]

    def _make_schedule(self, parts: int, *, forward_only: bool = False) -> Any:
        stages = [
            RehearsedStage(self, part.module, part.number, self.stages, self.device, group=self.group)
            for part in self.parts
        ]
        several = SCHEDULES[self.schedule] > 1
        forward: Any = ScheduleLoopedBFS if several else ScheduleGPipe
        kind: Any = forward if forward_only else get_schedule_class(self.schedule)
        # Torch would also divide the gradients that were there before.
        return kind(
            stages if several else stages[0],
            n_microbatches=parts,
            loss_fn=self._compute_loss,
            scale_grads=False,
        )

    def _compute_loss(self, outputs: Any, targets: Any) -> Tensor:
        assert self._loss is not None  # noqa: S101  # set while a schedule runs
        if self.rehearses:  # a number that has a gradient for each output; its value means nothing
            given = outputs if isinstance(outputs, tuple | list) else (outputs,)
            return torch.stack([tensor.abs().sum().float() for tensor in given]).sum()
        return self._loss(outputs, targets, self._part)

    def _run_schedule(
        self, run: Callable[..., Any], inputs: Tensor, targets: Any, loss: PartLoss, kwargs: Mapping[str, Any]
    ) -> None:
        first = (inputs,) if self.parts[0].number == 0 else ()
        for part in self.parts:
            part.copy_attribute_changes()
        self._loss = loss
        try:
            if self.has_last_stage:
                run(*first, target=targets, losses=[], return_outputs=False, **kwargs)
            else:
                run(*first, **kwargs)
        finally:
            self._loss = None
