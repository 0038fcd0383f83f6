"""Asks a running run to grow or shrink; what it grows by comes in a satellite job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpckit.context import Context
from hpckit.errors import SchedulerRefusedError, UsageError
from hpckit.model.cluster.site import NodeGroup
from hpckit.model.counted import format_count
from hpckit.model.elastic import Resize, ResizeAnswer, ResizeRequest
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import ResourceSpec
from hpckit.model.run import RunRecord
from hpckit.operations.running.satellites import (
    GrowOrder,
    SatellitePlan,
    plan_satellite_job,
    submit_satellite_job,
)
from hpckit.operations.submit import require_slurm_commands
from hpckit.record.launches import Launch, read_launch_history
from hpckit.record.lookup import Selection
from hpckit.record.process import this_host
from hpckit.runtime.mailbox import resize_mailbox
from hpckit.slurm.site_query import ask_node_groups
from hpckit.values import dataclass, replace
from hpckit.views.awaited_answer import ask_supervisor_and_wait, create_request_name, find_single_running_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The outcome of growing a run.

    `answer` is the supervisor's. `satellite` brings the nodes; None if all replicas asked for stand
    ready. `slurm_job` is None until it is submitted.
    """

    record: RunRecord
    answer: ResizeAnswer | None
    satellite: SatellitePlan | None
    slurm_job: str | None = None


def grow_run(selection: Selection, order: GrowOrder, context: Context) -> Growth:
    """Give the selected run more replicas; nodes that do not stand ready come in a satellite job.

    Raises UsageError if the run cannot grow, RunError if it ends meanwhile or its supervisor does
    not answer, SchedulerError.
    """
    record = _find_growable_run(selection, order, context)
    launch = selection.launch
    plan_satellite_job(launch, record.index, order, context)  # what cannot be is refused before asking
    answer = _ask_supervisor_to_resize(launch, record, Resize.grow, order.replicas, context)
    left = order.replicas - answer.standing
    if left <= 0:
        return Growth(record=record, answer=answer, satellite=None)
    rest = replace(order, replicas=left, idle_nodes=answer.idle_nodes)
    job = plan_satellite_job(launch, record.index, rest, context, lost_too=True).job
    commands = require_slurm_commands(launch.cluster.bin_dir, context)
    check_enough_nodes(job.resources, ask_node_groups(commands) or ())
    try:
        planned, slurm_job = submit_satellite_job(launch, record.index, rest, context)
    except SchedulerRefusedError as error:
        raise add_excluded_nodes_hint(error, job.resources) from error
    return Growth(record=record, answer=answer, satellite=planned, slurm_job=slurm_job)


def check_enough_nodes(asked: ResourceSpec, groups: Sequence[NodeGroup]) -> None:
    """Raise UsageError if no partition of the job has as many nodes as it asks for, in any state.

    Slurm accepts such a job from some users, and it waits without end.
    """
    sizes: Counter[str] = Counter()
    for group in groups:
        sizes[group.partition] += group.nodes
    names = asked.partition.split(",") if asked.partition else list(sizes)
    most = max((sizes[name] for name in names), default=0)
    if groups and asked.nodes > most:
        where = f"partition {asked.partition}" if asked.partition else "the largest partition"
        raise UsageError(
            f"to grow like that takes {format_count(asked.nodes, 'node')} more, and {where} has {most}",
            hint="use fewer --replicas, or another --partition",
        )


def add_excluded_nodes_hint(error: SchedulerRefusedError, asked: ResourceSpec) -> SchedulerRefusedError:
    """Return the error with the nodes that a satellite job leaves out, for they may be the reason.

    It leaves out those that the run has, and those of resources.exclude.
    """
    if not asked.exclude:
        return error
    left_out = f"it leaves out {asked.exclude}, which the run has or excludes"
    hint = f"{left_out}: perhaps no other node is free; {error.hint}"
    return SchedulerRefusedError(error.message, hint=hint)


def plan_run_growth(selection: Selection, order: GrowOrder, context: Context) -> Growth:
    """Return what `grow_run` would submit if nothing stands ready; asks and changes nothing."""
    record = _find_growable_run(selection, order, context)
    planned = plan_satellite_job(selection.launch, record.index, order, context)
    return Growth(record=record, answer=None, satellite=planned)


def shrink_run(selection: Selection, replicas: int, context: Context) -> tuple[RunRecord, ResizeAnswer]:
    """Have the selected run continue with this many replicas at its next boundary.

    Raises UsageError if it cannot, RunError if it ends meanwhile or its supervisor does not answer.
    """
    record = _find_resizable_run(selection, replicas, context, "shrunk")
    return record, _ask_supervisor_to_resize(selection.launch, record, Resize.shrink, replicas, context)


def _find_resizable_run(selection: Selection, replicas: int, context: Context, asked: str) -> RunRecord:
    launch = selection.launch
    if launch.cluster.kind is not ClusterKind.slurm:
        raise UsageError(
            f"launch {launch.id} runs on cluster {launch.cluster.kind}, which is one node: only a "
            f"run on Slurm can be {asked}",
            hint="on this machine a run keeps its number of ranks: launch another one with another "
            "resources.tasks_per_node",
        )
    if replicas < 1:
        raise UsageError(f"--replicas is {replicas}; it must be 1 or more")
    return find_single_running_run(selection, context, asked).record


def _find_growable_run(selection: Selection, order: GrowOrder, context: Context) -> RunRecord:
    """Return the run that is to grow; raises UsageError if it cannot."""
    record, launch = (_find_resizable_run(selection, order.replicas, context, "grown"), selection.launch)
    if read_launch_history(launch).find_job_of_run(record.index).shared_job is not None:
        raise UsageError(
            f"run {record.id} shares its Slurm job with other runs, and has one node or less",
            hint="only a run with a job of its own grows: launch without sweep.runs_per_job",
        )
    return record


def _ask_supervisor_to_resize(
    launch: Launch, record: RunRecord, resize: Resize, replicas: int, context: Context
) -> ResizeAnswer:
    """Return the supervisor's answer; raises UsageError if it refuses."""
    paths = launch.paths.run(record.index).attempt(record.attempt)
    request = ResizeRequest(
        id=create_request_name(context), at=context.now(), host=this_host(), resize=resize, replicas=replicas
    )
    answer = ask_supervisor_and_wait(resize_mailbox(paths), request, launch, record, context)
    if answer.refused is not None:
        raise UsageError(f"run {record.id} cannot {resize}: {answer.refused}")
    return answer
