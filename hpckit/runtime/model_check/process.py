"""Checks a model in its layout: `python -P -m hpckit.runtime.model_check.process`.

It reads a question as JSON from standard input, runs the user's function up to its first training
step with a run that keeps nothing, and writes the answer to standard output. What the function
prints goes to standard error. It ends with its parent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from hpckit.errors import ConfigError, HpckitError, UsageError
from hpckit.model.launch import LaunchConfig
from hpckit.model.parallel.layout import MeshAxis
from hpckit.model.parallel.model_check import LayoutProblem, ModelAnswer, ModelQuestion, StageMemory
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.share import BatchShare
from hpckit.model.plain import from_plain, to_plain
from hpckit.planning.fallback import find_layout_for_ranks
from hpckit.runtime.data.batches import Batches
from hpckit.runtime.environ import copy_environment, rank_info
from hpckit.runtime.generators import seed_all_generators
from hpckit.runtime.left_behind import die_with_parent
from hpckit.runtime.model_check.model_fit import (
    FittedModel,
    ForwardFit,
    ForwardUnknownError,
    error_to_problem,
    fake_process_group,
    format_exception,
    measure_stage_memory,
)
from hpckit.runtime.parallel import arguments
from hpckit.runtime.parallel.arguments import LossFunction
from hpckit.runtime.parallel.build import build_model_on_meta
from hpckit.runtime.rank.attach import make_rank_logger
from hpckit.runtime.rank.config import Config, MissingKeyError
from hpckit.runtime.rank.run import Run
from hpckit.runtime.rank.user_function import call_user_function, calls_method, load_user_function
from hpckit.runtime.stages import EarlierRun
from hpckit.values import dataclass, field


class CheckFinished(BaseException):  # `except Exception` must not catch it
    """Ends the user's function once there is nothing more to look at."""


@dataclass(slots=True, kw_only=True, repr=False)
class CheckedRun(Run):
    """A run that does nothing: what it learns of the user's models is in `fitted` and `problems`.

    Nothing is trained, written or sent. `parallelize` lays the model out on the meta device for rank 0 of a
    world that is not there; the first `train_step` looks at the batch, and ends the function.

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
        self.unknown = f"its function calls run.earlier({stage!r}), and no earlier stage has run"
        raise CheckFinished

    def parallelize(
        self,
        build: Callable[[], nn.Module],
        plan: Plan | None = None,
        *,
        init: Callable[[str, nn.Module], None] | None = None,
    ) -> nn.Module:
        """Return rank 0's part of the model on meta; ends the function if it does not fit."""
        arguments.check_parallelize_arguments(build, plan, init)
        fitted = FittedModel(
            model=build_model_on_meta(arguments.wrap_builder_with_result_check(build), self.seed),
            plan=plan or Plan(),
            layout=self.layout,
            settings=self.parallel,
        )
        self.problems += fitted.find_problems()
        if self.problems:
            raise CheckFinished
        try:
            part = self._parallel_models.remember_model(fitted.lay_out_model_of_rank(self.rank))
        except HpckitError as error:
            self._record_problem_and_finish(error)
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
            self._check_batch_types("train_step", model, inputs, targets, loss)
            arguments.check_batch_share_type(share)
            self._parallel_models.find_training(model).cut.check_rows_fit_layout(inputs, targets, share)
        except HpckitError as error:
            self._record_problem_and_finish(error)
        number = next(number for number, one in enumerate(self.parts) if one is model)
        self.forward = ForwardFit(fitted=self.fitted[number], inputs=inputs.to("meta"))
        raise CheckFinished

    def evaluate(
        self, model: nn.Module, inputs: Tensor, targets: Any, *, loss: LossFunction | None = None
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
            id(parameter) for parameter in nn.ModuleList(self.parts).parameters() if parameter.requires_grad
        }
        self.adam = bool(trained) and trained <= updated

    def steps(self, total: int, *, start: int | None = None, samples_per_step: int = 0) -> Iterator[int]:
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

    def _record_problem_and_finish(self, error: HpckitError) -> NoReturn:
        self.problems.append(error_to_problem(error))
        raise CheckFinished from error


def check_model(question: ModelQuestion) -> ModelAnswer:
    """Run the user's function up to its first step; return what was found of its models."""
    settings = from_plain(LaunchConfig, question.config)
    run = _build_checked_run(question, settings)
    with fake_process_group(run.rank, run.world_size):
        ended = _run_user_function(run, settings)
    if run.problems:
        return ModelAnswer(problems=tuple(run.problems))
    if not run.fitted:
        return ModelAnswer(model_unchecked=_explain_no_model(question, settings, ended))
    try:
        stages = _measure_memory_of_stages(run)
    except UsageError as error:
        return ModelAnswer(problems=(error_to_problem(error),))
    except Exception as error:  # noqa: BLE001  # torch's, of the user's model
        return ModelAnswer(model_unchecked=format_exception(error))
    forward_unchecked, problem = "", None
    if run.forward is not None:
        try:
            problem = run.forward.explain_forward_failure()
        except ForwardUnknownError as error:
            forward_unchecked = str(error)
    unseen = "" if run.forward is not None else ended or "it ended before run.train_step"
    return ModelAnswer(
        problems=() if problem is None else (problem,),
        parameters=sum(model.parameter_count for model in run.fitted),
        stages=stages,
        adam=run.adam,
        batch_unchecked=unseen,
        forward_unchecked=forward_unchecked,
    )


def _build_checked_run(question: ModelQuestion, settings: LaunchConfig) -> CheckedRun:
    folder, info = Path(question.folder), rank_info(copy_environment())
    return CheckedRun(
        info=info,
        config=Config(question.config),
        device=torch.device("cpu"),
        folder=folder,
        attempt_folder=folder,
        checkpoint_dir=folder / "checkpoints",
        code_folder=Path(question.code),
        project_folder=Path(question.project),
        logger=make_rank_logger(info),
        seed=settings.seed,
        layout=find_layout_for_ranks(settings, info.world_size),
        parallel=settings.parallel,
        stage_name=question.stage,
        _keeps_state=False,
    )


def _run_user_function(run: CheckedRun, settings: LaunchConfig) -> str:
    """Call the user's function; return how it ended, empty if it came to a training step.

    What hpckit or the function refuses as a wrong configuration is a problem of the run.
    """
    seed_all_generators(settings.seed)
    try:
        call_user_function(_load_user_function(str(settings.entry_point)), run)
    except CheckFinished:
        return run.unknown
    except UsageError as error:
        run.problems.append(error_to_problem(error))
    except MissingKeyError as error:
        run.problems.append(
            LayoutProblem(
                message=f"{settings.entry_point} ends where {error}",
                hint="set it: +KEY=VALUE on the command line, or in the experiment's file",
            )
        )
    except Exception as error:  # noqa: BLE001  # the user's code
        return format_exception(error)
    except SystemExit as error:
        return f"it ended by SystemExit({error.code!r})"
    return ""


def _load_user_function(text: str) -> Callable[..., Any]:
    """Return the user's function; raises ConfigError also if its module does not exist."""
    module = text.partition(":")[0]
    try:
        return load_user_function(text)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"entry_point={text}: there is no module {error.name}",
            hint="write entry_point=MODULE:FUNCTION, such as train:train for the function train in "
            "the project's train.py",
        ) from None


def _explain_no_model(question: ModelQuestion, settings: LaunchConfig, ended: str) -> str:
    """Return why no model was made: how the code ended, and whether it calls run.parallelize.

    A function that lays its model out itself ends in torch's own errors, as its ranks are fake.
    """
    text = str(settings.entry_point)
    module = sys.modules.get(text.partition(":")[0])
    function = getattr(module, text.partition(":")[2], None)
    if function is None or calls_method(function, "parallelize", Path(question.code)):
        how = "it ended before run.parallelize"
        return f"before run.parallelize, it ended with {ended}" if ended else how
    if not ended or "INTERNAL ASSERT" in ended:
        return "it does not call run.parallelize"
    return f"it does not call run.parallelize, and ended with {ended}"


def _measure_memory_of_stages(run: CheckedRun) -> tuple[StageMemory, ...]:
    """Return what the first rank of each pipeline stage holds of all models; raises ConfigError."""
    found = [measure_stage_memory(0, run.parts)]
    for stage in range(1, run.layout.pipeline):
        rank = run.layout.rank_at({MeshAxis.pipeline: stage})
        with fake_process_group(rank, run.world_size):
            found.append(
                measure_stage_memory(
                    stage, [model.lay_out_model_of_rank(rank).module for model in run.fitted]
                )
            )
    return tuple(found)


def main() -> NoReturn:
    """Answer one question."""
    die_with_parent()
    answer_to = os.dup(1)
    os.dup2(2, 1)
    question = from_plain(ModelQuestion, json.loads(sys.stdin.read()))
    sys.path.insert(0, question.code)
    answer = check_model(question)
    with os.fdopen(answer_to, "w") as file:
        json.dump(to_plain(answer), file)
    # Threads and exit handlers of the user's code are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
