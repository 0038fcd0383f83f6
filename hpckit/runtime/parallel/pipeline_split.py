"""How a model is cut into pipeline stages: what each has, and the weights that several have.

A stage is a copy of the model's outer modules that holds only its own units, under their own names;
what stands before the first or after the last unit is None elsewhere. So names stay those of the
whole model, and its `forward` runs a part if it skips what is None.

Each rank has its own copy of a weight of several stages, and one copy of it, however many names
lead to it. So every weight is exchanged once, between all stages that have it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

from torch import nn

from hpckit.errors import ConfigError
from hpckit.model.counted import format_count
from hpckit.model.parallel.layout import MeshAxis
from hpckit.model.parallel.plan import Plan
from hpckit.runtime.parallel.gradients import TiedWeight
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.values import dataclass, field

_OWN_ATTRIBUTES = vars(nn.Module()).keys() - {"training"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePart:
    """One stage of this rank: its number among all stages, and the module that runs it."""

    number: int
    module: nn.Module
    copies: Sequence[CopiedModule] = ()

    def copy_attribute_changes(self) -> None:
        """Take over what was set on the modules that this rank's code has."""
        for one in self.copies:
            one.copy_attribute_changes()


@dataclass(slots=True)
class CopiedModule:
    """A module of a stage that is a copy, and its source, which the user's code has.

    What the code sets on the source, such as its mode or a temperature, is set on the copy, too.
    """

    source: nn.Module
    copy: nn.Module
    _seen: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen = self._source_attributes()

    def copy_attribute_changes(self) -> None:
        """Set what was set on the source since the last call."""
        now = self._source_attributes()
        changed = {
            key: one for key, one in now.items() if key not in self._seen or self._seen[key] is not one
        }
        vars(self.copy).update(changed)
        self._seen = now

    def _source_attributes(self) -> dict[str, Any]:
        return {key: one for key, one in vars(self.source).items() if key not in _OWN_ATTRIBUTES}


def divide_units_into_stages(units: Sequence[str], stages: int) -> list[list[str]]:
    """Return the units of each stage, in order; earlier stages have the one more.

    Raises ConfigError if there are fewer units than stages.
    """
    if len(units) < stages:
        raise ConfigError(
            f"{format_count(len(units), 'unit')} of the plan cannot make {format_count(stages, 'stage')}",
            hint="choose a smaller parallel.pipeline, or smaller units in the plan",
        )
    even, more = divmod(len(units), stages)
    found, start = [], 0
    for stage in range(stages):
        stop = start + even + (stage < more)
        found.append(list(units[start:stop]))
        start = stop
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSplit:
    """How one rank's part of a model is cut out of the whole. `stages` is the number of all."""

    plan: Plan
    units: tuple[str, ...]
    stages: int
    own: tuple[int, ...]

    def copy_own_stages_as_module(self, model: nn.Module) -> nn.Module:
        """Return a module with everything this rank has, to register and to optimise."""
        return self._copy_model_with_stages(model, self.own)

    def copy_each_own_stage(self, holder: nn.Module) -> list[StagePart]:
        """Return the modules that run, which share their units with the holder."""
        here = dict(holder.named_modules())
        parts = []
        for number in self.own:
            module = self._copy_model_with_stages(holder, (number,))
            pairs = ((here[name], one) for name, one in module.named_modules())
            copies = [CopiedModule(source, one) for source, one in pairs if source is not one]
            parts.append(StagePart(number=number, module=module, copies=copies))
        return parts

    @property
    def rank_count(self) -> int:
        """Number of ranks of the pipeline; a stage is on the rank at its number modulo this."""
        return self.stages // len(self.own)

    def find_stage_of_module(self, name: str) -> int:
        """Return the number of the stage that has a module or parameter, by its name."""
        by_stage = divide_units_into_stages(self.units, self.stages)
        for number, units in enumerate(by_stage):
            if any(name == unit or name.startswith(unit + ".") for unit in units):
                return number
        inside = accumulate(name.split("."), "{}.{}".format)
        return 0 if self.plan.match_names(self.plan.first, inside) else self.stages - 1

    def _copy_model_with_stages(self, model: nn.Module, kept: Collection[int]) -> nn.Module:
        by_stage = divide_units_into_stages(self.units, self.stages)
        units = {unit for number, one in enumerate(by_stage) for unit in one if number not in kept}
        modules = [name for name, _ in model.named_modules()]
        ends: set[str] = set()
        if 0 not in kept:
            ends |= set(self.plan.match_names(self.plan.first, modules))
        if self.stages - 1 not in kept:
            ends |= set(self.plan.match_names(self.plan.last, modules))
        return _copy_module_without(model, "", units, ends)


def _copy_module_without(module: nn.Module, prefix: str, units: set[str], ends: set[str]) -> nn.Module:
    gone = units | ends
    if not any(name.startswith(prefix) for name in gone):
        return module
    made = copy.copy(module)
    for key, value in vars(module).items():
        # One dictionary of buffers, which may be given other ones: moved, or set by the model.
        if isinstance(value, dict | set | list) and key != "_buffers":
            object.__setattr__(made, key, copy.copy(value))
    listed = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
    for key, child in module._modules.items():  # noqa: SLF001  # names stay, also in a list
        name = prefix + key
        if name in gone:
            if listed and name in units:
                del made._modules[key]  # noqa: SLF001
            else:
                made._modules[key] = None  # noqa: SLF001
        elif child is not None:
            made._modules[key] = _copy_module_without(child, name + ".", units, ends)  # noqa: SLF001
    return made


def find_weights_tied_across_stages(
    holder: nn.Module, plan: Plan, mesh: RankMesh, split: PipelineSplit | None
) -> tuple[TiedWeight, ...]:
    """Return the weights that this rank's stages share with those of other ranks."""
    if split is None:
        return ()
    own = dict(holder.named_parameters(remove_duplicate=False))
    line = mesh.layout.peers(mesh.rank, MeshAxis.pipeline)
    found = []
    for names in plan.group_tied_names():
        here = next((own[name] for name in names if name in own), None)
        places = sorted({split.find_stage_of_module(name) % split.rank_count for name in names})
        if here is None or len(places) == 1:
            continue
        found.append(
            TiedWeight(
                parameter=here,
                learns=here.requires_grad,
                ranks=tuple(line[place] for place in places),
                rank=mesh.rank,
                group=mesh.axis_group(MeshAxis.pipeline),
                device=mesh.device,
            )
        )
    return tuple(found)
