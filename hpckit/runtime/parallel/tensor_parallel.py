"""Cuts the matrices of a model over the ranks of the tensor axis, as its plan says.

Every parameter becomes a DTensor on the tensor mesh, also one that all ranks hold whole: clipping,
optimizers and checkpoints then need nothing special. Between a column layer and the row layer that
follows it, tensors are the plain local part, so that a model's own code works on its own heads.

With sequence parallelism, activations outside of these pairs are DTensors, sharded along the
sequence (dimension 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from hpckit.model.parallel.plan import Plan
from hpckit.runtime.parallel.loss.cut_vocabulary import CutLogits, as_cut_logits, gathered
from hpckit.runtime.parallel.model_checks import cut_axis

_SEQUENCE = Shard(1)
_WHOLE = Replicate()


@dataclass(slots=True, kw_only=True)
class TensorCut:
    """Cuts one model. `sequence`: activations are sharded along the sequence, too.

    `units` are the names of the modules that repeat. With `gathers_once`, columns that take the
    same input gather it once; compiled units cannot keep it for each other.
    """

    mesh: DeviceMesh
    plan: Plan
    sequence: bool
    gathers_once: bool = True
    units: tuple[str, ...]
    _made: dict[int, nn.Parameter] = field(default_factory=dict)
    keeps_logits: bool = False
    """Whether the logits of a head in columns stay cut, as the loss of this step takes them."""
    _gathered: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """The input that was gathered last, and all of it, while its unit runs."""

    def apply(self, model: nn.Module) -> None:
        """Cut the model in place. All ranks must hold the same parameters.

        The plan has been checked: parameters that are tied are cut alike.
        """
        modules = dict(model.named_modules())
        columns = set(self.plan.matching(self.plan.columns, modules))
        rows = set(self.plan.matching(self.plan.rows, modules))
        norms = set(self.plan.matching(self.plan.sequence, modules))
        for name, module in modules.items():
            inside = any(name.startswith(unit + ".") for unit in self.units)
            if name in columns:
                self._cut_columns(module, inside=inside)
            elif name in rows:
                self._cut_rows(module)
            elif name in norms and self.sequence:
                self._replicate(module)
                module.register_forward_pre_hook(self._as(_SEQUENCE))
            elif next(module.parameters(recurse=False), None) is not None:
                self._replicate(module)
                if not _is_container(module):
                    self._hook_whole(module, keeps=self.sequence and not inside)
        for name in self.units if self.gathers_once else ():
            modules[name].register_forward_hook(self._forget)
        self._made.clear()  # FSDP shards copies of them, and hooks keep this object

    def place_gradients(self, model: nn.Module) -> None:
        """Have gradients placed as their parameters are; for parameters that no FSDP handles.

        Frozen ones, too: they may learn later.
        """
        for one in model.parameters():
            learns, one.requires_grad = one.requires_grad, True  # else torch takes no hook
            one.register_post_accumulate_grad_hook(_place_gradient)  # type: ignore[no-untyped-call]
            one.requires_grad = learns

    def end(self, model: nn.Module) -> None:
        """Have a model return plain tensors: all of them, or its own part of the logits."""

        def after(_: nn.Module, __: Any, output: Any) -> Any:
            if self.keeps_logits and isinstance(output, CutLogits):
                return output.here()
            return _plain_output(_, __, gathered(output))

        model.register_forward_hook(after)

    def join_stages(self, part: nn.Module, *, first: bool, last: bool) -> None:
        """Have a pipeline stage send and receive its own part of the sequence as plain tensors."""
        if not self.sequence:
            return
        if not first:
            part.register_forward_pre_hook(self._from(_SEQUENCE))
        if not last:
            part.register_forward_hook(_local_output)

    def _cut_columns(self, module: nn.Module, *, inside: bool) -> None:
        self._distribute(module, _placements(module, columns=True))
        gathered = self._gather if inside and self.gathers_once else self._as(_WHOLE)
        module.register_forward_pre_hook(gathered)
        module.register_forward_hook(_local_output if inside else self._put_together)

    def _put_together(self, _: nn.Module, __: Any, output: Any) -> Any:
        """Return the whole output of columns outside of units, or what gets whole when needed."""
        if self.keeps_logits and isinstance(output, DTensor):
            return as_cut_logits(output)
        return _plain_output(_, __, output)

    def _cut_rows(self, module: nn.Module) -> None:
        self._distribute(module, _placements(module, columns=False))
        given = _WHOLE if isinstance(module, nn.Embedding) else Shard(-1)
        module.register_forward_pre_hook(self._from(given))
        module.register_forward_hook(self._to(_SEQUENCE) if self.sequence else _plain_output)

    def _replicate(self, module: nn.Module) -> None:
        self._distribute(module, dict.fromkeys(_own(module), _WHOLE))

    def _hook_whole(self, module: nn.Module, *, keeps: bool) -> None:
        """Have a module work on whole tensors; `keeps`: its output stays a DTensor."""

        def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(self._placed(one, _WHOLE) for one in args)

        module.register_forward_pre_hook(before)
        if not keeps:
            module.register_forward_hook(_plain_output)

    def _distribute(self, module: nn.Module, placements: Mapping[str, Placement]) -> None:
        """Put parameters in place, one for all names that are tied: they are cut alike."""
        for key, parameter in list(module.named_parameters(recurse=False)):
            made = self._made.get(id(parameter))
            if made is None:
                local = distribute_tensor(
                    parameter.data, self.mesh, [placements[key]], src_data_rank=None
                )
                new = nn.Parameter(local, requires_grad=parameter.requires_grad)
                made = self._made[id(parameter)] = self._made[id(new)] = new
            setattr(module, key, made)

    def _as(self, wanted: Placement) -> Any:
        """Return a hook that has the first input placed like this; plain inputs are whole."""

        def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (self._placed(args[0], wanted), *args[1:])

        return before

    def _gather(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Have the first input whole: once for all columns that take the same, such as queries."""
        given = args[0]
        if self._gathered and self._gathered[0][0] is given:
            return (self._gathered[0][1], *args[1:])
        whole = self._placed(given, _WHOLE)
        if isinstance(given, Tensor):
            self._gathered = [(given, whole)]
        return (whole, *args[1:])

    def _forget(self, _: nn.Module, __: Any, ___: Any) -> None:
        """Free what a unit has gathered."""
        self._gathered = []

    def _from(self, given: Placement) -> Any:
        """Return a hook that takes a plain first input as placed like this."""

        def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            first = args[0]
            if isinstance(first, DTensor):
                return (first.redistribute(placements=[given]), *args[1:])
            return (DTensor.from_local(first, self.mesh, [given], run_check=False), *args[1:])

        return before

    def _to(self, wanted: Placement) -> Any:
        def after(_: nn.Module, __: Any, output: Any) -> Any:
            return output.redistribute(placements=[wanted])

        return after

    def _placed(self, value: Any, wanted: Placement) -> Any:
        if not isinstance(value, Tensor):
            return value
        if not isinstance(value, DTensor):
            value = DTensor.from_local(value, self.mesh, [_WHOLE], run_check=False)
        return value if value.placements == (wanted,) else value.redistribute(placements=[wanted])


@contextmanager
def keeping_logits(cut: TensorCut | None, *, given: bool) -> Iterator[None]:
    """Have logits stay cut over ranks for the cross entropy; a loss that is given gets all."""
    if cut is not None:
        cut.keeps_logits = not given
    try:
        yield
    finally:
        if cut is not None:
            cut.keeps_logits = False


def _place_gradient(parameter: Tensor) -> None:
    """Place a gradient as its parameter: add up parts, or keep this rank's own."""
    gradient = parameter.grad
    assert isinstance(parameter, DTensor)  # noqa: S101  # registered for these alone
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def _placements(module: nn.Module, *, columns: bool) -> dict[str, Placement]:
    """Return how the parameters of a layer in columns, or else in rows, are cut."""
    axes = {key: cut_axis(module, key, columns=columns) for key in _own(module)}
    return {key: _WHOLE if axis is None else Shard(axis) for key, axis in axes.items()}


def _own(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters(recurse=False)]


def _is_container(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _local_output(_: nn.Module, __: Any, output: Any) -> Any:
    """Return this rank's own part."""
    return output.to_local() if isinstance(output, DTensor) else output


def _plain_output(_: nn.Module, __: Any, output: Any) -> Any:
    """Return the whole output as a plain tensor."""
    if not isinstance(output, DTensor):
        return output
    if output.placements != (_WHOLE,):
        output = output.redistribute(placements=[_WHOLE])
    return output.to_local()
