"""The inputs of layers in columns: sharded along the sequence, and gathered when they are needed.

A rank gathers an input for the forward pass, keeps its own part of it, and gathers it again for the
backward pass (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor, Replicate

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
    def of(cls, part: DTensor, whole: DTensor) -> InputPart:
        """Return the part that is kept of an input that has just been gathered."""
        kept: Any = part.detach()  # a DTensor, too
        address = _storage(whole).data_ptr()
        return cls(part=kept, address=address, elements=whole.numel(), version=kept._version)  # noqa: SLF001

    def pack(self, tensor: Tensor) -> Tensor | Callable[[], Tensor]:
        """Return what a graph keeps for a tensor that an operation wants to be kept.

        For all of this input that is what gathers it in the shape in which the operation took it.
        """
        if not isinstance(tensor, DTensor) or tensor.numel() != self.elements:
            return tensor
        if not tensor.is_contiguous() or _storage(tensor).data_ptr() != self.address:
            return tensor
        self.count += 1
        return partial(self.gathered, tensor.shape)

    def gathered(self, shape: torch.Size) -> DTensor:
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

    def gather_for(self, layer: nn.Module, unit: nn.Module) -> None:
        """Have a layer take all of its input; nothing is left of it when its unit has run."""
        layer.register_forward_pre_hook(self._gather)
        layer.register_forward_hook(self._end_saving, always_call=True)
        unit.register_forward_hook(self._forget, always_call=True)

    def _gather(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        given = args[0]
        if not self._gathered or self._gathered[0][0] is not given:
            whole, part = self.place(given), None
            if self.keeps_parts and isinstance(given, DTensor) and whole is not given:
                part = InputPart.of(given, whole)
            self._gathered = [(given, whole, part)]
        _, whole, part = self._gathered[0]
        if part is not None:
            self._saving[layer] = saved_tensors_hooks(part.pack, _unpacked)
            self._saving[layer].__enter__()
        return (whole, *args[1:])

    def _end_saving(self, layer: nn.Module, _: Any, __: Any) -> None:
        saving = self._saving.pop(layer, None)
        if saving is not None:
            saving.__exit__()

    def _forget(self, _: nn.Module, __: Any, ___: Any) -> None:
        self._gathered = []


def _unpacked(saved: Tensor | Callable[[], Tensor]) -> Tensor:
    return saved if isinstance(saved, Tensor) else saved()


def _storage(tensor: DTensor) -> torch.UntypedStorage:
    local = tensor._local_tensor  # noqa: SLF001
    waiting: Tensor = getattr(local, "elem", local)  # of a tensor that is still being gathered
    return waiting.untyped_storage()
