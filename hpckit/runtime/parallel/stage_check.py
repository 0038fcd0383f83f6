"""Whether the stages of a pipeline compute what the whole forward does: once, in the first step.

Each stage runs the model's own forward over the units that it has. So code between modules that
counts units, keeps something for later units, or runs once for each stage computes something else,
and nothing else would tell. Here every rank runs that forward as it is written, over all units, on
one row: a unit that another rank has is called there, and its output sent to all. No rank needs
room for more than its own stages. Both run in evaluation mode, so that dropout does not matter.
"""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from hpckit.runtime.parallel.kept_state import preserve_module_state
from hpckit.runtime.parallel.pipeline_split import PipelineSplit, StagePart
from hpckit.runtime.parallel.self_check import explain_output_difference
from hpckit.runtime.tensor_parts import local_shard_of_tensor
from hpckit.values import dataclass

_log = logging.getLogger("hpckit.rank")
_TREES: Any = torch.utils._pytree  # noqa: SLF001  # what torch's pipelines use
_PLAIN = (bool, int, float, str, type(None), torch.dtype)


class _ForwardFailedError(Exception):
    """A module raised on the rank that has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentTensor:
    """What the others have to know of a tensor to receive it. `placements`: of a DTensor."""

    shape: torch.Size
    dtype: torch.dtype
    placements: Any = None
    whole: tuple[torch.Size, tuple[int, ...]] | None = None


class _ModuleElsewhere(nn.Module):
    """Stands for a module that some rank has; a call is passed on."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns where it is; collective."""
        return vars(self)["_pass_on"](args, kwargs)


def copy_model_with_stand_ins(module: nn.Module, names: Collection[str], prefix: str = "") -> nn.Module:
    """Return a copy of a model in which modules of these names are stand-ins without tensors.

    What is not below a module of these names is shared with the model. `prefix` is what stands
    before its own names.
    """
    if not any(name.startswith(prefix) for name in names):
        return module
    made = copy.copy(module)
    children = dict(module._modules)  # noqa: SLF001  # names stay, also in a list
    for key, child in children.items():
        name = prefix + key
        if child is not None:
            children[key] = (
                _make_stand_in(child)
                if name in names
                else copy_model_with_stand_ins(child, names, name + ".")
            )
    object.__setattr__(made, "_modules", children)
    return made


def _make_stand_in(module: nn.Module) -> nn.Module:
    """Return a module of the same class, for `isinstance`, with its plain attributes alone."""
    kind: Any = type(type(module).__name__, (_ModuleElsewhere, type(module)), {})
    made: nn.Module = kind.__new__(kind)
    nn.Module.__init__(made)
    plain = {key: one for key, one in vars(module).items() if isinstance(one, _PLAIN)}
    vars(made).update(plain)
    return made


@dataclass(slots=True, kw_only=True)
class StageCheck:
    """Compares the stages of one replica, in line, with the forward of `outline`.

    `parts` are this rank's, at `place` of the pipeline; `owners` has the place of each stand-in.
    All ranks make the same calls.
    """

    outline: nn.Module
    holder: nn.Module
    parts: Sequence[StagePart]
    split: PipelineSplit
    owners: Mapping[str, int]
    place: int
    group: dist.ProcessGroup
    device: torch.device
    tensor: DeviceMesh | None

    hint: ClassVar[str] = (
        "likely, in forward: it numbers its units (enumerate, len), uses embeddings again after "
        "the first unit, runs over the units twice, or computes outside of a module of the plan, "
        "which each stage then does. Give a unit its number when it is built, and put what runs "
        "once into modules of first or last. parallel.self_check=false trains it unchecked"
    )

    def explain_difference_from_whole(self, row: Tensor, kwargs: Mapping[str, Any]) -> str:
        """Return how the stages differ for a row [1, …]; empty if they do not, or it is unknown.

        `row` is what the first stage gets, and `kwargs` what all get. Collective.
        """
        all_modules = nn.ModuleList([self.outline, *(part.module for part in self.parts)])
        with torch.no_grad(), preserve_module_state(all_modules):
            all_modules.eval()
            for part in self.parts:
                if isinstance(part.module, FSDPModule):
                    part.module.unshard()
            try:
                return self._compare_with_whole(row, kwargs)
            except Exception as error:  # noqa: BLE001  # the user's code, in a way it was not made for
                _log.debug("the stages could not be compared with the whole: %s", error)
                return ""

    def _compare_with_whole(self, row: Tensor, kwargs: Mapping[str, Any]) -> str:
        for name, owner in self.owners.items():
            pass_on = partial(self._call_on_owner_and_broadcast, owner, self.holder.get_submodule, name)
            vars(self.outline.get_submodule(name))["_pass_on"] = pass_on
        first, second = (_list_whole_tensors(self.outline(row.clone(), **kwargs)) for _ in range(2))
        found = _list_whole_tensors(self._run_row_through_stages(row, kwargs))
        if _explain_tensor_difference(first, second):
            _log.debug("the model draws numbers, so that its stages cannot be compared")
            return ""
        far = _explain_tensor_difference(found, first)
        return far and (
            "the stages, one after the other, put out something else than the model's forward "
            f"over all units does for the same row: {far}"
        )

    def _run_row_through_stages(self, row: Tensor, kwargs: Mapping[str, Any]) -> Any:
        own = {part.number: part.module for part in self.parts}
        hidden: Any = (row.clone(),)
        for number in range(self.split.stages):
            place = number % self.split.rank_count
            hidden = self._call_on_owner_and_broadcast(place, own.__getitem__, number, hidden, kwargs)
            hidden = hidden if isinstance(hidden, tuple) else (hidden,)
        return hidden

    def _call_on_owner_and_broadcast(
        self, owner: int, find: Callable[[Any], nn.Module], key: Any, args: Any, kwargs: Any
    ) -> Any:
        output: Any = None
        note: list[Any] = [None]
        if owner == self.place:
            try:
                output = find(key)(*args, **kwargs)
                note = [("", _TREES.tree_map(_describe_tensor, output))]
                pickle.dumps(note)
            except Exception as error:  # noqa: BLE001  # the user's code
                note = [(f"{type(error).__name__}: {error}", None)]
        source = dist.get_global_rank(self.group, owner)
        dist.broadcast_object_list(note, source, group=self.group)
        problem, described = note[0]
        if problem:
            raise _ForwardFailedError(problem)
        if owner != self.place:
            output = _TREES.tree_map(self._make_receive_buffer, described)
        for leaf in _TREES.tree_leaves(output):
            if isinstance(leaf, Tensor):
                dist.broadcast(local_shard_of_tensor(leaf).contiguous(), source, group=self.group)
        return output

    def _make_receive_buffer(self, described: Any) -> Any:
        if not isinstance(described, _SentTensor):
            return described
        made = torch.empty(described.shape, dtype=described.dtype, device=self.device)
        if described.whole is None or self.tensor is None:
            return made
        shape, stride = described.whole
        return DTensor.from_local(
            made, self.tensor, described.placements, run_check=False, shape=shape, stride=stride
        )


def _describe_tensor(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if not isinstance(value, DTensor):
        return _SentTensor(shape=value.shape, dtype=value.dtype)
    local = value.to_local()
    return _SentTensor(
        shape=local.shape,
        dtype=local.dtype,
        placements=tuple(value.placements),
        whole=(value.shape, tuple(value.stride())),
    )


def _list_whole_tensors(output: Any) -> list[Tensor]:
    tensors = (leaf for leaf in _TREES.tree_leaves(output) if isinstance(leaf, Tensor))
    return [tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def _explain_tensor_difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> str:
    shapes, expected = ([list(tensor.shape) for tensor in many] for many in (found, wanted))
    if shapes != expected:
        return f"the outputs have the shapes {shapes}, not {expected}"
    for one, other in zip(found, wanted, strict=True):
        if not one.is_floating_point() or not one.numel():
            continue
        if torch.equal(one.isnan(), other.isnan()):
            one, other = one.nan_to_num(), other.nan_to_num()  # noqa: PLW2901  # what is NaN in both is the same
        far = explain_output_difference(one, other)
        if far:
            return f"{far} of its size"
    return ""
