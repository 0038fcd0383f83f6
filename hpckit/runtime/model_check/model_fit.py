"""Whether a model fits its layout, without its memory and without its ranks.

The model is on the meta device, which has shapes only; the ranks are torch's fake process group,
which talks to no one. So one process lays out what a thousand would.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn

from hpckit.errors import HpckitError
from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.parallel.model_check import LayoutProblem, StageMemory
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.settings import SCHEDULES, Parallel
from hpckit.runtime.parallel.build import LaidOutModel, lay_out_checked, sharding_problems, split_of
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.runtime.parallel.model_checks import plan_problems, units_of
from hpckit.runtime.parallel.pipeline_split import stages_of_units
from hpckit.runtime.tensor_parts import local_part
from hpckit.values import dataclass

_MOST_PROBLEMS = 20
"""A plan that fits nowhere is wrong in each unit alike."""
_CPU = torch.device("cpu")


@contextmanager
def fake_group(rank: int, world_size: int) -> Iterator[None]:
    """Be one rank of a world whose other ranks are not there; collectives return at once."""
    dist.init_process_group("fake", rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """A model on meta that is to be laid out. It is copied for each rank that is looked at."""

    model: nn.Module
    plan: Plan
    layout: Layout
    settings: Parallel

    @property
    def parameters(self) -> int:
        """Number of elements of all parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def problems(self) -> tuple[LayoutProblem, ...]:
        """Return what of the model does not fit the layout; needs no group."""
        found = islice(plan_problems(self.model, self.plan, self.layout), _MOST_PROBLEMS)
        problems: list[HpckitError] = list(found)
        stages = self.layout.pipeline * SCHEDULES[self.settings.schedule]
        units = units_of(self.model, self.plan)
        if self.layout.pipeline > 1 and units:
            try:
                stages_of_units(units, stages)
            except HpckitError as error:
                problems.append(error)
        if not problems:
            problems += sharding_problems(self.model, self.plan, units, self.layout, self.settings)
        return tuple(map(told, problems))

    def laid_out(self, rank: int, *, for_training: bool = True) -> LaidOutModel:
        """Return what a rank has of it, within that rank's group; there must be no problems.

        One that is not for training runs forward only, and is not sharded.
        """
        mesh = RankMesh(self.layout, _CPU, rank, for_training=for_training)
        units = units_of(self.model, self.plan)
        place = mesh.place(MeshAxis.pipeline)
        split = split_of(self.plan, units, self.layout, place, self.settings)
        # Only what the rank has is copied.
        own = copy.deepcopy(self.model if split is None else split.holder(self.model))
        return lay_out_checked(own, units, self.plan, mesh, self.settings)


def told(error: HpckitError) -> LayoutProblem:
    """Return an error as a problem."""
    return LayoutProblem(message=error.message, hint=error.hint)


def memory_of(stage: int, modules: Sequence[nn.Module]) -> StageMemory:
    """Return what a rank holds of modules that are laid out; tied parameters count once."""
    parameters = nn.ModuleList(modules).parameters()
    own = [(local_part(parameter), parameter.requires_grad) for parameter in parameters]
    trained = sum(one.nbytes for one, learns in own if learns)
    return StageMemory(
        stage=stage,
        parameters=sum(one.numel() for one, _ in own),
        parameter_bytes=sum(one.nbytes for one, _ in own),
        gradient_bytes=trained,
        adam_bytes=2 * trained,
    )
