"""Checks whether a prepared launch could run: this machine, Slurm's limits, a forecast, the budget.

Slurm gets three queries to slurmctld, three to the accounting, and a forecast for each of a few
jobs. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any

from hpckit.context import Context, login_name
from hpckit.errors import SchedulerError
from hpckit.model.cluster.gpus_asked import gpus_asked
from hpckit.model.cluster.site import NodeGroup, Site
from hpckit.model.command import command_words
from hpckit.model.finding import CheckReport, ExpectedStart, Finding, Severity
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec
from hpckit.operations.layout.plain_commands import (
    warn_of_plain_commands,
    warn_of_unread_values,
)
from hpckit.operations.model_check import ModelChecks
from hpckit.operations.prepare import Prepared
from hpckit.planning.checks.cluster import preflight
from hpckit.planning.checks.cost import estimate_cost, over_budget
from hpckit.planning.checks.dependencies import dependency_findings, followed_jobs
from hpckit.planning.checks.gpu_memory import gpu_memory_findings
from hpckit.planning.checks.limits import chosen_of, partition_names
from hpckit.planning.checks.node_shape import asks_of_nodes
from hpckit.planning.checks.preemption import preemption_findings, preemption_lines
from hpckit.planning.checks.slips import plan_slips
from hpckit.planning.layout import planned_layouts
from hpckit.record.snapshot.preflight import Machine
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import observe
from hpckit.slurm.site_query import PATIENCE, read_nodes, read_site
from hpckit.slurm.test_only import rehearse
from hpckit.values import dataclass, field, replace

_SECONDS = timedelta(seconds=20)
"""For the model of a launch: more would hold the user up, who can ask `hpckit check`."""
_FORECASTS = 8
"""Slurm forecasts the start of at most this many jobs of a launch: each query runs its planner."""


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
    plan = _as_submitted(prepared.plan, context.environ)
    machine = Machine(
        plan=plan, snapshot=prepared.snapshot, environ=context.environ, split=command_words
    )
    findings = list(machine.findings())
    asked = _Asked(plan=plan, scripts=prepared.scripts, context=context)
    if plan.cluster.kind is ClusterKind.slurm:
        asked.ask()
    expected = estimate_cost(plan, asked.site)
    findings += [*plan_slips(plan), *asked.findings, *over_budget(plan, expected)]
    findings += preemption_findings(plan, asked.site)
    findings += warn_of_plain_commands(plan, machine.working_dir)
    findings += warn_of_unread_values(plan, machine.working_dir)
    checks = ModelChecks(plan=plan, snapshot=prepared.snapshot, context=context)
    if models is ModelDepth.sure:
        checks = replace(checks, most=1, patience=_SECONDS, fallback=False)
    costly = models is ModelDepth.everything or _asks_slurm_for_gpus(plan)
    if models is not ModelDepth.nothing and costly and not any(map(_is_error, findings)):
        with context.progress("checking models", quiet=prepared.quiet):
            found = [*checks.findings()]
        found += gpu_memory_findings(plan, checks.models, asked.site)
        findings += [one for one in found if models is ModelDepth.everything or _is_error(one)]
    if models is not ModelDepth.everything:
        checks.unchecked.clear()
    return CheckReport(
        findings=tuple(findings),
        starts=tuple(asked.starts),
        estimate=expected,
        unchecked=(*machine.unchecked, *asked.unchecked, *checks.unchecked),
        notices=tuple(one.transport.value for one in prepared.destinations),
        layouts=planned_layouts(run.settings for run in plan.runs),
        models=tuple(checks.models),
        preemption=preemption_lines(plan, asked.site),
    )


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.error


def _asks_slurm_for_gpus(plan: LaunchPlan) -> bool:
    asks = any(gpus_asked(job.resources) for job in plan.jobs)
    return asks and plan.cluster.kind is ClusterKind.slurm


@dataclass(slots=True, kw_only=True)
class _Asked:
    """What Slurm has answered about a launch."""

    plan: LaunchPlan
    scripts: Mapping[int, str]
    context: Context
    site: Site = field(default_factory=Site)
    findings: list[Finding] = field(default_factory=list)
    starts: list[ExpectedStart] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def ask(self) -> None:
        """Ask what the cluster offers, then, if no finding is an error, for a forecast."""
        plan = self.plan
        commands = SlurmCommands(
            bin_dir=plan.cluster.bin_dir, environ=self.context.environ, timeout=PATIENCE
        )
        if commands.available("sbatch"):
            self.site = read_site(
                commands,
                login_name(),
                nodes=any(asks_of_nodes(job.resources) for job in plan.jobs),
                heard=self.context.heard,
            )
            self.unchecked.extend(self.site.unknown)
        else:
            where = plan.cluster.bin_dir or "PATH"
            self.unchecked.append(
                f"sbatch was not found in {where}: no limit, no start, and who restarts a "
                "preempted run (cluster=local runs on this machine)"
            )
        self.findings.extend(preflight(plan, self.site))
        if (jobs := followed_jobs(plan)) and self.site.settings is not None:
            with suppress(SchedulerError):
                seen = observe(jobs, commands, self.context.now())
                self.findings.extend(dependency_findings(plan, seen))
        refused = any(map(_is_error, self.findings))
        # If slurmctld did not answer the first query, it would not answer this one either.
        if self.site.settings is not None and not refused:
            self._forecast(commands)

    def _forecast(self, commands: SlurmCommands) -> None:
        # Arrays of one sweep with the same resources get the same answer.
        alike = {replace(job.resources, array_parallelism=1): job for job in self.plan.jobs[::-1]}
        jobs = list(alike.values())[::-1]
        for job in jobs[:_FORECASTS]:
            text = self.scripts[job.index]
            try:
                answer = rehearse(job, text, commands, partial(self._nodes, job, commands))
            except SchedulerError as error:
                self.unchecked.append(f"when {job.name} would start: {error.message}")
                return
            if isinstance(answer, Finding):
                self.findings.append(answer)
            else:
                self.starts.append(answer)
        if len(jobs) > _FORECASTS:
            self.unchecked.append(
                f"when the last {len(jobs) - _FORECASTS} of {len(jobs)} kinds of jobs would start: "
                f"Slurm is asked for {_FORECASTS} at most"
            )

    def _nodes(self, job: JobSpec, commands: SlurmCommands) -> tuple[NodeGroup, ...] | None:
        """Return the nodes of the partitions in which the job may start."""
        if self.site.nodes is None:
            self.site = replace(self.site, nodes=read_nodes(commands))
        if self.site.nodes is None:
            return None
        names = partition_names(self.site, chosen_of(job.resources))
        return tuple(one for one in self.site.nodes if one.partition in names)


def _as_submitted(plan: LaunchPlan, environ: Mapping[str, str]) -> LaunchPlan:
    """Return the plan with the user's defaults, which sbatch applies if the script sets none."""

    def filled(asked: ResourceSpec) -> ResourceSpec:
        given: dict[str, Any] = {
            name: getattr(asked, name) or environ.get(f"SBATCH_{name.upper()}") or None
            for name in ("account", "partition", "qos")
        }
        return replace(asked, **given)

    jobs = tuple(replace(job, resources=filled(job.resources)) for job in plan.jobs)
    return replace(plan, jobs=jobs)
