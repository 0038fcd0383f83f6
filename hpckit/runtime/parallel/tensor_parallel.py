"""Cuts the matrices of a model over the ranks of the tensor axis, as its plan says.

Every parameter becomes a DTensor on the tensor mesh, also one that all ranks hold whole: clipping,
optimizers and checkpoints then need nothing special. Between a column layer and the row layer that
follows it, tensors are the plain local part, so that a model's own code works on its own heads.

With sequence parallelism, activations outside of these pairs are DTensors, sharded along the
sequence (dimension 1). A rank gathers the input of columns for the forward pass, keeps its own part
of it, and gathers it again for the backward pass (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.settings import Parallel, Recompute
from hpckit.runtime.parallel.loss.step_loss import CutLogits, gather_cut_logits, mark_as_cut_logits
from hpckit.runtime.parallel.model_checks import find_cut_axis
from hpckit.runtime.parallel.pipeline_split import StagePart
from hpckit.values import dataclass, field


@dataclass(slots=True, kw_only=True, eq=False)
class InputPart:
    """A rank's part of an input, of which `count` operations need all for their backward passes.

    It is gathered for the first of them, and freed after the last one. `address` is that of all of
    it while the forward pass has it.
    """

    part: DTensor
    address: int
    elements: int
    version: int
    count: int = 0
    _left: int = 0
    _whole: Tensor | None = None

    @classmethod
    def from_gathered(cls, part: DTensor, whole: DTensor) -> InputPart:
        """Return the part that is kept of an input that has just been gathered."""
        kept: Any = part.detach()  # a DTensor, too
        address = _local_storage(whole).data_ptr()
        return cls(part=kept, address=address, elements=whole.numel(), version=kept._version)  # noqa: SLF001

    def pack_for_backward(self, tensor: Tensor) -> Tensor | Callable[[], Tensor]:
        """Return what a graph keeps for a tensor that an operation wants to be kept.

        For all of this input that is what gathers it in the shape in which the operation took it.
        """
        if not isinstance(tensor, DTensor) or tensor.numel() != self.elements:
            return tensor
        if not tensor.is_contiguous() or _local_storage(tensor).data_ptr() != self.address:
            return tensor
        self.count += 1
        return partial(self.gather_again, tensor.shape)

    def gather_again(self, shape: torch.Size) -> DTensor:
        """Return all of it, for one of the operations that need it; collective."""
        if self.part._version != self.version:  # noqa: SLF001
            raise RuntimeError(
                "the input of a layer in columns was changed in place before its backward pass"
            )
        if self._whole is None:
            self._left = self.count
            with torch.no_grad():
                self._whole = self.part.redistribute(placements=[Replicate()]).to_local()
        whole, self._left = self._whole, self._left - 1
        if self._left == 0:
            self._whole = None
        mesh = self.part.device_mesh
        return DTensor.from_local(whole.view(shape), mesh, [Replicate()], run_check=False)


@dataclass(slots=True, kw_only=True)
class ColumnInputs:
    """Has the layers in columns of a model take all of their input.

    `place` makes a DTensor of all of an input. Layers of a unit that take the same input, such as
    query and key, gather it once. `keeps_parts`: a unit is not computed again for its backward
    pass, so what it keeps counts.
    """

    place: Callable[[Any], Any]
    keeps_parts: bool
    _gathered: list[tuple[Tensor, Any, InputPart | None]] = field(default_factory=list)
    """The input that was gathered last, while its unit runs."""
    _saving: dict[nn.Module, saved_tensors_hooks] = field(default_factory=dict)

    def gather_inputs_of(self, layer: nn.Module, unit: nn.Module) -> None:
        """Have a layer take all of its input; nothing is left of it when its unit has run."""
        layer.register_forward_pre_hook(self._gather_input)
        layer.register_forward_hook(self._leave_saved_tensors_hooks, always_call=True)
        unit.register_forward_hook(self._forget_gathered, always_call=True)

    def _gather_input(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        given = args[0]
        if not self._gathered or self._gathered[0][0] is not given:
            whole, part = self.place(given), None
            if self.keeps_parts and isinstance(given, DTensor) and whole is not given:
                part = InputPart.from_gathered(given, whole)
            self._gathered = [(given, whole, part)]
        _, whole, part = self._gathered[0]
        if part is not None:
            self._saving[layer] = saved_tensors_hooks(part.pack_for_backward, _unpack_saved)
            self._saving[layer].__enter__()
        return (whole, *args[1:])

    def _leave_saved_tensors_hooks(self, layer: nn.Module, _: Any, __: Any) -> None:
        saving = self._saving.pop(layer, None)
        if saving is not None:
            saving.__exit__()

    def _forget_gathered(self, _: nn.Module, __: Any, ___: Any) -> None:
        self._gathered = []


def _unpack_saved(saved: Tensor | Callable[[], Tensor]) -> Tensor:
    return saved if isinstance(saved, Tensor) else saved()


def _local_storage(tensor: DTensor) -> torch.UntypedStorage:
    local = tensor._local_tensor  # noqa: SLF001
    waiting: Tensor = getattr(local, "elem", local)  # of a tensor that is still being gathered
    return waiting.untyped_storage()


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

    def cut_model(self, model: nn.Module) -> None:
        """Cut the model in place. All ranks must hold the same parameters.

        The plan has been checked: parameters that are tied are cut alike.
        """
        modules = dict(model.named_modules())
        columns = set(self.plan.match_names(self.plan.columns, modules))
        rows = set(self.plan.match_names(self.plan.rows, modules))
        norms = set(self.plan.match_names(self.plan.sequence, modules))
        inputs = ColumnInputs(
            place=partial(self._redistribute_if_tensor, wanted=_WHOLE),
            keeps_parts=self.settings.recompute is Recompute.none,
        )
        for name, module in modules.items():
            unit = next((unit for unit in self.units if name.startswith(unit + ".")), None)
            inside = unit is not None
            if name in columns:
                self._distribute_parameters(module, _choose_placements(module, columns=True))
                module.register_forward_hook(_to_local_output if inside else self._gather_column_output)
                if self.settings.compile:
                    module.register_forward_pre_hook(self._make_placement_hook(_WHOLE))
                else:
                    inputs.gather_inputs_of(module, module if unit is None else modules[unit])
            elif name in rows:
                self._cut_row_layer(module)
            elif name in norms and self.settings.sequence:
                self._replicate_parameters(module)
                module.register_forward_pre_hook(self._make_placement_hook(_SEQUENCE, name))
            elif _list_direct_parameters(module):
                self._replicate_parameters(module)
                if not _has_children(module):
                    self._run_on_whole_tensors(module, inside=inside)
        self._made.clear()  # FSDP shards copies of them, and hooks keep this object
        for unit in () if self.settings.compile else self.units:
            self._annotate_errors_of_unit(unit, modules[unit], columns | rows | norms)

    def explain_unit_error(self, error: BaseException) -> str:
        """Return which layers of a unit may have raised an error of torch's; "" if none."""
        at: BaseException | None = error
        while at is not None and self._blamed not in getattr(at, "__notes__", ()):
            at = at.__cause__  # a pipeline's schedule raises its own
        return self._blamed if at is not None else ""

    def hook_gradient_placement(self, model: nn.Module) -> None:
        """Have gradients placed as their parameters are; for parameters that no FSDP handles.

        Frozen ones, too: they may learn later.
        """
        for parameter in model.parameters():
            learns, parameter.requires_grad = (parameter.requires_grad, True)  # else torch takes no hook
            parameter.register_post_accumulate_grad_hook(_place_gradient_like_parameter)  # type: ignore[no-untyped-call]
            parameter.requires_grad = learns

    def pass_sequence_parts_between_stages(self, parts: Sequence[StagePart], stages: int) -> None:
        """Have pipeline stages pass their own part of the sequence to each other as plain tensors.

        The last one returns plain tensors, too: all of them, or its own part of the logits.
        """

        def convert_last_output(_: nn.Module, __: Any, output: Any) -> Any:
            if self.keeps_logits and isinstance(output, CutLogits):
                return output.local_logits()
            return _to_whole_plain_output(_, __, gather_cut_logits(output))

        for part in parts:
            if part.number > 0 and self.settings.sequence:
                before = self._make_placement_hook(_SEQUENCE, plain=_SEQUENCE)
                part.module.register_forward_pre_hook(before)
            if part.number == stages - 1:
                part.module.register_forward_hook(convert_last_output)
            elif self.settings.sequence:
                part.module.register_forward_hook(_to_local_output)

    def _annotate_errors_of_unit(self, name: str, unit: nn.Module, planned: set[str]) -> None:
        """Note the layers that a plan leaves out when torch cannot compute the unit with them."""
        left_out: list[str] = []
        for key, module in unit.named_modules(prefix=name):
            if key not in planned and _list_direct_parameters(module):
                own = [f"{key}.{parameter}" for parameter in _list_direct_parameters(module)]
                left_out += own if _has_children(module) else [key]

        def note_unit_error(_: nn.Module, __: Any, ___: Any) -> None:
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

        unit.register_forward_hook(note_unit_error, always_call=True)

    def _gather_column_output(self, _: nn.Module, __: Any, output: Any) -> Any:
        """Return the whole output of columns outside of units, or what gets whole when needed."""
        if self.keeps_logits and isinstance(output, DTensor):
            return mark_as_cut_logits(output)
        return _to_whole_plain_output(_, __, output)

    def _cut_row_layer(self, module: nn.Module) -> None:
        self._distribute_parameters(module, _choose_placements(module, columns=False))
        given = _WHOLE if isinstance(module, nn.Embedding) else Shard(-1)
        module.register_forward_pre_hook(self._make_placement_hook(given, plain=given))
        module.register_forward_hook(
            _cut_along_sequence if self.settings.sequence else _to_whole_plain_output
        )

    def _replicate_parameters(self, module: nn.Module) -> None:
        self._distribute_parameters(module, dict.fromkeys(_list_direct_parameters(module), _WHOLE))

    def _run_on_whole_tensors(self, module: nn.Module, *, inside: bool) -> None:
        """Have a module that the plan cuts nowhere work on whole tensors.

        Its output stays a DTensor as its input was one, or if it goes from unit to unit.
        """
        were_sharded = not inside

        def make_inputs_whole(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            nonlocal were_sharded
            were_sharded = not inside or any(isinstance(arg, DTensor) for arg in args)
            return tuple(self._redistribute_if_tensor(arg, _WHOLE) for arg in args)

        def make_output_plain(_: nn.Module, __: Any, output: Any) -> Any:
            keeps = self.settings.sequence and were_sharded
            return output if keeps else _to_whole_plain_output(_, __, output)

        module.register_forward_pre_hook(make_inputs_whole)
        module.register_forward_hook(make_output_plain)

    def _distribute_parameters(self, module: nn.Module, placements: Mapping[str, Placement]) -> None:
        """Put parameters in place, one for all names that are tied: they are cut alike."""
        for key, parameter in list(module.named_parameters(recurse=False)):
            made = self._made.get(id(parameter))
            if made is None:
                local = distribute_tensor(parameter.data, self.mesh, [placements[key]], src_data_rank=None)
                new = nn.Parameter(local, requires_grad=parameter.requires_grad)
                made = self._made[id(parameter)] = self._made[id(new)] = new
            setattr(module, key, made)

    def _make_placement_hook(
        self, wanted: Placement, name: str | None = None, *, plain: Placement = _WHOLE
    ) -> Any:
        """Return a hook that has the first input placed like this; plain ones are as `plain`.

        It notes the name of a module that was given one.
        """

        def place_first_input(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            if name is not None and not isinstance(args[0], DTensor):
                self._whole_given.add(name)
            return (self._redistribute_if_tensor(args[0], wanted, plain), *args[1:])

        return place_first_input

    def _redistribute_if_tensor(self, value: Any, wanted: Placement, plain: Placement = _WHOLE) -> Any:
        if not isinstance(value, Tensor):
            return value
        if not isinstance(value, DTensor):
            value = DTensor.from_local(value, self.mesh, [plain], run_check=False)
        return value if value.placements == (wanted,) else value.redistribute(placements=[wanted])


@contextmanager
def keep_logits_cut(cut: TensorCut | None, *, given: bool) -> Iterator[None]:
    """Have logits stay cut over ranks for the cross entropy; a loss that is given gets all."""
    if cut is not None:
        cut.keeps_logits = not given
    try:
        yield
    finally:
        if cut is not None:
            cut.keeps_logits = False


def _place_gradient_like_parameter(parameter: Tensor) -> None:
    """Place a gradient as its parameter: add up parts, or keep this rank's own."""
    gradient = parameter.grad
    assert isinstance(parameter, DTensor)  # noqa: S101  # registered for these alone
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def _choose_placements(module: nn.Module, *, columns: bool) -> dict[str, Placement]:
    axes = {key: find_cut_axis(module, key, columns=columns) for key in _list_direct_parameters(module)}
    return {key: _WHOLE if axis is None else Shard(axis) for key, axis in axes.items()}


def _list_direct_parameters(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters(recurse=False)]


def _has_children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _to_local_output(_: nn.Module, __: Any, output: Any) -> Any:
    return output.to_local() if isinstance(output, DTensor) else output


def _cut_along_sequence(_: nn.Module, __: Any, output: Any) -> Any:
    return output.redistribute(placements=[_SEQUENCE])


def _to_whole_plain_output(_: nn.Module, __: Any, output: Any) -> Any:
    if not isinstance(output, DTensor):
        return output
    if output.placements != (_WHOLE,):
        output = output.redistribute(placements=[_WHOLE])
    return output.to_local()
