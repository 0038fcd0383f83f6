"""Rescues a run whose supervisor is lost together with its batch host; an agent runs this.

Slurm keeps the allocation of a job with --no-kill when its batch host dies (22.05: until its time
limit, with nothing running in it), and notices a dead node only after SlurmdTimeout. The run is
started again within its budgets, or its nodes are released; neither happens while the supervisor is
alive, or if this very node was cut off.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

from hpckit.context import Context
from hpckit.errors import SchedulerError, UsageError
from hpckit.model import events
from hpckit.model.cluster.nodes import expand_hostlist
from hpckit.model.failure import Cause, Failure
from hpckit.operations.successor import queue_successor_after_refusal
from hpckit.planning.notices import was_new_attempt_decided
from hpckit.planning.recovery.ledger import build_ledger_from_events, explain_exhausted_restart_budget
from hpckit.record.attempts import is_latest_attempt
from hpckit.record.counted_events import read_events_for_restart_budget
from hpckit.record.launches import Launch, load_run_settings
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import read_events
from hpckit.runtime.channel.tcp import supervisor_answers
from hpckit.runtime.environ import find_job_and_restarts
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.requeue import JobAttempt, requeue_or_cancel
from hpckit.values import dataclass


def restart_or_end_orphaned_run(
    launch: Launch, job_index: int, run: int, attempt: int, context: Context
) -> None:
    """Restart a run whose supervisor is gone, or end its job; do nothing if it is not gone.

    Raises UsageError outside a Slurm job.
    """
    job, restarts = find_job_and_restarts(context.environ)
    if job is None:
        raise UsageError("this is not a Slurm job (SLURM_JOB_ID is not set)")
    node = context.environ.get("SLURMD_NODENAME") or socket.gethostname()
    nodes = expand_hostlist(context.environ.get("SLURM_JOB_NODELIST", ""))
    orphan = _Orphan(launch=launch, index=run, attempt=attempt, node=node, nodes=nodes)
    if not orphan.is_orphaned():
        return
    commands = SlurmCommands(bin_dir=launch.cluster.bin_dir, environ=context.environ)
    spent = orphan.explain_spent_budget()
    if spent is not None:
        context.note(f"{orphan.attempt_name} lost its supervisor, and is not started again: {spent}")
        with contextlib.suppress(SchedulerError):
            cancel_jobs([job], commands)
        return
    spec = launch.jobs[job_index]
    ours = JobAttempt(
        job=job,
        restart_count=restarts,
        asked=spec.resources,
        owns_run=orphan.is_orphaned,
        lost=orphan.nodes_lost_with_supervisor(),
    )
    outcome = requeue_or_cancel(commands, ours, exclude=ours.lost)
    if outcome.disallowed:
        outcome = queue_successor_after_refusal(launch, run, spec, job, outcome, context)
    context.note(
        f"{orphan.attempt_name} lost its supervisor; requeue {outcome.outcome}: "
        f"{outcome.message_with_warning}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Orphan:
    """An attempt that may have lost its supervisor, as seen from the agent of a node."""

    launch: Launch
    index: int
    attempt: int
    node: str
    nodes: tuple[str, ...]

    @property
    def attempt_name(self) -> str:
        return f"attempt {self.attempt} of {self.launch.runs[self.index].id}"

    @property
    def attempt_paths(self) -> AttemptPaths:
        return self.launch.paths.run(self.index).attempt(self.attempt)

    def is_orphaned(self) -> bool:
        """Whether the supervisor is gone, has left work to do, and no later attempt exists.

        False if something cannot be read.
        """
        try:
            if not is_latest_attempt(self.launch.paths.run(self.index).attempts, self.attempt):
                return False
        except OSError:
            return False
        told = list(read_events(self.attempt_paths.events))
        if any(isinstance(event, events.RequeueAsked) for event in told):
            return False
        over = any(isinstance(event, events.AttemptEnded) for event in told)
        lost = {event.node for event in told if isinstance(event, events.NodeLost)}
        left_to_do = was_new_attempt_decided(told) if over else self.node not in lost
        return left_to_do and not supervisor_answers(self.attempt_paths)

    def nodes_lost_with_supervisor(self) -> tuple[str, ...]:
        """Return the supervisor's node, which is lost with it or no longer usable."""
        told = read_events(self.attempt_paths.events)
        hosts = {event.host for event in told if isinstance(event, events.AttemptStarted)}
        # A host's own name may be longer than its name in Slurm.
        known = hosts | {host.partition(".")[0] for host in hosts}
        return tuple(node for node in self.nodes if node in known and node != self.node)

    def explain_spent_budget(self) -> str | None:
        """Return why the run's budgets do not allow another attempt; None if they do."""
        if was_new_attempt_decided(read_events(self.attempt_paths.events)):
            return None
        counted: Sequence[events.Event] = read_events_for_restart_budget(
            self.launch, self.index, before=self.attempt + 1
        )
        failure = Failure(cause=Cause.launcher_lost, message="", signature=Cause.launcher_lost)
        policy = load_run_settings(self.launch, self.index)[0].recovery
        return explain_exhausted_restart_budget(build_ledger_from_events(counted), failure, policy)
