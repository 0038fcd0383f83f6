"""The program of a batch script: connects Slurm's step launcher to the supervisor of one attempt.

It makes no decisions itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from hpckit.batch.shared_job.notes import VARIABLE, SharedJobNotes
from hpckit.batch.stage_gate import REFUSED, may_begin
from hpckit.context import Context
from hpckit.errors import SchedulerError, UsageError
from hpckit.model.cluster.allocation import AttemptLimits, AttemptRequest, RequeueResult
from hpckit.model.cluster.nodes import expand_nodes
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import JobSpec, SharedJobSpec
from hpckit.model.states import RequeueOutcome
from hpckit.operations.running.satellites import GrowOrder, drop_satellites, regrow
from hpckit.operations.successor import (
    continue_in_successor,
    drop_successor,
    hand_to_successor,
    queue_successor,
    starts_in_vain,
)
from hpckit.record.attempts import has_completed
from hpckit.record.launches import Launch, load_settings
from hpckit.runtime.assignment import AgentCommand, Allocation, Assignment
from hpckit.runtime.environ import job_key, without_rank
from hpckit.runtime.foreground import in_foreground
from hpckit.runtime.left_behind import adopt_orphans
from hpckit.runtime.supervisor.supervisor import supervise
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.job_limits import LimitsOfJob, ending
from hpckit.slurm.query import draining_nodes
from hpckit.slurm.requeue import JobAttempt, requeue
from hpckit.slurm.step import agent_step, step_environment
from hpckit.values import replace


def supervise_run(launch: Launch, job: JobSpec, index: int | None, context: Context) -> int:
    """Supervise one attempt of one run; returns the attempt's exit code.

    Without `index`, it is the run of the array element, or the only run of the job.
    """
    if index is None:
        index = _index(job, context.environ)
    settings = in_foreground(load_settings(launch, index)[0], context.environ)
    slurm_job, restarts = job_key(context.environ)
    again = restarts or job.resources.dependency or job.shared_job
    if again and has_completed(launch.paths.run(index)):
        # This start is not needed: a late requeue, or a successor left in the queue.
        context.note(f"run {launch.runs[index].id} is completed already; nothing is left to do")
        return 0
    if job.resources.dependency and starts_in_vain(launch, index, job, slurm_job, context):
        name = launch.runs[index].id
        context.note(f"run {name} does not continue in this job; `hpckit resume {name}` would")
        return 0
    if not may_begin(launch, index, context):
        return REFUSED
    on_slurm = launch.cluster.kind is ClusterKind.slurm
    agents = _agent_command(launch, job, context.environ)
    alone = on_slurm and job.shared_job is None
    if alone and (job.requeue or settings.recovery.queue_successor):
        will = launch.command(
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
        allocation=_allocation(launch, index, job, context) if on_slurm else None,
    )
    if not settings.notify.events:
        return _supervise(assignment)
    # Most runs tell nobody, and all that words a notice is a sixth of what is imported here.
    from hpckit.operations.notices.tell import AttemptTeller  # noqa: PLC0415

    teller = AttemptTeller(launch=launch, index=index, notify=settings.notify, context=context)
    code = _supervise(replace(assignment, heard=teller.hear))
    teller.end()
    return code


def _supervise(assignment: Assignment) -> int:
    """Supervise; without a launcher by an agent from a fork, as such runs are many and short."""
    if assignment.agents.prefix:
        return supervise(assignment)
    from hpckit.runtime.agent.prefork import ready_agent  # noqa: PLC0415  # not needed with srun

    adopt_orphans()  # of an agent that is killed
    with ready_agent() as ready:
        agents = replace(assignment.agents, ready=ready)
        return supervise(replace(assignment, agents=agents))


def _allocation(launch: Launch, index: int, spec: JobSpec, context: Context) -> Allocation | None:
    """Return what the supervisor may ask Slurm for; None outside a job."""
    if spec.shared_job is not None:
        return allocation_in_shared_job(spec.shared_job, context)
    environ = context.environ
    job, restarts = job_key(environ)
    if job is None:
        return None
    commands = SlurmCommands(bin_dir=launch.cluster.bin_dir, environ=environ)
    limits = LimitsOfJob(commands=commands, job=job, environ=environ)
    policy = load_settings(launch, index)[0].recovery
    successor = policy.queue_successor

    def hand(wish: AttemptRequest) -> RequeueResult:
        """Make the next attempt leave out these nodes."""
        return hand_to_successor(launch, index, spec, wish, context)

    def ask_again(wish: AttemptRequest, owns_run: Callable[[], bool]) -> RequeueResult:
        """Ask for a new attempt."""
        attempt = JobAttempt(
            job=job,
            restart_count=restarts,
            asked=spec.resources,
            owns_run=owns_run,
            lost=wish.lost,
        )
        answer = requeue(commands, attempt, exclude=wish.excluded)
        if answer.disallowed and owns_run():
            answer = continue_in_successor(launch, index, spec, job, answer, context)
            if wish.excluded and answer.outcome is RequeueOutcome.requeued:
                return hand(wish)
        return answer

    def draining(others: Sequence[str]) -> dict[str, str] | None:
        try:
            return draining_nodes(",".join((environ["SLURM_JOB_NODELIST"], *others)), commands)
        except (SchedulerError, KeyError):
            return None

    def grow_again(replicas: int, idle_nodes: int) -> tuple[str, int] | None:
        order = GrowOrder(replicas=replicas, idle_nodes=idle_nodes)
        return regrow(launch, index, order, context)

    queue = partial(queue_successor, launch, index, spec, job, context)
    drop = partial(drop_successor, launch, index, job, context)
    return Allocation(
        limits=limits.ask,
        why=lambda: ending(commands, job, restarts, limits.preempt_mode),
        requeue=ask_again,
        draining=draining,
        queue_successor=queue if successor else None,
        hand_to_successor=hand if successor else None,
        drop_successor=drop if successor else None,
        drop_satellites=partial(drop_satellites, launch, index, context),
        regrow=grow_again if policy.regrow else None,
    )


def job_of(launch: Launch, index: int) -> JobSpec:
    """Return a job of a launch by its index; raises UsageError."""
    for job in launch.jobs:
        if job.index == index:
            return job
    raise UsageError(f"launch {launch.id} has no job {index}; it has {len(launch.jobs)}")


def _index(job: JobSpec, environ: Mapping[str, str]) -> int:
    """Return the run of this array element, or the only run of the job."""
    element = environ.get("SLURM_ARRAY_TASK_ID")
    if element is None and not job.is_array:
        return job.runs[0]
    if element is None or not element.isdecimal() or int(element) >= len(job.runs):
        raise UsageError(
            f"job {job.index} is an array of {len(job.runs)} runs, and SLURM_ARRAY_TASK_ID is "
            f"{element!r}",
            hint="submit the rendered script as it is, with its --array line",
        )
    return job.runs[int(element)]


def _agent_command(launch: Launch, job: JobSpec, environ: Mapping[str, str]) -> AgentCommand:
    environ = without_rank(environ)
    if job.shared_job is not None:
        return AgentCommand(prefix=(), environ=environment_in_shared_job(job.shared_job, environ))
    if launch.cluster.kind is not ClusterKind.slurm:
        return AgentCommand(prefix=(), environ={**environ, **ALONE})
    if "SLURM_JOB_ID" not in environ:
        raise UsageError(
            f"launch {launch.id} is for Slurm, and this is no Slurm job (SLURM_JOB_ID is not set)",
            hint=f"submit it: sbatch {launch.folder / f'job-{job.index}.sbatch'}",
        )
    cluster = launch.cluster
    step = partial(
        agent_step, job.resources, (), srun_args=cluster.srun_args, bin_dir=cluster.bin_dir
    )
    return AgentCommand(
        prefix=tuple(step()),
        again=lambda nodes: tuple(step(only=nodes)),
        environ=step_environment(environ),
        nodes=expand_nodes(environ.get("SLURM_JOB_NODELIST", "")),
    )


ALONE = {"HPCKIT_RANK": "0", "HPCKIT_WORLD_SIZE": "1"}
"""Rank and world size for an agent that is started without a launcher."""


def allocation_in_shared_job(spec: SharedJobSpec, context: Context) -> Allocation | None:
    """Return what the run's supervisor may ask for; None without the shared job's notes.

    The shared job itself queries Slurm for all of its runs, and restarts them.
    """
    folder = context.environ.get(VARIABLE)
    if folder is None:
        return None
    notes, each = SharedJobNotes(Path(folder)), spec.each.timeout
    own_end = None if each is None else time.monotonic() + each.total_seconds()

    def limits() -> AttemptLimits:
        told = notes.limits()
        ends = [end for end in (told.end_s, own_end) if end is not None]
        return replace(told, end_s=min(ends, default=None))

    return Allocation(
        limits=limits,
        why=notes.ending,
        requeue=lambda wish, _owns_run: RequeueResult(
            outcome=RequeueOutcome.requeued,
            message="it waits for a free slot of its job",
            kept=wish.excluded,  # the job has the nodes that it has
        ),
        draining=lambda _: None,
    )


def environment_in_shared_job(spec: SharedJobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the agent, without Slurm's variables for the job as a whole."""
    left = {name: value for name, value in environ.items() if name != VARIABLE}
    cpus = {"SLURM_CPUS_PER_TASK": str(spec.each.cpus_per_task)}
    return {**step_environment(left), **cpus, **ALONE}
