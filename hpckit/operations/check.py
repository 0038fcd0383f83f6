"""Checks whether a prepared launch could run: this machine, Slurm's limits, a forecast, the budget.

Slurm gets three queries to slurmctld, three to the accounting, and a forecast for each of a few
jobs. Writes nothing.
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum

from hpckit.context import Context
from hpckit.model.cluster.gpus_asked import gpus_asked
from hpckit.model.command import command_words
from hpckit.model.finding import CheckReport
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import LaunchPlan
from hpckit.operations.answering.slurm_check import Asked, as_submitted
from hpckit.operations.layout.plain_commands import warn_of_plain_commands
from hpckit.operations.model_check import ModelChecks
from hpckit.operations.prepare import Prepared
from hpckit.planning.checks.cost import estimate_cost, over_budget
from hpckit.planning.checks.gpu_memory import gpu_memory_findings
from hpckit.planning.checks.limits import preemption_findings, preemption_lines
from hpckit.planning.checks.slips import plan_slips
from hpckit.planning.layout import planned_layouts
from hpckit.record.snapshot.environment import unreadable_setup
from hpckit.record.snapshot.preflight import Machine
from hpckit.values import replace

_SECONDS = timedelta(seconds=20)
"""For the model of a launch: more would hold the user up, who can ask `hpckit check`."""


class ModelDepth(Enum):
    """Which functions of runs that are laid out are run, up to their first training step."""

    nothing = "nothing"
    sure = "sure"
    """that of one run that asks Slurm for GPUs, for seconds, and only errors count"""
    everything = "everything"


def check_launch(
    prepared: Prepared, context: Context, *, models: ModelDepth = ModelDepth.nothing
) -> CheckReport:
    """Return the findings about this launch; no Slurm error is raised.

    Models are looked at as `models` says, if nothing else is wrong.
    """
    plan = as_submitted(prepared.plan, context.environ)
    machine = Machine(
        plan=plan, snapshot=prepared.snapshot, environ=context.environ, split=command_words
    )
    findings = list(machine.findings())
    asked = Asked(plan=plan, scripts=prepared.scripts, context=context)
    if plan.cluster.kind is ClusterKind.slurm:
        findings += unreadable_setup(plan.cluster.setup)
        asked.ask()
    expected = estimate_cost(plan, asked.site)
    findings += [*plan_slips(plan), *asked.findings, *over_budget(plan, expected)]
    findings += preemption_findings(plan, asked.site)
    findings += warn_of_plain_commands(plan, machine.working_dir)
    checks = ModelChecks(plan=plan, snapshot=prepared.snapshot, context=context)
    if models is ModelDepth.sure:
        checks = replace(checks, most=1, patience=_SECONDS, fallback=False)
    costly = models is ModelDepth.everything or _asks_slurm_for_gpus(plan)
    if (
        models is not ModelDepth.nothing
        and costly
        and not any(finding.is_error for finding in findings)
    ):
        with context.progress("checking models", quiet=prepared.quiet):
            found = [*checks.findings()]
        found += gpu_memory_findings(plan, checks.models, asked.site)
        findings += [
            finding for finding in found if models is ModelDepth.everything or finding.is_error
        ]
    if models is not ModelDepth.everything:
        checks.unchecked.clear()
    return CheckReport(
        findings=tuple(findings),
        starts=tuple(asked.starts),
        estimate=expected,
        unchecked=(*machine.unchecked, *asked.unchecked, *checks.unchecked),
        notices=tuple(destination.transport.value for destination in prepared.destinations),
        layouts=planned_layouts(run.settings for run in plan.runs),
        models=tuple(checks.models),
        preemption=preemption_lines(plan, asked.site),
    )


def _asks_slurm_for_gpus(plan: LaunchPlan) -> bool:
    asks = any(gpus_asked(job.resources) for job in plan.jobs)
    return asks and plan.cluster.kind is ClusterKind.slurm
