"""Whether a model's forward runs in its layout: on meta, one stage after the other, without ranks.

Shapes are all that is seen: a forward that computes something else in its layout is found by the
first training step.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.parallel.model_check import LayoutProblem
from hpckit.model.parallel.settings import SCHEDULES, Precision, Recompute
from hpckit.runtime.model_check.model_fit import FittedModel, fake_group
from hpckit.runtime.parallel.model_checks import units_of
from hpckit.values import dataclass, replace

_OURS = str(Path(__file__).parents[2])
_TORCH = str(Path(torch.__file__).parent)
_HINTS = {
    MeshAxis.pipeline: "each stage has its own units only: forward skips what is None elsewhere",
    MeshAxis.tensor: "forward takes sizes from its tensors, such as unflatten(-1, (-1, "
    "head_width)), and the plan lists every projection in columns or rows; parallel.tensor is no "
    "more than the (key-value) heads, which Plan(heads=...) tells; inputs without a sequence, "
    "[rows, features], need parallel.sequence=false",
    MeshAxis.context: "forward takes positions, and looks at its own part of each sequence",
}


class ForwardUnknownError(Exception):
    """A forward that does not run on meta, whatever the layout: it needs values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFit:
    """The forward of a model that fits its layout otherwise. `inputs` is a batch on meta."""

    fitted: FittedModel
    inputs: Tensor

    def problem(self) -> LayoutProblem | None:
        """Return why it does not run in its layout; raises ForwardUnknownError."""
        try:
            _run(self._plain(), self.inputs)
        except Exception as error:
            raise ForwardUnknownError(said(error)) from error
        return self._in_bfloat16() or self._in_layout()

    def _plain(self) -> nn.Module:
        return copy.deepcopy(self.fitted.model)

    def _in_bfloat16(self) -> LayoutProblem | None:
        """Do as FSDP does: parameters, and what units are given, are in bfloat16."""
        if self.fitted.settings.params is not Precision.bf16:
            return None
        model = self._plain()
        for parameter in model.parameters():
            parameter.data = (
                parameter.data.bfloat16() if parameter.is_floating_point() else parameter.data
            )
        units = units_of(model, self.fitted.plan)
        for module in [model, *map(model.get_submodule, units)]:
            module.register_forward_pre_hook(_cast, with_kwargs=True)
        try:
            _run(model, self.inputs)
        except Exception as error:  # noqa: BLE001  # torch's, of the user's model
            return LayoutProblem(
                message=f"its forward fails with parallel.params=bf16: {said(error)}",
                hint="cast back what it computes in float32, such as angles of rotary positions: "
                "angles.type_as(x)",
            )
        return None

    def _in_layout(self) -> LayoutProblem | None:
        """Run one replica, stage after stage."""
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
        with fake_group(0, one.world_size):
            for stage in range(stages):
                try:
                    hidden = _run_stage(fitted, stage, hidden, self.inputs)
                except Exception as error:  # noqa: BLE001  # torch's, of the user's model
                    where = f" on stage {stage + 1} of {stages}" if stages > 1 else ""
                    axes = [axis for axis in _HINTS if one.sizes[axis] > 1]
                    return LayoutProblem(
                        message=f"its forward fails in this layout{where}: {said(error)}",
                        hint="; ".join(_HINTS[axis] for axis in axes),
                    )
        return None


def said(error: Exception) -> str:
    """Return an exception, or what was noted of it, with the user's line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (frame for frame in reversed(frames) if not frame.filename.startswith((_OURS, _TORCH))),
        None,
    )
    where = f" ({Path(place.filename).name}, line {place.lineno})" if place is not None else ""
    words = "; ".join(getattr(error, "__notes__", ())) or str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {words}{where}"


def _run_stage(fitted: FittedModel, stage: int, hidden: Any, inputs: Tensor) -> Any:
    """Return what a stage makes of what the one before it has made."""
    layout = fitted.layout
    rank = layout.rank_at({MeshAxis.pipeline: stage % layout.pipeline})
    laid_out = fitted.laid_out(rank, for_training=False)
    kwargs: dict[str, Tensor] = {}
    if laid_out.context is not None:
        positions = laid_out.context.cut(inputs.shape[1], inputs.device)
        kwargs = {"positions": positions.expand(len(inputs), -1)}
        hidden = hidden[:, positions] if stage == 0 else hidden
    pipeline = laid_out.pipeline
    turn = stage // layout.pipeline
    return _run(
        laid_out.module if pipeline is None else pipeline.parts[turn].module, hidden, kwargs
    )


def _run(module: nn.Module, inputs: Any, kwargs: Mapping[str, Tensor] | None = None) -> Any:
    with torch.no_grad(), torch.device("meta"):
        return module(inputs, **(kwargs or {}))


def _cast(_: nn.Module, args: Any, kwargs: Any) -> Any:
    """Cast what a module is given, as FSDP's policy for mixed precision does."""
    return torch.utils._pytree.tree_map(_in_half, (args, kwargs))  # noqa: SLF001  # what FSDP uses


def _in_half(value: Any) -> Any:
    floats = isinstance(value, Tensor) and value.is_floating_point()
    return value.bfloat16() if floats else value
