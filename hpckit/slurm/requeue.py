"""Asks Slurm to start a job again: at most once per event, however long Slurm does not answer.

It makes the call, checks whether it is still needed, and excludes nodes from the next attempt. It
does not decide whether a run deserves a new attempt, and only `requeue_or_cancel` cancels. All
functions block, for up to `patience`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from hpckit.errors import SchedulerAbsentError, SchedulerAwayError, SchedulerRefusedError
from hpckit.model.cluster.allocation import RequeueResult
from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.plan import ResourceSpec
from hpckit.model.run import Observation
from hpckit.model.states import BaseState, RequeueOutcome, StateFlag
from hpckit.planning.nodes import find_usable_nodes
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.job_limits import is_job_preempted
from hpckit.slurm.parse import parse_node_names
from hpckit.slurm.query import (
    ask_cluster_nodes,
    ask_excluded_nodes,
    ask_job_terms,
    ask_reserved_nodes,
    observe_queued_job,
)
from hpckit.values import dataclass, replace

PATIENCE = timedelta(hours=1)
"""How long Slurm is asked again while it does not answer."""

_EXCLUDING = timedelta(seconds=20)
"""How long excluding nodes is retried. A requeued attempt lives on for KillWait."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0

_FENCED = "the run has a later attempt"

_UNKNOWN_REFUSALS = 4
"""Give up after this many refusals, if their wording is unknown and they might be temporary."""

_GONE = "Invalid job id"
_LASTING = ("disabled", _GONE.lower(), "batch job", "permission denied")
"""Slurm's words for permanent refusals: --no-requeue, a job that is gone, salloc, a foreign job."""

_STARTED = "no longer pending"
"""Slurm's words for an update that comes after the start of the next attempt."""

_NEVER_AGAIN = frozenset({BaseState.completed, BaseState.cancelled, BaseState.deadline})
"""Final states after which a job must not be requeued, although `scontrol requeue` would start it
again, as measured with 22.05.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttempt:
    """The attempt that asks: job `123` or `123_4`, its restart count, and what it was `asked` for.

    `lost` are its nodes that are dead or cut off, whether Slurm has noticed or not. `owns_run` returns
    whether the run still belongs to this attempt; it is called before each Slurm call, from the same thread.
    """

    job: str
    restart_count: int
    asked: ResourceSpec
    owns_run: Callable[[], bool]
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """The nodes that a job is to leave out, and those of the wanted ones that it cannot do without.

    `added` are those of the nodes that it does not leave out yet.
    """

    nodes: tuple[str, ...]
    added: tuple[str, ...]
    spared: tuple[str, ...]


class _NotOursError(Exception):
    """The run belongs to a later attempt."""


def requeue_job(
    commands: SlurmCommands,
    attempt: JobAttempt,
    *,
    exclude: Iterable[str] = (),
    patience: timedelta = PATIENCE,
) -> RequeueResult:
    """Let Slurm start the job again, without the nodes in `exclude`; return the outcome.

    Slurm then ends the caller too: SIGTERM at once, SIGKILL after KillWait. So what to exclude is
    found out before: a single call is left for afterwards.
    """
    wanted = tuple(dict.fromkeys(exclude))
    try:
        result, exclusion = _request_requeue(commands, attempt, wanted, patience)
    except _NotOursError:
        return RequeueResult(outcome=RequeueOutcome.fenced, message=_FENCED)
    if result.outcome is RequeueOutcome.requeued and wanted:
        return exclude_nodes_from_job(commands, attempt, wanted, result, exclusion)
    return result


def requeue_or_cancel(
    commands: SlurmCommands,
    attempt: JobAttempt,
    *,
    exclude: Iterable[str] = (),
    patience: timedelta = PATIENCE,
) -> RequeueResult:
    """Requeue a job whose supervisor is gone, or cancel it if Slurm refuses.

    For the remaining nodes of a --no-kill job that lost its batch host: otherwise nothing would end
    it, and it would hold its nodes until its time limit, as measured with 22.05.
    """
    result = requeue_job(commands, attempt, exclude=exclude, patience=patience)
    if result.outcome is RequeueOutcome.refused and attempt.owns_run():
        try:
            cancel_jobs([attempt.job], commands)
        except (SchedulerRefusedError, SchedulerAwayError) as error:
            return replace(result, warning=error.message)
        return replace(result, message=f"{result.message}; the job was cancelled")
    return result


def exclude_nodes_from_job(
    commands: SlurmCommands,
    attempt: JobAttempt,
    wanted: tuple[str, ...],
    result: RequeueResult,
    exclusion: Exclusion | None = None,
) -> RequeueResult:
    """Add `wanted` to a job's excluded nodes, and return the result with them.

    Slurm accepts this only for a job that is queued, or queued again. `exclusion` is what was found out
    before. The Slurm command may be killed by the signal that ends this attempt: then it is run again.
    """
    said = ""
    kept: tuple[str, ...] = ()
    for _ in _pause_between_retries(_EXCLUDING):
        if not attempt.owns_run():
            said = _FENCED
            break
        try:
            exclusion = exclusion or find_nodes_to_exclude(commands, attempt.job, attempt.asked, wanted)
            return _set_excluded_nodes(commands, attempt, exclusion, result)
        except SchedulerAwayError as error:
            said = error.message
        except SchedulerRefusedError as error:
            said = error.message
            if _STARTED in said.lower():
                break
            kept = wanted
            if _is_permanent_refusal(said):
                break
    return replace(result, warning=f"{compress_to_hostlist(wanted)} not excluded: {said}", kept=kept)


def _request_requeue(
    commands: SlurmCommands, attempt: JobAttempt, wanted: tuple[str, ...], patience: timedelta
) -> tuple[RequeueResult, Exclusion | None]:
    """Ask until there is an answer, looking first each time, as a call may no longer be right.

    Returns what to exclude too, if that was found out before the call.
    """
    said, refusals = "", 0
    for _ in _pause_between_retries(patience):
        try:
            seen = _observe_before_requeue(commands, attempt)
            if isinstance(seen, RequeueResult):
                return seen, None
            exclusion = _find_exclusion_if_known(commands, attempt, wanted)
            _release_lost_nodes(commands, attempt, seen)
            _check_run_ownership(attempt)
            commands.run("scontrol", "requeue", attempt.job)
            return RequeueResult(outcome=RequeueOutcome.requeued, message="accepted"), exclusion
        except SchedulerAbsentError as error:
            return RequeueResult(outcome=RequeueOutcome.refused, message=error.message), None
        except SchedulerAwayError as error:
            said = error.message
        except SchedulerRefusedError as error:
            said, refusals = error.message, refusals + 1
            if _is_permanent_refusal(said) or refusals == _UNKNOWN_REFUSALS:
                return RequeueResult(
                    outcome=RequeueOutcome.refused, message=said, disallowed=_GONE not in said
                ), None
    return RequeueResult(outcome=RequeueOutcome.unreachable, message=said), None


def _find_exclusion_if_known(
    commands: SlurmCommands, attempt: JobAttempt, wanted: tuple[str, ...]
) -> Exclusion | None:
    """Return what to exclude; None for nothing, or if Slurm does not answer now."""
    if not wanted:
        return None
    with contextlib.suppress(SchedulerAwayError, SchedulerRefusedError):
        return find_nodes_to_exclude(commands, attempt.job, attempt.asked, wanted)
    return None


def _observe_before_requeue(commands: SlurmCommands, attempt: JobAttempt) -> RequeueResult | Observation:
    """Return the result if Slurm's record settles it; else the observation of a requeueable job."""
    _check_run_ownership(attempt)
    seen = observe_queued_job(attempt.job, commands, datetime.now(UTC))
    if seen is None:
        return RequeueResult(outcome=RequeueOutcome.refused, message=f"Slurm no longer has job {attempt.job}")
    if seen.restarts > attempt.restart_count or seen.state.base is BaseState.pending:
        why = f" ({seen.reason})" if seen.reason else ""
        message = f"requeued already: {seen.state.text}{why}, restart {seen.restarts}"
        return RequeueResult(outcome=RequeueOutcome.requeued, message=message)
    if _was_ended_on_purpose(seen) and not is_job_preempted(commands, seen):
        message = f"job {attempt.job} was cancelled, or completed: {seen.state.text}"
        return RequeueResult(outcome=RequeueOutcome.refused, message=message)
    return seen


def _release_lost_nodes(commands: SlurmCommands, attempt: JobAttempt, seen: Observation) -> None:
    """Remove the lost nodes from the job, so that it need not wait until Slurm misses them.

    Measured with 22.05: a job with a dead node stays COMPLETING until SlurmdTimeout (300 s by
    default). A job that has released the node waits only for requeue's own delay, and requests as
    many nodes as before. Slurm refuses this for the batch host: then waiting is all that is left.
    """
    nodes = parse_node_names(seen.nodes)
    left = [node for node in nodes if node not in attempt.lost]
    if left and len(left) < len(nodes):
        _check_run_ownership(attempt)
        with contextlib.suppress(SchedulerRefusedError):
            change = f"NodeList={compress_to_hostlist(left)}"
            commands.run("scontrol", "update", f"JobId={attempt.job}", change)


def _was_ended_on_purpose(seen: Observation) -> bool:
    """Return whether the job was cancelled or completed; squeue hides it while processes remain.

    Measured with 22.05: COMPLETING has no reason after scancel, but has one after a time limit, a
    failure or a lost node; and `scontrol requeue` would bring back a job that its user cancelled.
    """
    completing = StateFlag.completing in seen.state.flags and not seen.reason
    return completing or seen.state.base in _NEVER_AGAIN


def _is_permanent_refusal(said: str) -> bool:
    lowered = said.lower()
    return any(mark in lowered for mark in _LASTING)


def _check_run_ownership(attempt: JobAttempt) -> None:
    if not attempt.owns_run():
        raise _NotOursError


def _pause_between_retries(patience: timedelta) -> Iterator[None]:
    """Yield at once, then after increasing pauses, until the patience is used up."""
    deadline, pause = time.monotonic() + patience.total_seconds(), _FIRST_PAUSE_S
    yield
    while time.monotonic() + pause < deadline:
        time.sleep(pause)
        yield
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _set_excluded_nodes(
    commands: SlurmCommands, attempt: JobAttempt, exclusion: Exclusion, result: RequeueResult
) -> RequeueResult:
    """Set the excluded nodes; raises as `run`."""
    if exclusion.added:
        change = f"ExcNodeList={compress_to_hostlist(exclusion.nodes)}"
        commands.run("scontrol", "update", f"JobId={attempt.job}", change)
    spared = compress_to_hostlist(exclusion.spared)
    warning = f"{spared} not excluded: the job could not start without them" if spared else ""
    return replace(
        result, excluded=exclusion.nodes, added=exclusion.added, warning=warning, kept=exclusion.spared
    )


def find_nodes_to_exclude(
    commands: SlurmCommands, job: str, asked: ResourceSpec, wanted: Sequence[str]
) -> Exclusion:
    """Return the nodes that a job is to leave out, including earlier ones.

    `asked` is what it was submitted with. Raises SchedulerAwayError or SchedulerRefusedError.
    """
    before = ask_excluded_nodes(job, commands)
    new = [node for node in wanted if node not in before]
    spared = _find_indispensable_nodes(commands, job, asked, before, new)
    added = tuple(node for node in new if node not in spared)
    return Exclusion(nodes=(*before, *added), added=added, spared=tuple(spared))


def _find_indispensable_nodes(
    commands: SlurmCommands, job: str, asked: ResourceSpec, before: Sequence[str], new: Sequence[str]
) -> list[str]:
    """Return the new nodes that the job cannot do without: it would be held indefinitely."""
    found = ask_job_terms(job, commands) if new else None
    if found is None:
        return []
    nodes = ask_cluster_nodes(commands)
    reserved = (found.reservation and ask_reserved_nodes(commands, found.reservation)) or None
    partitions = found.partition.split(",")
    usable = find_usable_nodes(nodes, asked, partitions=partitions, reserved=reserved)
    back = [replace(node, has=replace(node.has, state="idle")) for node in nodes if node.name in new]
    fitting = find_usable_nodes(back, asked, partitions=partitions, reserved=reserved)
    if usable is None or fitting is None:
        return [*new]
    spared = [node for node in new if node in found.required]
    left = len(usable.difference(before, new)) + len(spared)
    others = [node for node in new if node in fitting and node not in spared]
    # The last ones are spared first: the caller names the worst ones first. Slurm waits for nodes
    # that are down and come back, and never starts a job that leaves out too many: spared at last.
    others.sort(key=usable.__contains__)
    return spared + others[::-1][: max(0, asked.allocated_nodes - left)]
