"""`hpckit check`: whether a launch could run, without launching it.

Writes and submits nothing. Functions of runs with a layout are run up to their first training step.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from hpckit.cli.compose_options import add_composing, compose_request, recorded_words, show_instead
from hpckit.cli.launch_output import WOULD_ASK, say_known
from hpckit.cli.options import add_flag
from hpckit.context import Context
from hpckit.model.counted import counted, size_text
from hpckit.model.finding import CheckReport, CostEstimate
from hpckit.model.launch import ClusterKind
from hpckit.model.moment import local_moment
from hpckit.model.parallel.model_check import CheckedModel
from hpckit.model.plain import plain_fields
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
    add_composing(parser)
    add_flag(
        parser,
        "--no-model",
        "do not run functions up to their first step to check models in their layouts",
    )


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Check and print the findings; returns 2 if the launch would be refused."""
    if show_instead(arguments, context):
        return 0
    from hpckit.operations import check, deduplicate, local, prepare  # noqa: PLC0415  # they import Hydra

    request = compose_request(arguments, context)
    words = recorded_words(arguments, context)
    prepared = prepare.prepare(request, words, context, checked=True, quiet=arguments.json)
    prepared = prepare.with_destinations(prepared, context)
    plan = prepared.plan
    local.refuse_if_ruled_out(plan.cluster.kind, context.environ)
    known = deduplicate.divide(prepared, context)
    say_known(known, context, plan.cluster.kind, dry=True)
    if known.repeats:
        context.note(WOULD_ASK)
    depth = check.ModelDepth.nothing if arguments.no_model else check.ModelDepth.everything
    checked = check.check_launch(prepared, context, models=depth)
    if arguments.json:
        context.say_json(check_document(plan, checked))
    else:
        for line in check_lines(plan, checked):
            context.say(line)
    return 2 if checked.errors else 0


_INDENT = " " * 11


def check_lines(plan: LaunchPlan, checked: CheckReport) -> Iterator[str]:
    """Yield the lines that `hpckit check` prints."""
    runs, jobs = counted(len(plan.runs), "run"), counted(len(plan.jobs), "job")
    yield f"checked {plan.name}: {runs} in {jobs}"
    for finding in (*checked.errors, *checked.warnings):
        yield f"  {finding.severity:<7}  {finding.message}"
        yield from (f"{_INDENT}{line}" for line in finding.hint.splitlines())
    for layout in checked.layouts:
        yield f"  layout   {layout}"
    for model in checked.models:
        of = f"run {model.run}: " if len(plan.runs) > 1 else ""
        nodes = counted(model.nodes, "node")
        layout = f", as {model.layout} on {nodes} (parallel.fallback)" if model.fallback else ""
        yield f"  model    {of}{model.parameters:,} parameters{layout}"
        yield from _memory_lines(model)
    for said in checked.preemption:
        yield f"  preempt  {said}"
    for start in checked.starts:
        at = "not said" if start.at is None else local_moment(start.at)
        yield f"  start    job {start.job_index}: {at} {start.words}".rstrip()
    if plan.cluster.kind is ClusterKind.slurm:
        yield f"  at most  {_estimate(checked.estimate)}"
    if checked.notices:
        yield f"  notices  {', '.join(checked.notices)}: well-formed; nothing was sent"
    for reason in checked.unchecked:
        yield f"  unknown  {reason}"
    yield _verdict(checked)


def _verdict(checked: CheckReport) -> str:
    if checked.errors:
        return f"refused: {counted(len(checked.errors), 'error')}"
    if checked.unchecked:
        return "no errors found; what is unknown above was not checked"
    if checked.warnings:
        return f"no errors found, {counted(len(checked.warnings), 'warning')}"
    return "all checks passed"


def check_document(plan: LaunchPlan, checked: CheckReport) -> dict[str, object]:
    """Return the object that `hpckit check --json` prints."""
    return {
        "ok": not checked.errors,
        "runs": len(plan.runs),
        "jobs": len(plan.jobs),
        **plain_fields(checked, "findings starts estimate unchecked notices"),
        **plain_fields(checked, "layouts models preemption"),
    }


def _memory_lines(model: CheckedModel) -> Iterator[str]:
    """Yield what a rank of each stage holds."""
    where = ", in the host's memory" if model.offloads else ""
    for one in model.stages:
        stage = f"of stage {one.stage} " if len(model.stages) > 1 else ""
        yield (
            f"{_INDENT}a rank {stage}holds {one.parameters:,} of them: "
            f"{size_text(one.parameter_bytes)}; with gradients "
            f"({size_text(one.gradient_bytes)}) and Adam ({size_text(one.adam_bytes)}) "
            f"{size_text(one.total_bytes)}{where}"
        )


def _estimate(estimate: CostEstimate) -> str:
    if estimate.gpu_hours is None:
        return "GPU-hours without end: no time limit is known (resources.timeout_min)"
    parts = [f"{_hours(estimate.gpu_hours)} GPU-hours"] if estimate.gpu_hours else []
    if estimate.cpu_hours is None:
        parts.append("CPU-hours without end: no time limit is known (resources.timeout_min)")
    elif estimate.cpu_hours:
        parts.append(f"{_hours(estimate.cpu_hours)} CPU-hours")
    return ", ".join(parts)


def _hours(hours: float) -> str:
    return f"{max(0.01, round(hours, 2)):.10g}"
