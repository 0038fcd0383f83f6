"""The program of a batch script: connects Slurm's step launcher to the supervisor of one attempt.

It makes no decisions itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpckit.batch.shared_job.notes import VARIABLE, SharedJobNotes
from hpckit.batch.stage_gate import REFUSED, wait_until_run_may_begin
from hpckit.context import Context
from hpckit.errors import SchedulerError, UsageError
from hpckit.model.cluster.allocation import AttemptLimits, AttemptRequest, RequeueResult
from hpckit.model.cluster.nodes import expand_hostlist
from hpckit.model.counted import format_ranges
from hpckit.model.failure import Cause
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.node_setup import ContainerStep
from hpckit.model.plan import JobSpec, SharedJobSpec
from hpckit.model.states import RequeueOutcome
from hpckit.operations.growth import explain_growth, queue_grown_attempt
from hpckit.operations.running.satellites import GrowOrder, cancel_waiting_satellites, replace_lost_replicas
from hpckit.operations.successor import (
    cancel_successor,
    exclude_successor_nodes,
    is_job_awaited,
    is_obsolete_successor,
    queue_successor,
    queue_successor_after_refusal,
)
from hpckit.planning.recovery.growth import list_causes_of_growth
from hpckit.record.attempts import has_completed_attempt
from hpckit.record.launches import Launch, load_run_settings
from hpckit.run_features import AGENT, choose_agent_module, find_run_hooks
from hpckit.runtime.assignment import AgentCommand, Allocation, Assignment
from hpckit.runtime.environ import find_job_and_restarts, remove_rank_variables
from hpckit.runtime.foreground import disable_restarts_in_foreground
from hpckit.runtime.left_behind import become_subreaper
from hpckit.runtime.supervisor.supervisor import supervise
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.job_limits import LimitsOfJob, ask_why_job_ends
from hpckit.slurm.query import ask_draining_nodes
from hpckit.slurm.requeue import JobAttempt, requeue_job
from hpckit.slurm.step import build_agent_srun_command, build_srun_environment
from hpckit.values import dataclass, replace


def supervise_run(launch: Launch, job: JobSpec, index: int | None, context: Context) -> int:
    """Supervise one attempt of one run; returns the attempt's exit code.

    Without `index`, it is the run of the array element, or the only run of the job.
    """
    if index is None:
        index = _find_run_of_array_element(job, context.environ)
    settings = disable_restarts_in_foreground(load_run_settings(launch, index)[0], context.environ)
    slurm_job, restarts = find_job_and_restarts(context.environ)
    again = restarts or job.resources.dependency or job.shared_job
    if again and has_completed_attempt(launch.paths.run(index)):
        # This start is not needed: a late requeue, or a successor left in the queue.
        context.note(f"run {launch.runs[index].id} is already completed; nothing is left to do")
        return 0
    if job.resources.dependency and is_obsolete_successor(launch, index, job, slurm_job, context):
        name = launch.runs[index].id
        context.note(f"run {name} does not continue in this job; run `hpckit resume {name}`")
        return 0
    if not wait_until_run_may_begin(launch, index, context):
        return REFUSED
    on_slurm = launch.cluster.kind is ClusterKind.slurm
    agents = _build_agent_command(launch, job, index, context.environ)
    alone = on_slurm and job.shared_job is None
    if alone and (job.requeue or settings.recovery.queue_successor):
        will = launch.build_hpckit_command(
            "supervisor-lost", str(launch.folder), f"--job={job.index}", f"--run={index}"
        )
        agents = replace(agents, on_supervisor_lost=tuple(will))
    assignment = Assignment(
        launch=launch,
        index=index,
        job_index=job.index,
        settings=settings,
        requeue=job.requeue and alone,
        agents=agents,
        environ=context.environ,
        allocation=_build_allocation_requests(launch, index, job, context) if on_slurm else None,
    )
    if not settings.notify.events:
        return _run_supervisor(assignment)
    # Most runs send no notices, whose code is a sixth of what is imported here.
    from hpckit.operations.notices.tell import AttemptTeller  # noqa: PLC0415

    teller = AttemptTeller(launch=launch, index=index, notify=settings.notify, context=context)
    code = _run_supervisor(replace(assignment, heard=teller.send_notices_of_event))
    teller.send_notices_of_attempt_end()
    return code


def _run_supervisor(assignment: Assignment) -> int:
    """Supervise; without a launcher by an agent from a fork, as such runs are many and short."""
    if assignment.agents.prefix:
        return supervise(assignment)
    become_subreaper()  # of an agent that is killed
    if assignment.agents.module != AGENT:
        return supervise(assignment)
    from hpckit.runtime.agent.prefork import prefork_agent  # noqa: PLC0415  # not needed with srun

    with prefork_agent() as ready:
        agents = replace(assignment.agents, ready=ready)
        return supervise(replace(assignment, agents=agents))


def _build_allocation_requests(
    launch: Launch, index: int, spec: JobSpec, context: Context
) -> Allocation | None:
    """Return what the supervisor may ask Slurm for; None outside a job."""
    if spec.shared_job is not None:
        return build_shared_job_requests(spec.shared_job, context)
    environ = context.environ
    job, restarts = find_job_and_restarts(environ)
    if job is None:
        return None
    commands = SlurmCommands(bin_dir=launch.cluster.bin_dir, environ=environ)
    limits = LimitsOfJob(commands=commands, job=job, environ=environ)
    policy = load_run_settings(launch, index)[0].recovery
    successor = policy.queue_successor
    attempts = _NextAttempt(
        launch=launch, index=index, spec=spec, job=job, restarts=restarts, commands=commands, context=context
    )

    def draining(others: Sequence[str]) -> dict[str, str] | None:
        try:
            return ask_draining_nodes(",".join((environ["SLURM_JOB_NODELIST"], *others)), commands)
        except (SchedulerError, KeyError):
            return None

    def grow_back_lost_replicas(replicas: int, idle_nodes: int) -> tuple[str, int] | None:
        order = GrowOrder(replicas=replicas, idle_nodes=idle_nodes)
        return replace_lost_replicas(launch, index, order, context)

    # A stage that waits for this job would never start if another job continued the run.
    grows = list_causes_of_growth(policy) and not is_job_awaited(launch, spec)
    queue = partial(queue_successor, launch, index, spec, job, context)
    drop = partial(cancel_successor, launch, index, job, context)
    return Allocation(
        limits=limits.ask_limits,
        why=lambda: ask_why_job_ends(commands, job, restarts, limits.preempt_mode),
        requeue=attempts.request_new_attempt,
        draining=draining,
        queue_successor=queue if successor else None,
        hand_to_successor=attempts.hand_to_successor if successor else None,
        drop_successor=drop if successor else None,
        drop_satellites=partial(cancel_waiting_satellites, launch, index, context),
        regrow=grow_back_lost_replicas if policy.regrow else None,
        growth=partial(explain_growth, launch, index, context) if grows else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NextAttempt:
    """The next attempt of a run, as it is asked for in its present job, `job` of Slurm."""

    launch: Launch
    index: int
    spec: JobSpec
    job: str
    restarts: int
    commands: SlurmCommands
    context: Context

    def hand_to_successor(self, wish: AttemptRequest) -> RequeueResult:
        """Pass on to the job that waits behind this one what it is to be like."""
        if wish.grow is None:
            return exclude_successor_nodes(self.launch, self.index, self.spec, wish, self.context)
        return queue_grown_attempt(self.launch, self.index, self.spec, self.job, wish, self.context)

    def request_new_attempt(self, wish: AttemptRequest, owns_run: Callable[[], bool]) -> RequeueResult:
        """Ask for a new attempt: of this job, unless it is to have more of what ran out."""
        if wish.grow is not None and owns_run():
            answer = self.hand_to_successor(wish)
            # With as little time again, the run would only reach the same time limit.
            if answer.outcome is RequeueOutcome.requeued or wish.grow is Cause.time_limit:
                return answer
            self.context.note(f"warning: {answer.message}; the next attempt asks for as much as this one")
        attempt = JobAttempt(
            job=self.job,
            restart_count=self.restarts,
            asked=self.spec.resources,
            owns_run=owns_run,
            lost=wish.lost,
        )
        answer = requeue_job(self.commands, attempt, exclude=wish.excluded)
        if answer.disallowed and owns_run():
            answer = queue_successor_after_refusal(
                self.launch, self.index, self.spec, self.job, answer, self.context
            )
            if wish.excluded and answer.outcome is RequeueOutcome.requeued:
                return exclude_successor_nodes(self.launch, self.index, self.spec, wish, self.context)
        return answer


def find_launch_job(launch: Launch, index: int) -> JobSpec:
    """Return a job of a launch by its index; raises UsageError."""
    for job in launch.jobs:
        if job.index == index:
            return job
    known = format_ranges([job.index for job in launch.jobs])
    raise UsageError(f"launch {launch.id} has no job {index}; its jobs are {known}")


def _find_run_of_array_element(job: JobSpec, environ: Mapping[str, str]) -> int:
    element = environ.get("SLURM_ARRAY_TASK_ID")
    if element is None and not job.is_array:
        return job.runs[0]
    if element is None or not element.isdecimal() or int(element) >= len(job.runs):
        raise UsageError(
            f"job {job.index} is an array of {len(job.runs)} runs, and SLURM_ARRAY_TASK_ID is {element!r}",
            hint="submit the rendered script unchanged, with its --array line",
        )
    return job.runs[int(element)]


def _build_agent_command(
    launch: Launch, job: JobSpec, index: int, environ: Mapping[str, str]
) -> AgentCommand:
    settings, config = load_run_settings(launch, index)
    module, environ = choose_agent_module(settings, config), remove_rank_variables(environ)
    if job.shared_job is not None:
        alone = build_shared_job_agent_environ(job.shared_job, environ)
        return AgentCommand(prefix=(), environ=alone, module=module)
    if launch.cluster.kind is not ClusterKind.slurm:
        return AgentCommand(prefix=(), environ={**environ, **ALONE}, module=module)
    if "SLURM_JOB_ID" not in environ:
        raise UsageError(
            f"launch {launch.id} is for Slurm, but this is not a Slurm job (SLURM_JOB_ID not set)",
            hint=f"submit it: sbatch {launch.folder / f'job-{job.index}.sbatch'}",
        )
    cluster, nodes = launch.cluster, expand_hostlist(environ.get("SLURM_JOB_NODELIST", ""))
    inside = plan_container_step(launch, index, (settings, config), environ)
    options = (*cluster.srun_args, *(inside.options if inside else ()))
    step = partial(build_agent_srun_command, job.resources, (), bin_dir=cluster.bin_dir)
    return AgentCommand(
        prefix=tuple(step(srun_args=options)),
        again=lambda nodes: tuple(step(only=nodes, srun_args=options)),
        environ={**build_srun_environment(environ), **(inside.variables if inside else {})},
        nodes=nodes,
        module=AGENT if inside else module,
        python=inside.python if inside else None,
        watch=tuple(step(only=nodes, srun_args=cluster.srun_args)) if inside else (),
    )


def plan_container_step(
    launch: Launch, index: int, given: tuple[LaunchConfig, Mapping[str, Any]], environ: Mapping[str, str]
) -> ContainerStep | None:
    """Return how srun itself starts a run's agents in containers; None if it does not.

    `given` is what `load_run_settings` returns of the run.
    """
    settings, config = given
    hooks = find_run_hooks(settings, config, "plan_step")
    plans = [
        hook(launch=launch, index=index, settings=settings, config=config, environ=environ) for hook in hooks
    ]
    return next(filter(None, plans), None)


ALONE = {"HPCKIT_RANK": "0", "HPCKIT_WORLD_SIZE": "1"}
"""Rank and world size for an agent that is started without a launcher."""


def build_shared_job_requests(spec: SharedJobSpec, context: Context) -> Allocation | None:
    """Return what the run's supervisor may ask for; None without the shared job's notes.

    The shared job itself queries Slurm for all of its runs, and restarts them.
    """
    folder = context.environ.get(VARIABLE)
    if folder is None:
        return None
    notes, each = SharedJobNotes(Path(folder)), spec.each.timeout
    own_end = None if each is None else time.monotonic() + each.total_seconds()

    def limits() -> AttemptLimits:
        told = notes.wait_for_job_time_limits()
        ends = [end for end in (told.end_s, own_end) if end is not None]
        return replace(told, end_s=min(ends, default=None))

    return Allocation(
        limits=limits,
        why=notes.wait_for_job_end_reason,
        requeue=lambda wish, _owns_run: RequeueResult(
            outcome=RequeueOutcome.requeued,
            message="it waits for a free slot of its job",
            kept=wish.excluded,  # the job has the nodes that it has
        ),
        draining=lambda _: None,
    )


def build_shared_job_agent_environ(spec: SharedJobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the agent, without Slurm's variables for the job as a whole."""
    left = {name: value for name, value in environ.items() if name != VARIABLE}
    cpus = {"SLURM_CPUS_PER_TASK": str(spec.each.cpus_per_task)}
    return {**build_srun_environment(left), **cpus, **ALONE}
