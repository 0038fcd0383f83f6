"""Asks Slurm whether it would take a launch's jobs, as submitted first or resumed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from hpckit.context import NO_LOCAL, Context, login_name
from hpckit.errors import SchedulerError
from hpckit.model.cluster.site import NodeGroup, Site
from hpckit.model.finding import ExpectedStart, Finding
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec
from hpckit.planning.checks.cluster import find_cluster_problems
from hpckit.planning.checks.limits import get_account_partition_qos, list_possible_partitions
from hpckit.planning.checks.node_shape import asks_for_node_resources
from hpckit.planning.checks.outdated import find_outdated_cluster_facts
from hpckit.planning.checks.sbatch_options import find_unsatisfiable_dependencies, list_jobs_depended_on
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import observe_jobs
from hpckit.slurm.site_query import PATIENCE, ask_cluster_facts_for_user, ask_node_groups
from hpckit.slurm.test_only import dry_run_sbatch
from hpckit.values import dataclass, field, replace

_FORECASTS = 8
"""Slurm forecasts the start of at most this many jobs of a launch: each query runs its planner."""


@dataclass(slots=True, kw_only=True)
class Asked:
    """What Slurm has answered about a launch."""

    plan: LaunchPlan
    scripts: Mapping[int, str]
    context: Context
    site: Site = field(default_factory=Site)
    findings: list[Finding] = field(default_factory=list)
    starts: list[ExpectedStart] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def ask_slurm(self) -> None:
        """Ask what the cluster offers, then, if no finding is an error, for a forecast."""
        plan = self.plan
        commands = SlurmCommands(bin_dir=plan.cluster.bin_dir, environ=self.context.environ, timeout=PATIENCE)
        if commands.has_program("sbatch"):
            self.site = ask_cluster_facts_for_user(
                commands,
                login_name(),
                nodes=any(asks_for_node_resources(job.resources) for job in plan.jobs),
                heard=self.context.heard,
            )
            self.unchecked.extend(self.site.unknown)
        else:
            where = plan.cluster.bin_dir or "PATH"
            local = "" if self.context.environ.get(NO_LOCAL) else " (cluster=local runs here)"
            self.unchecked.append(
                f"sbatch was not found in {where}: limits, start times, and who restarts a "
                f"preempted run{local}"
            )
        self.findings.extend(find_cluster_problems(plan, self.site))
        self.findings.extend(find_outdated_cluster_facts(plan.cluster, self.site))
        if (jobs := list_jobs_depended_on(plan)) and self.site.settings is not None:
            with suppress(SchedulerError):
                seen = observe_jobs(jobs, commands, self.context.now())
                self.findings.extend(find_unsatisfiable_dependencies(plan, seen))
        refused = any(finding.is_error for finding in self.findings)
        # If slurmctld did not answer the first query, it would not answer this one either.
        if self.site.settings is not None and not refused:
            self._forecast_starts(commands)

    def _forecast_starts(self, commands: SlurmCommands) -> None:
        # Arrays of one sweep with the same resources get the same answer.
        alike = {replace(job.resources, array_parallelism=1): job for job in self.plan.jobs[::-1]}
        jobs = list(alike.values())[::-1]
        for job in jobs[:_FORECASTS]:
            text = self.scripts[job.index]
            try:
                answer = dry_run_sbatch(
                    job, text, commands, partial(self._list_partition_nodes, job, commands)
                )
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
                f"Slurm is asked for at most {_FORECASTS}"
            )

    def _list_partition_nodes(self, job: JobSpec, commands: SlurmCommands) -> tuple[NodeGroup, ...] | None:
        if self.site.nodes is None:
            self.site = replace(self.site, nodes=ask_node_groups(commands))
        if self.site.nodes is None:
            return None
        names = list_possible_partitions(self.site, get_account_partition_qos(job.resources))
        return tuple(node for node in self.site.nodes if node.partition in names)


def apply_sbatch_variables(plan: LaunchPlan, environ: Mapping[str, str]) -> LaunchPlan:
    """Return the plan with the user's defaults, which sbatch applies if the script sets none."""

    def filled(asked: ResourceSpec) -> ResourceSpec:
        given: dict[str, Any] = {
            name: getattr(asked, name) or environ.get(f"SBATCH_{name.upper()}") or None
            for name in ("account", "partition", "qos")
        }
        return replace(asked, **given)

    jobs = tuple(replace(job, resources=filled(job.resources)) for job in plan.jobs)
    return replace(plan, jobs=jobs)
