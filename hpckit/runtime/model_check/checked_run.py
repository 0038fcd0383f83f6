"""The `run` that a user's function gets while its model is checked: up to its first step.

Nothing is trained, written or sent. `parallelize` lays the model out on the meta device for rank 0
of a world that is not there; the first `train_step` looks at the batch, and ends the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from hpckit.errors import HpckitError
from hpckit.model.parallel.model_check import LayoutProblem
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.share import BatchShare
from hpckit.runtime.data.batches import Batches
from hpckit.runtime.model_check.forward_fit import ForwardFit
from hpckit.runtime.model_check.model_fit import FittedModel, told
from hpckit.runtime.parallel import arguments
from hpckit.runtime.parallel.arguments import LossFunction
from hpckit.runtime.parallel.build import build_on_meta
from hpckit.runtime.rank.run import Run
from hpckit.runtime.stages import EarlierRun
from hpckit.values import dataclass, field


class CheckFinished(BaseException):  # `except Exception` must not catch it
    """Ends the user's function once there is nothing more to look at."""


@dataclass(slots=True, kw_only=True, repr=False)
class CheckedRun(Run):
    """A run without a life: what it learns of the user's models is in `fitted` and `problems`.

    `parts` are what rank 0 has of them. `forward` is that of the model whose batch came as far as
    a training step, `adam` that Adam updates all that is trained, `unknown` what the function asked
    for that is not there before a launch.
    """

    stage_name: str | None = None
    fitted: list[FittedModel] = field(default_factory=list)
    parts: list[nn.Module] = field(default_factory=list)
    problems: list[LayoutProblem] = field(default_factory=list)
    adam: bool = False
    forward: ForwardFit | None = None
    unknown: str = ""

    @property
    def stage(self) -> str | None:
        """Name of this run's stage; None if the launch has no stages."""
        return self.stage_name

    def earlier(self, stage: str) -> tuple[EarlierRun, ...]:
        """End the function: no earlier stage has run."""
        self.unknown = f"it uses run.earlier({stage!r}), and no earlier stage has run"
        raise CheckFinished

    def parallelize(
        self,
        build: Callable[[], nn.Module],
        plan: Plan | None = None,
        *,
        init: Callable[[str, nn.Module], None] | None = None,
    ) -> nn.Module:
        """Return rank 0's part of the model on meta; ends the function if it does not fit."""
        arguments.check_builder(build, plan, init)
        fitted = FittedModel(
            model=build_on_meta(arguments.checked_builder(build), self.seed),
            plan=plan or Plan(),
            layout=self.layout,
            settings=self.parallel,
        )
        self.problems += fitted.problems()
        if self.problems:
            raise CheckFinished
        try:
            part = self._models.keep(fitted.laid_out(self.rank))
        except HpckitError as error:
            self._finish_with(error)
        self.fitted.append(fitted)
        self.parts.append(part)
        return part

    def train_step(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Any,
        *,
        loss: LossFunction | None = None,
        share: BatchShare | None = None,
    ) -> Tensor:
        """Check the shapes of the batch, and end the function."""
        try:
            self._check_batch("train_step", model, inputs, targets, loss)
            arguments.check_share(share)
            self._models.training(model).cut.check_shapes(inputs, targets, share)
        except HpckitError as error:
            self._finish_with(error)
        self.forward = ForwardFit(
            fitted=self.fitted[self._number_of(model)], inputs=inputs.to("meta")
        )
        raise CheckFinished

    def _number_of(self, model: nn.Module) -> int:
        """Return which of the models that were laid out this is; `training` has found it."""
        return next(number for number, one in enumerate(self.parts) if one is model)

    def evaluate(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Any,
        *,
        loss: LossFunction | None = None,
    ) -> Tensor:
        """Return 0."""
        del model, inputs, targets, loss
        return torch.zeros((), dtype=torch.float64)

    def clip_grad_norm_(self, model: nn.Module, max_norm: float) -> Tensor:
        """Return 0."""
        del model, max_norm
        return torch.zeros((), dtype=torch.float64)

    def mean(self, value: float | Tensor) -> float:
        """Return this rank's number."""
        return 0.0 if isinstance(value, Tensor) and value.is_meta else float(value)

    def state(self, **objects: Any) -> None:
        """Keep nothing; look whether Adam updates all that is trained."""
        updated = {
            id(parameter)
            for one in objects.values()
            if isinstance(one, torch.optim.Adam | torch.optim.AdamW)
            for group in one.param_groups
            for parameter in group["params"]
        }
        trained = {
            id(parameter)
            for parameter in nn.ModuleList(self.parts).parameters()
            if parameter.requires_grad
        }
        self.adam = bool(trained) and trained <= updated

    def steps(
        self, total: int, *, start: int | None = None, samples_per_step: int = 0
    ) -> Iterator[int]:
        """Yield one step."""
        del samples_per_step
        self.step = start or 0
        if self.step < total:
            yield self.step

    def log(self, *, step: int | None = None, **metrics: Any) -> None:
        """Write nothing."""

    def batches(self, dataset: Any, *, batch_size: int, **options: Any) -> Batches:
        """Return batches that are read here: workers would outlive the check."""
        return Run.batches(self, dataset, batch_size=batch_size, **(options | {"workers": 0}))

    def _finish_with(self, error: HpckitError) -> NoReturn:
        self.problems.append(told(error))
        raise CheckFinished from error
