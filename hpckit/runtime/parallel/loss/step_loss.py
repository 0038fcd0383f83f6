"""The loss of a step, which is that of the whole batch, whatever part of it a rank has.

Cross entropy is also that of logits whose vocabulary is cut over ranks: no rank has, or gathers,
all of them. The largest logit, the sum of exponentials and the logit of the target are exchanged, a
number for each position (Shoeybi et al. 2019, Megatron-LM, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # as in torch's own documentation
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from hpckit.errors import UsageError
from hpckit.runtime.parallel.arguments import LossFunction
from hpckit.runtime.parallel.loss.loss_check import LossCheck
from hpckit.values import dataclass, field

_TREES: Any = torch.utils._pytree  # noqa: SLF001  # torch has no other
_PROPERTIES = ("shape", "dtype", "device", "ndim", "requires_grad", "grad_fn", "is_leaf", "is_cuda", "_base")
_READING = {getattr(Tensor, name).__get__ for name in _PROPERTIES} | {
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.register_hook)
}
"""What tells of a tensor without its values, or is torch's own."""
_EACH = frozenset(
    {
        *("mul", "mul_", "__mul__", "__rmul__", "__imul__", "add", "add_", "__add__", "__radd__"),
        *("__iadd__", "div", "__truediv__", "tanh", "float", "to", "view_as", "detach"),
    }
)
"""What models, and torch for hooks on backward passes, do to each logit by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutVocabulary:
    """Which entries a rank's logits are for: `size` of them from `first` on, of `total`."""

    group: dist.ProcessGroup
    first: int
    total: int


class CutLogits(DTensor):
    """Logits [..., classes] that are cut along their classes, while a model's forward has them.

    What is not computed for each logit by itself gets all of them, as a plain tensor.
    """

    __slots__ = ()

    @classmethod
    def __torch_function__(cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch on what this rank has, or else on all of it."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  # in torch's documentation
            if func in _READING:
                return func(*args, **kwargs)
            leaves = _TREES.tree_leaves((args, kwargs))
            tensors = {id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
            if len(tensors) == 1 and getattr(func, "__name__", "") in _EACH:
                return mark_as_cut_logits(func(*args, **kwargs))
            args, kwargs = gather_cut_logits((args, kwargs))
        return func(*args, **kwargs)

    def local_logits(self) -> Tensor:
        """Return the plain logits that this rank has; their `cut_vocabulary` says of which."""
        mesh, classes = self.device_mesh, self._spec.shape[-1]
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            local: Any = self.to_local()
        _, first = Shard.local_shard_size_and_offset(classes, mesh.size(), mesh.get_local_rank())
        local.cut_vocabulary = CutVocabulary(group=mesh.get_group(), first=int(first), total=int(classes))
        return local  # type: ignore[no-any-return]


def mark_as_cut_logits(output: DTensor) -> DTensor:
    """Have a DTensor that is cut along its last dimension stay so until all of it is needed."""
    if output.placements == (Shard(len(output._spec.shape) - 1),):  # noqa: SLF001
        output.__class__ = CutLogits
    return output


def gather_cut_logits(value: Any) -> Any:
    """Return a value in which logits that are cut are whole, plain tensors; collective."""

    def gather_logits(one: CutLogits) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            all_of_it: Tensor = one.redistribute(placements=[Replicate()]).to_local()
        return all_of_it

    return _TREES.tree_map_only(CutLogits, gather_logits, value)


def sum_cross_entropy_over_ranks(logits: Tensor, targets: Tensor, cut: CutVocabulary, ignored: int) -> Tensor:
    """Return the summed cross entropy, float64, the same on each rank of the group; collective.

    Logits are this rank's, [..., own classes], and targets [...] whole numbers of all classes.
    """
    counted = targets != ignored
    is_right = (~counted | ((targets >= 0) & (targets < cut.total))).all()
    torch._assert_async(is_right, f"a target is outside of the {cut.total} classes")  # noqa: SLF001
    summed: Tensor = _SummedCrossEntropy.apply(logits, targets, counted, cut)  # type: ignore[no-untyped-call]
    return summed


class _SummedCrossEntropy(torch.autograd.Function):
    """Keeps the logits as they are given for the backward pass, and computes in float32 or more."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, counted: Tensor, cut: CutVocabulary) -> Tensor:
        numbers = _widen_to_float32(logits)
        own = targets - cut.first
        here = counted & (own >= 0) & (own < logits.shape[-1])
        own = torch.where(here, own, 0)
        most = numbers.amax(-1)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=cut.group)
        sums = (numbers - most.unsqueeze(-1)).exp_().sum(-1)
        taken = numbers.gather(-1, own.unsqueeze(-1)).squeeze(-1)
        both = torch.stack([sums, torch.where(here, taken, 0.0)])
        dist.all_reduce(both, group=cut.group)
        total = most + both[0].log()
        ctx.save_for_backward(logits, total, own, here, counted)
        return torch.where(counted, total - both[1], 0.0).sum().double()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradient of this rank's logits: probabilities, less one for the target."""
        logits, total, own, here, counted = ctx.saved_tensors
        shares = (_widen_to_float32(logits) - total.unsqueeze(-1)).exp_()
        shares.scatter_add_(-1, own.unsqueeze(-1), -here.unsqueeze(-1).to(shares))
        shares *= (counted * gradients[0]).unsqueeze(-1).to(shares)
        return shares.to(logits.dtype), None, None, None


def _widen_to_float32(logits: Tensor) -> Tensor:
    """Return numbers of at least float32: sums of bfloat16 lose a percent over many targets."""
    return logits.float() if logits.dtype.itemsize < torch.float32.itemsize else logits


_IGNORED = -100
"""Targets that torch's cross entropy leaves out."""


def summed_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the summed cross entropy of logits [..., classes] for whole numbers [...], in float64.

    Targets of -100 do not count. Sums of bfloat16 would lose a percent over many targets. Logits
    whose classes are cut over ranks are not gathered: then it is collective.
    """
    cut = getattr(outputs, "cut_vocabulary", None)
    if cut is not None:
        return sum_cross_entropy_over_ranks(outputs, targets, cut, _IGNORED)
    if outputs.dtype.itemsize < torch.float32.itemsize:
        outputs = outputs.float()
    summed = F.cross_entropy(
        outputs.flatten(0, -2), targets.flatten(), reduction="sum", ignore_index=_IGNORED
    )
    return summed.double()


def count_targets(targets: Tensor) -> Tensor:
    """Return how many targets are not ignored, on their device."""
    return (targets != _IGNORED).sum()


def compute_loss_and_weight(
    function: LossFunction | None, outputs: Any, targets: Any
) -> tuple[Tensor, Tensor, bool]:
    """Return the loss of some rows, a sum and its weight in float64, and if a function told both.

    Without a function it is the cross entropy.
    Raises UsageError if a function returns neither a number nor a sum and its weight.
    """
    if function is None:
        summed, count = summed_cross_entropy(outputs, targets), count_targets(targets)
        return summed, count.double(), False
    found = function(outputs, targets)
    pair = isinstance(found, tuple) and len(found) == len(("sum", "weight"))
    given: Any = found[0] if pair else found
    weight: Any = found[1] if pair else 1.0
    if not isinstance(given, Tensor) or given.numel() != 1 or torch.as_tensor(weight).numel() != 1:
        shown = list(given.shape) if isinstance(given, Tensor) else type(found).__name__
        raise UsageError(
            f"loss(outputs, targets) returned {shown}",
            hint="return a mean over rows, as a tensor with one number, or a pair: a sum and its weight",
        )
    value = given.double().reshape(())
    weight = torch.as_tensor(weight).detach().to(value).reshape(())
    return value, weight, pair


def _refuse_detached_loss(value: Tensor) -> None:
    if not value.requires_grad:
        raise UsageError(
            "the loss of this step has no gradient: it depends on no trainable parameter, or its "
            "inputs were detached (.detach(), .item(), torch.no_grad())",
            hint="compute it from the outputs of the model by torch's own functions, outside of "
            "torch.no_grad(), and leave some parameters with requires_grad",
        )


def divide_or_zero(value: Tensor, weight: Tensor) -> Tensor:
    """Return a sum over its weight; 0 where nothing has a weight."""
    return torch.where(weight == 0, 0.0, value / weight)


@dataclass(slots=True, kw_only=True)
class StepLoss:
    """What one rank has of the loss of a step; without a function it is the cross entropy.

    `scale` is what a mean over this rank's rows is multiplied by, or a sum over targets; or what waits for
    it. `total` is the sum of what was differentiated so far, and `weights` are those of its parts, float64,
    if the function returns a `pair`; None until it was called. Pairs are differentiated as sums.
    """

    function: LossFunction | None
    scale: Tensor | float | Callable[[], Tensor]
    check: LossCheck | None = None
    total: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    weights: list[Tensor] = field(default_factory=list)
    pair: bool | None = None

    def compute_part_loss(self, outputs: Any, targets: Any, part: float, *, whole: float = 1.0) -> Tensor:
        """Return what to differentiate for some rows: a `part` of those of which `whole` is told.

        The product of both is which part they are of this rank's rows; 0 counts nothing. The value
        is float64.
        """
        part *= whole
        if self.function is None:  # the targets of the whole batch are counted once, for the scale
            self.pair, value = False, summed_cross_entropy(outputs, targets)
        else:
            value, weight, self.pair = compute_loss_and_weight(self.function, outputs, targets)
        _refuse_detached_loss(value)
        if not part:  # also what is NaN
            return torch.nan_to_num(value) * 0.0
        if self.function is None:
            value = value * self.wait_for_loss_multiplier()
        else:
            if self.check is not None:
                self.check.trace_loss_graph_once(value, outputs, targets)
                self.check.check_loss_on_part(self.function, outputs, targets)
            if self.pair:
                self.weights.append(weight)
            else:
                value = value * (self.wait_for_loss_multiplier() * part)
        self.total = self.total.to(value.device) + value.detach()
        return value

    def wait_for_loss_multiplier(self) -> Tensor | float:
        """Return the scale; waits for it if ranks still count."""
        if not isinstance(self.scale, Tensor | float):
            self.scale = self.scale()
        return self.scale

    @property
    def total_weight(self) -> Tensor:
        """The sum of the weights of all parts; 0 without any."""
        return torch.stack(self.weights).sum() if self.weights else torch.zeros_like(self.total)

    def explain_refused_loss(self) -> tuple[str, str]:
        """Return why the function cannot be taken, as far as its values tell, and what to do.

        Empty if it can.
        """
        if self.function is None or self.check is None:
            return "", ""
        self.check.finish_check(self.function, pair=self.pair is True)
        return self.check.problem, self.check.hint
