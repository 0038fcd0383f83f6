"""`hpckit check`: whether a launch could run, without launching it.

Writes and submits nothing. Functions of runs with a layout are run up to their first training step.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from hpckit.cli.compose_options import (
    add_compose_arguments,
    build_compose_request,
    list_words_to_record,
    show_config_if_asked,
)
from hpckit.cli.launch_output import WOULD_ASK, tell_which_runs_are_not_launched
from hpckit.cli.options import add_flag
from hpckit.context import Context
from hpckit.model.counted import format_byte_size, format_count
from hpckit.model.finding import CheckReport, CostEstimate
from hpckit.model.launch import ClusterKind
from hpckit.model.moment import format_local_datetime
from hpckit.model.parallel.model_check import CheckedModel
from hpckit.model.plain import attributes_to_json
from hpckit.model.plan import LaunchPlan

TAKES_COMMAND = True
"""Words after `--` are a command to run, not overrides."""


EPILOG = """\
examples:
  hpckit check -- python train.py --lr 0.1
  hpckit check experiment=mine -m lr=0.1,0.2 resources=one_gpu
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select a configuration, as for `launch`."""
    add_compose_arguments(parser)
    add_flag(
        parser, "--no-model", "do not run functions up to their first step to check models in their layouts"
    )


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Check and print the findings; returns 2 if the launch would be refused."""
    if show_config_if_asked(arguments, context):
        return 0
    from hpckit.operations import check, deduplicate, local, prepare  # noqa: PLC0415  # they import Hydra

    request = build_compose_request(arguments, context)
    words = list_words_to_record(arguments, context)
    prepared = prepare.prepare_launch(request, words, context, checked=True, quiet=arguments.json)
    prepared = prepare.add_notice_destinations(prepared, context)
    plan = prepared.plan
    local.refuse_forbidden_local_runs(plan.cluster.kind, context.environ)
    known = deduplicate.find_already_launched_runs(prepared, context)
    tell_which_runs_are_not_launched(known, context, plan.cluster.kind, dry=True)
    if known.would_repeat_runs:
        context.note(WOULD_ASK)
    depth = check.ModelDepth.nothing if arguments.no_model else check.ModelDepth.everything
    checked = check.check_launch(prepared, context, models=depth)
    if arguments.json:
        context.say_json(check_report_to_json(plan, checked))
    else:
        for line in format_check_report(plan, checked):
            context.say(line)
    return 2 if checked.errors else 0


_INDENT = " " * 11


def format_check_report(plan: LaunchPlan, checked: CheckReport) -> Iterator[str]:
    """Yield the lines that `hpckit check` prints."""
    runs, jobs = format_count(len(plan.runs), "run"), format_count(len(plan.jobs), "job")
    yield f"checked {plan.name}: {runs} in {jobs}"
    for finding in (*checked.errors, *checked.warnings):
        yield f"  {finding.severity:<7}  {finding.message}"
        yield from (f"{_INDENT}{line}" for line in finding.hint.splitlines())
    for layout in checked.layouts:
        yield f"  layout   {layout}"
    for model in checked.models:
        of = f"run {model.run}: " if len(plan.runs) > 1 else ""
        nodes = format_count(model.nodes, "node")
        layout = f", as {model.layout} on {nodes} (parallel.fallback)" if model.fallback else ""
        yield f"  model    {of}{model.parameters:,} parameters{layout}"
        yield from _format_model_memory(model)
    for said in checked.preemption:
        yield f"  preempt  {said}"
    for start in checked.starts:
        at = "not said" if start.at is None else format_local_datetime(start.at)
        yield f"  start    job {start.job_index}: {at} {start.words}".rstrip()
    if plan.cluster.kind is ClusterKind.slurm:
        yield f"  at most  {_format_cost_estimate(checked.estimate)}"
    if checked.notices:
        yield f"  notices  {', '.join(checked.notices)}: well-formed; nothing was sent"
    for reason in checked.unchecked:
        yield f"  unknown  {reason}"
    yield _format_check_verdict(checked)


def _format_check_verdict(checked: CheckReport) -> str:
    if checked.errors:
        return f"refused: {format_count(len(checked.errors), 'error')}"
    if checked.unchecked:
        return "no errors found; what is unknown above was not checked"
    if checked.warnings:
        return f"no errors found, {format_count(len(checked.warnings), 'warning')}"
    return "all checks passed"


def check_report_to_json(plan: LaunchPlan, checked: CheckReport) -> dict[str, object]:
    """Return the object that `hpckit check --json` prints."""
    return {
        "ok": not checked.errors,
        "runs": len(plan.runs),
        "jobs": len(plan.jobs),
        **attributes_to_json(checked, "findings starts estimate unchecked notices"),
        **attributes_to_json(checked, "layouts models preemption"),
    }


def _format_model_memory(model: CheckedModel) -> Iterator[str]:
    """Yield what a rank of each stage holds."""
    where = ", in the host's memory" if model.offloads else ""
    for one in model.stages:
        stage = f"of stage {one.stage} " if len(model.stages) > 1 else ""
        yield (
            f"{_INDENT}a rank {stage}holds {one.parameters:,} of them: "
            f"{format_byte_size(one.parameter_bytes)}; with gradients "
            f"({format_byte_size(one.gradient_bytes)}) and Adam "
            f"({format_byte_size(one.adam_bytes)}) {format_byte_size(one.training_state_bytes)}{where}"
        )


def _format_cost_estimate(estimate: CostEstimate) -> str:
    if estimate.gpu_hours is None:
        return "unlimited GPU-hours: no time limit is known (resources.timeout_min)"
    parts = [f"{_format_hours(estimate.gpu_hours)} GPU-hours"] if estimate.gpu_hours else []
    if estimate.cpu_hours is None:
        parts.append("unlimited CPU-hours: no time limit is known (resources.timeout_min)")
    elif estimate.cpu_hours:
        parts.append(f"{_format_hours(estimate.cpu_hours)} CPU-hours")
    return ", ".join(parts)


def _format_hours(hours: float) -> str:
    return f"{max(0.01, round(hours, 2)):.10g}"
