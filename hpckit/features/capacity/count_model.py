"""Counts the model of an experiment in its layout, without its memory and without its GPUs.

It composes a launch of one run and writes nothing. The user's function runs in a process of its
own, up to its first training step.
"""

from __future__ import annotations

from hpckit.config.request import ComposeRequest
from hpckit.context import Context
from hpckit.errors import ConfigError
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.model_check import CheckedModel
from hpckit.model.plan import LaunchPlan
from hpckit.operations.model_check import ModelChecks
from hpckit.operations.prepare import prepare
from hpckit.planning.layout import layout_of


def count_model(
    request: ComposeRequest, context: Context, *, quiet: bool = False
) -> tuple[CheckedModel, Layout]:
    """Return the model as the code of the one run builds it, and the layout on all of its ranks.

    Raises any kind of UsageError.
    Also if its code does not come as far as `run.parallelize`.
    """
    prepared = prepare(request, ("plan", *request.overrides), context, quiet=quiet)
    plan = prepared.plan
    if len(plan.runs) != 1:
        raise ConfigError(
            f"this is {len(plan.runs)} runs, and a plan is of one",
            hint="choose one value of each key, and one stage",
        )
    settings = plan.runs[0].settings
    if settings.entry_point is None:
        raise ConfigError(
            "this runs a command, whose model only the command knows",
            hint="describe the model: --model 'hidden=4096 layers=32 heads=32'",
        )
    checks = ModelChecks(
        plan=plan, snapshot=prepared.snapshot, context=context, whole_copies=True, fallback=False
    )
    with context.progress("counting the model", quiet=quiet):
        findings = list(checks.findings())
    if refused := [finding for finding in findings if finding.is_error]:
        raise ConfigError(refused[0].message, hint=refused[0].hint)
    if not checks.models:
        why = checks.unmade[0] if checks.unmade else "it has no parameters"
        raise ConfigError(
            f"{_short_name(plan)} cannot be counted: {why}",
            hint="let it come to run.parallelize, or describe the model: --model "
            "'hidden=4096 layers=32 heads=32'",
        )
    return checks.models[0], layout_of(settings)


def _short_name(plan: LaunchPlan) -> str:
    """Return the experiment, or the function if none was chosen by name."""
    settings = plan.runs[0].settings
    entry_point = str(settings.entry_point)
    module, _, function = entry_point.partition(":")
    ours = module.startswith("hpckit.experiments.")
    return f"{module.rpartition('.')[2]} ({entry_point})" if ours and function else entry_point
