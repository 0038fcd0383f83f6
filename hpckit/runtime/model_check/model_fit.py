"""Whether a model fits its layout, and its forward runs in it, without its memory and its ranks.

The model is on the meta device, which has shapes only; the ranks are torch's fake process group,
which talks to no one. So one process lays out what a thousand would, and runs one stage after the
other. A forward that computes something else in its layout is found by the first training step.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hpckit.errors import HpckitError
from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.parallel.model_check import LayoutProblem, StageMemory
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.settings import SCHEDULES, Parallel, Precision, Recompute
from hpckit.runtime.parallel.build import (
    LaidOutModel,
    build_pipeline_split,
    find_sharding_problems,
    lay_out_checked_model,
)
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.runtime.parallel.model_checks import find_plan_problems, list_plan_units
from hpckit.runtime.parallel.pipeline_split import divide_units_into_stages
from hpckit.runtime.tensor_parts import local_shard_of_tensor
from hpckit.values import dataclass, replace

_MOST_PROBLEMS = 20
"""A plan that fits nowhere is wrong in each unit alike."""
_CPU = torch.device("cpu")


@contextmanager
def fake_process_group(rank: int, world_size: int) -> Iterator[None]:
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
    def parameter_count(self) -> int:
        """Number of elements of all parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def find_problems(self) -> tuple[LayoutProblem, ...]:
        """Return what of the model does not fit the layout; needs no group."""
        found = islice(find_plan_problems(self.model, self.plan, self.layout), _MOST_PROBLEMS)
        problems: list[HpckitError] = list(found)
        stages = self.layout.pipeline * SCHEDULES[self.settings.schedule]
        units = list_plan_units(self.model, self.plan)
        if self.layout.pipeline > 1 and units:
            try:
                divide_units_into_stages(units, stages)
            except HpckitError as error:
                problems.append(error)
        if not problems:
            problems += find_sharding_problems(self.model, self.plan, units, self.layout, self.settings)
        return tuple(map(error_to_problem, problems))

    def lay_out_model_of_rank(self, rank: int, *, for_training: bool = True) -> LaidOutModel:
        """Return what a rank has of it, within that rank's group; there must be no problems.

        One that is not for training runs forward only, and is not sharded.
        """
        mesh = RankMesh(self.layout, _CPU, rank, for_training=for_training)
        units = list_plan_units(self.model, self.plan)
        place = mesh.rank_index_on_axis(MeshAxis.pipeline)
        split = build_pipeline_split(self.plan, units, self.layout, place, self.settings)
        # Only what the rank has is copied.
        own = copy.deepcopy(self.model if split is None else split.copy_own_stages_as_module(self.model))
        return lay_out_checked_model(own, units, self.plan, mesh, self.settings)


def error_to_problem(error: HpckitError) -> LayoutProblem:
    """Return an error as a problem."""
    return LayoutProblem(message=error.message, hint=error.hint)


def measure_stage_memory(stage: int, modules: Sequence[nn.Module]) -> StageMemory:
    """Return what a rank holds of modules that are laid out; tied parameters count once."""
    parameters = nn.ModuleList(modules).parameters()
    own = [(local_shard_of_tensor(parameter), parameter.requires_grad) for parameter in parameters]
    trained = sum(one.nbytes for one, learns in own if learns)
    return StageMemory(
        stage=stage,
        parameters=sum(one.numel() for one, _ in own),
        parameter_bytes=sum(one.nbytes for one, _ in own),
        gradient_bytes=trained,
        adam_bytes=2 * trained,
    )


_OURS = str(Path(__file__).parents[2])
_TORCH = str(Path(torch.__file__).parent)
_HINTS = {
    MeshAxis.pipeline: "each stage has its own units only: forward skips what is None elsewhere",
    MeshAxis.tensor: "forward takes sizes from its tensors, such as unflatten(-1, (-1, "
    "head_width)), and the plan lists every projection in columns or rows; parallel.tensor is no "
    "more than the (key-value) heads, which Plan(heads=...) tells; inputs without a sequence, "
    "[rows, features], need parallel.sequence=false",
    MeshAxis.context: "forward takes positions, and reads only its own part of each sequence",
}


class ForwardUnknownError(Exception):
    """A forward that does not run on meta, whatever the layout: it needs values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFit:
    """The forward of a model that fits its layout otherwise. `inputs` is a batch on meta."""

    fitted: FittedModel
    inputs: Tensor

    def explain_forward_failure(self) -> LayoutProblem | None:
        """Return why it does not run in its layout; raises ForwardUnknownError."""
        try:
            _run_forward(self._copy_model(), self.inputs)
        except Exception as error:
            raise ForwardUnknownError(format_exception(error)) from error
        return self._explain_bfloat16_failure() or self._explain_forward_layout_failure()

    def _copy_model(self) -> nn.Module:
        return copy.deepcopy(self.fitted.model)

    def _explain_bfloat16_failure(self) -> LayoutProblem | None:
        """Do as FSDP does: parameters, and what units are given, are in bfloat16."""
        if self.fitted.settings.params is not Precision.bf16:
            return None
        model = self._copy_model()
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16() if parameter.is_floating_point() else parameter.data
        units = list_plan_units(model, self.fitted.plan)
        for module in [model, *map(model.get_submodule, units)]:
            module.register_forward_pre_hook(_cast_to_bfloat16, with_kwargs=True)
        try:
            _run_forward(model, self.inputs)
        except Exception as error:  # noqa: BLE001  # torch's, of the user's model
            return LayoutProblem(
                message=f"its forward fails with parallel.params=bf16: {format_exception(error)}",
                hint="cast back what it computes in float32, such as angles of rotary positions: "
                "angles.type_as(x)",
            )
        return None

    def _explain_forward_layout_failure(self) -> LayoutProblem | None:
        layout = self.fitted.layout
        one = Layout(tensor=layout.tensor, pipeline=layout.pipeline, context=layout.context)
        if one.is_data_parallel:
            return None
        settings = replace(
            self.fitted.settings, params=Precision.fp32, recompute=Recompute.none, compile=False
        )
        fitted = replace(self.fitted, layout=one, settings=settings)
        stages = one.pipeline * SCHEDULES[settings.schedule]
        hidden: Any = self.inputs
        # One group for all: torch remembers groups by their ranks, and would take one that is gone.
        with fake_process_group(0, one.world_size):
            for stage in range(stages):
                try:
                    hidden = _run_forward_of_stage(fitted, stage, hidden, self.inputs)
                except Exception as error:  # noqa: BLE001  # torch's, of the user's model
                    where = f" on stage {stage + 1} of {stages}" if stages > 1 else ""
                    axes = [axis for axis in _HINTS if one.sizes[axis] > 1]
                    return LayoutProblem(
                        message=f"its forward fails in this layout{where}: {format_exception(error)}",
                        hint="; ".join(_HINTS[axis] for axis in axes),
                    )
        return None


def format_exception(error: Exception) -> str:
    """Return an exception, or what was noted of it, with the user's line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (frame for frame in reversed(frames) if not frame.filename.startswith((_OURS, _TORCH))), None
    )
    where = f" ({Path(place.filename).name}, line {place.lineno})" if place is not None else ""
    words = "; ".join(getattr(error, "__notes__", ())) or str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {words}{where}"


def _run_forward_of_stage(fitted: FittedModel, stage: int, hidden: Any, inputs: Tensor) -> Any:
    layout = fitted.layout
    rank = layout.rank_at({MeshAxis.pipeline: stage % layout.pipeline})
    laid_out = fitted.lay_out_model_of_rank(rank, for_training=False)
    kwargs: dict[str, Tensor] = {}
    if laid_out.context is not None:
        positions = laid_out.context.find_own_positions(inputs.shape[1], inputs.device)
        kwargs = {"positions": positions.expand(len(inputs), -1)}
        hidden = hidden[:, positions] if stage == 0 else hidden
    pipeline = laid_out.pipeline
    turn = stage // layout.pipeline
    return _run_forward(laid_out.module if pipeline is None else pipeline.parts[turn].module, hidden, kwargs)


def _run_forward(module: nn.Module, inputs: Any, kwargs: Mapping[str, Tensor] | None = None) -> Any:
    with torch.no_grad(), torch.device("meta"):
        return module(inputs, **(kwargs or {}))


def _cast_to_bfloat16(_: nn.Module, args: Any, kwargs: Any) -> Any:
    """Cast what a module is given, as FSDP's policy for mixed precision does."""

    def in_half(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return value.bfloat16() if floats else value

    return torch.utils._pytree.tree_map(in_half, (args, kwargs))  # noqa: SLF001  # what FSDP uses
