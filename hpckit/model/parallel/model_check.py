"""A check of a model in its layout: what is asked of the process that does it, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuestion:
    """Which run to check: its whole configuration, and the folder of its code.

    `folder` is an empty one that stands for the run's own; `stage` is the run's stage, if any.
    """

    config: Mapping[str, Any]
    stage: str | None
    code: str
    project: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What a rank of a pipeline stage holds at least: numbers of parameters, and bytes.

    Of the ranks of a stage it is the first, which has the most. `adam_bytes` are the two moments of
    Adam. Activations, buffers and what is gathered for computing come on top.
    """

    stage: int
    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    adam_bytes: int

    @property
    def training_state_bytes(self) -> int:
        """Parameters, gradients and Adam's state together."""
        return self.parameter_bytes + self.gradient_bytes + self.adam_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProblem:
    """Something of a model or its batch that does not fit the layout, and what to do."""

    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """The result for one run. `parameters` is the number of those of the whole model.

    `adam` is whether Adam updates all that is trained: its optimizer was registered before the
    first step. `model_unchecked`, `batch_unchecked` and `forward_unchecked` say why the model, its
    first batch, or its forward was not checked.
    """

    problems: tuple[LayoutProblem, ...] = ()
    parameters: int = 0
    stages: tuple[StageMemory, ...] = ()
    adam: bool = False
    model_unchecked: str = ""
    batch_unchecked: str = ""
    forward_unchecked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModel:
    """The model of one run, by its index, which was checked in a layout on `nodes` nodes.

    `fallback` is whether that is a layout of `parallel.fallback`, not the run's own.
    `trains` is whether a batch came as far as a training step, `adam` as in `ModelAnswer`,
    `offloads` whether the host keeps all of `stages`.
    """

    run: int
    layout: str
    nodes: int
    parameters: int
    stages: tuple[StageMemory, ...]
    trains: bool = False
    adam: bool = False
    offloads: bool = False
    fallback: bool = False
