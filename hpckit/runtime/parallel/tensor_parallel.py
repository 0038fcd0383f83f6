"""Cuts the matrices of a model over the ranks of the tensor axis, as its plan says.

Every parameter becomes a DTensor on the tensor mesh, also one that all ranks hold whole: clipping,
optimizers and checkpoints then need nothing special. Between a column layer and the row layer that
follows it, tensors are the plain local part, so that a model's own code works on its own heads.

With sequence parallelism, activations outside of these pairs are DTensors, sharded along the
sequence (dimension 1).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.settings import Parallel, Recompute
from hpckit.runtime.parallel.column_inputs import ColumnInputs
from hpckit.runtime.parallel.loss.cut_vocabulary import CutLogits, as_cut_logits, gathered
from hpckit.runtime.parallel.model_checks import cut_axis
from hpckit.values import dataclass, field

_SEQUENCE = Shard(1)
_WHOLE = Replicate()
_TORCHS = (RuntimeError, NotImplementedError)


@dataclass(slots=True, kw_only=True)
class TensorCut:
    """Cuts one model. `units` are the names of the modules that repeat.

    Compiled ones cannot gather an input once for several columns, nor say what the plan leaves out.
    """

    mesh: DeviceMesh
    plan: Plan
    units: tuple[str, ...]
    settings: Parallel
    _made: dict[int, nn.Parameter] = field(default_factory=dict)
    _blamed: str = ""
    """What was noted last on an error of torch's."""
    _whole_given: set[str] = field(default_factory=set)
    """The modules in `sequence` that were given a plain tensor, such as a rank's own heads."""
    keeps_logits: bool = False
    """Whether the logits of a head in columns stay cut, as the loss of this step takes them."""

    def apply(self, model: nn.Module) -> None:
        """Cut the model in place. All ranks must hold the same parameters.

        The plan has been checked: parameters that are tied are cut alike.
        """
        modules = dict(model.named_modules())
        columns = set(self.plan.matching(self.plan.columns, modules))
        rows = set(self.plan.matching(self.plan.rows, modules))
        norms = set(self.plan.matching(self.plan.sequence, modules))
        inputs = ColumnInputs(
            place=partial(self._placed, wanted=_WHOLE),
            keeps_parts=self.settings.recompute is Recompute.none,
        )
        for name, module in modules.items():
            unit = next((unit for unit in self.units if name.startswith(unit + ".")), None)
            inside = unit is not None
            if name in columns:
                self._cut_columns(module, inside=inside)
                if self.settings.compile:
                    module.register_forward_pre_hook(self._as(_WHOLE))
                else:
                    inputs.gather_for(module, module if unit is None else modules[unit])
            elif name in rows:
                self._cut_rows(module)
            elif name in norms and self.settings.sequence:
                self._replicate(module)
                module.register_forward_pre_hook(self._as(_SEQUENCE, name))
            elif _own(module):
                self._replicate(module)
                if not _is_container(module):
                    self._hook_whole(module, inside=inside)
        self._made.clear()  # FSDP shards copies of them, and hooks keep this object
        for unit in () if self.settings.compile else self.units:
            self._watch_unit(unit, modules[unit], columns | rows | norms)

    def blamed_for(self, error: BaseException) -> str:
        """Return which layers of a unit may have raised an error of torch's; "" if none."""
        at: BaseException | None = error
        while at is not None and self._blamed not in getattr(at, "__notes__", ()):
            at = at.__cause__  # a pipeline's schedule raises its own
        return self._blamed if at is not None else ""

    def place_gradients(self, model: nn.Module) -> None:
        """Have gradients placed as their parameters are; for parameters that no FSDP handles.

        Frozen ones, too: they may learn later.
        """
        for parameter in model.parameters():
            learns, parameter.requires_grad = (
                parameter.requires_grad,
                True,
            )  # else torch takes no hook
            parameter.register_post_accumulate_grad_hook(_place_gradient)  # type: ignore[no-untyped-call]
            parameter.requires_grad = learns

    def end(self, model: nn.Module) -> None:
        """Have a model return plain tensors: all of them, or its own part of the logits."""

        def after(_: nn.Module, __: Any, output: Any) -> Any:
            if self.keeps_logits and isinstance(output, CutLogits):
                return output.here()
            return _plain_output(_, __, gathered(output))

        model.register_forward_hook(after)

    def join_stages(self, part: nn.Module, *, first: bool, last: bool) -> None:
        """Have a pipeline stage send and receive its own part of the sequence as plain tensors."""
        if not self.settings.sequence:
            return
        if not first:
            part.register_forward_pre_hook(self._as(_SEQUENCE, plain=_SEQUENCE))
        if not last:
            part.register_forward_hook(_local_output)

    def _watch_unit(self, name: str, unit: nn.Module, planned: set[str]) -> None:
        """Note the layers that a plan leaves out when torch cannot compute the unit with them."""
        left_out: list[str] = []
        for key, module in unit.named_modules(prefix=name):
            if key not in planned and _own(module):
                own = [f"{key}.{one}" for one in _own(module)]
                left_out += own if _is_container(module) else [key]

        def after(_: nn.Module, __: Any, ___: Any) -> None:
            error = sys.exception()
            if error is None or type(error) not in _TORCHS or hasattr(error, "__notes__"):
                return  # torch raises them for sizes, and for tensors that are cut and whole ones
            misplaced = [key for key in self._whole_given if key.startswith(f"{name}.")]
            told = [
                *([f"leaves out {', '.join(left_out)}"] if left_out else []),
                *([f"has {', '.join(misplaced)} in sequence for heads"] if misplaced else []),
            ]
            if told:
                words = " ".join(str(error).split())
                self._blamed = f"{name} fails, and the plan {' and '.join(told)} (torch: {words})"
                error.add_note(self._blamed)

        unit.register_forward_hook(after, always_call=True)

    def _cut_columns(self, module: nn.Module, *, inside: bool) -> None:
        self._distribute(module, _placements(module, columns=True))
        module.register_forward_hook(_local_output if inside else self._put_together)

    def _put_together(self, _: nn.Module, __: Any, output: Any) -> Any:
        """Return the whole output of columns outside of units, or what gets whole when needed."""
        if self.keeps_logits and isinstance(output, DTensor):
            return as_cut_logits(output)
        return _plain_output(_, __, output)

    def _cut_rows(self, module: nn.Module) -> None:
        self._distribute(module, _placements(module, columns=False))
        given = _WHOLE if isinstance(module, nn.Embedding) else Shard(-1)
        module.register_forward_pre_hook(self._as(given, plain=given))
        module.register_forward_hook(_cut_output if self.settings.sequence else _plain_output)

    def _replicate(self, module: nn.Module) -> None:
        self._distribute(module, dict.fromkeys(_own(module), _WHOLE))

    def _hook_whole(self, module: nn.Module, *, inside: bool) -> None:
        """Have a module that the plan cuts nowhere work on whole tensors.

        Its output stays a DTensor as its input was one, or if it goes from unit to unit.
        """
        were_sharded = not inside

        def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            nonlocal were_sharded
            were_sharded = not inside or any(isinstance(arg, DTensor) for arg in args)
            return tuple(self._placed(arg, _WHOLE) for arg in args)

        def after(_: nn.Module, __: Any, output: Any) -> Any:
            keeps = self.settings.sequence and were_sharded
            return output if keeps else _plain_output(_, __, output)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)

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

    def _as(self, wanted: Placement, name: str | None = None, *, plain: Placement = _WHOLE) -> Any:
        """Return a hook that has the first input placed like this; plain ones are as `plain`.

        It notes the name of a module that was given one.
        """

        def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            if name is not None and not isinstance(args[0], DTensor):
                self._whole_given.add(name)
            return (self._placed(args[0], wanted, plain), *args[1:])

        return before

    def _placed(self, value: Any, wanted: Placement, plain: Placement = _WHOLE) -> Any:
        if not isinstance(value, Tensor):
            return value
        if not isinstance(value, DTensor):
            value = DTensor.from_local(value, self.mesh, [plain], run_check=False)
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


def _cut_output(_: nn.Module, __: Any, output: Any) -> Any:
    """Return the output cut along the sequence."""
    return output.redistribute(placements=[_SEQUENCE])


def _plain_output(_: nn.Module, __: Any, output: Any) -> Any:
    """Return the whole output as a plain tensor."""
    if not isinstance(output, DTensor):
        return output
    if output.placements != (_WHOLE,):
        output = output.redistribute(placements=[_WHOLE])
    return output.to_local()
