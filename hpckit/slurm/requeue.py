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
from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.plan import ResourceSpec
from hpckit.model.run import Observation
from hpckit.model.states import BaseState, RequeueOutcome, StateFlag
from hpckit.planning.nodes import usable_nodes
from hpckit.slurm.cancel import cancel
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.job_limits import is_preempted
from hpckit.slurm.parse import node_names
from hpckit.slurm.query import cluster_nodes, excluded_nodes, observe_queued, reserved_nodes, terms
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

    `lost` are its nodes that are dead or cut off, whether Slurm has noticed or not. `owns_run`
    returns whether the run still belongs to this attempt; it is called before each Slurm call, from
    the same thread.
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


def requeue(
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
        result, exclusion = _ask(commands, attempt, wanted, patience)
    except _NotOursError:
        return RequeueResult(outcome=RequeueOutcome.fenced, message=_FENCED)
    if result.outcome is RequeueOutcome.requeued and wanted:
        return leave_out(commands, attempt, wanted, result, exclusion)
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
    result = requeue(commands, attempt, exclude=exclude, patience=patience)
    if result.outcome is RequeueOutcome.refused and attempt.owns_run():
        try:
            cancel([attempt.job], commands)
        except (SchedulerRefusedError, SchedulerAwayError) as error:
            return replace(result, warning=error.message)
        return replace(result, message=f"{result.message}; the job was cancelled")
    return result


def leave_out(
    commands: SlurmCommands,
    attempt: JobAttempt,
    wanted: tuple[str, ...],
    result: RequeueResult,
    exclusion: Exclusion | None = None,
) -> RequeueResult:
    """Add `wanted` to a job's excluded nodes, and return the result with them.

    Slurm accepts this only for a job that is queued, or queued again. `exclusion` is what was found
    out before. The Slurm command may be killed by the signal that ends this attempt: then it is run
    again.
    """
    said = ""
    kept: tuple[str, ...] = ()
    for _ in _tries(_EXCLUDING):
        if not attempt.owns_run():
            said = _FENCED
            break
        try:
            exclusion = exclusion or find_exclusion(commands, attempt.job, attempt.asked, wanted)
            return _exclude(commands, attempt, exclusion, result)
        except SchedulerAwayError as error:
            said = error.message
        except SchedulerRefusedError as error:
            said = error.message
            if _STARTED in said.lower():
                break
            kept = wanted
            if _lasts(said):
                break
    return replace(result, warning=f"{compress_nodes(wanted)} not excluded: {said}", kept=kept)


def _ask(
    commands: SlurmCommands, attempt: JobAttempt, wanted: tuple[str, ...], patience: timedelta
) -> tuple[RequeueResult, Exclusion | None]:
    """Ask until there is an answer, looking first each time, as a call may no longer be right.

    Returns what to exclude too, if that was found out before the call.
    """
    said, refusals = "", 0
    for _ in _tries(patience):
        try:
            seen = _look(commands, attempt)
            if isinstance(seen, RequeueResult):
                return seen, None
            exclusion = _known_exclusion(commands, attempt, wanted)
            _let_go(commands, attempt, seen)
            _check_own(attempt)
            commands.run("scontrol", "requeue", attempt.job)
            return RequeueResult(outcome=RequeueOutcome.requeued, message="accepted"), exclusion
        except SchedulerAbsentError as error:
            return RequeueResult(outcome=RequeueOutcome.refused, message=error.message), None
        except SchedulerAwayError as error:
            said = error.message
        except SchedulerRefusedError as error:
            said, refusals = error.message, refusals + 1
            if _lasts(said) or refusals == _UNKNOWN_REFUSALS:
                return RequeueResult(
                    outcome=RequeueOutcome.refused, message=said, disallowed=_GONE not in said
                ), None
    return RequeueResult(outcome=RequeueOutcome.unreachable, message=said), None


def _known_exclusion(
    commands: SlurmCommands, attempt: JobAttempt, wanted: tuple[str, ...]
) -> Exclusion | None:
    """Return what to exclude; None for nothing, and if Slurm does not tell now."""
    if not wanted:
        return None
    with contextlib.suppress(SchedulerAwayError, SchedulerRefusedError):
        return find_exclusion(commands, attempt.job, attempt.asked, wanted)
    return None


def _look(commands: SlurmCommands, attempt: JobAttempt) -> RequeueResult | Observation:
    """Return the result if Slurm's record settles it; else the observation of a requeueable job."""
    _check_own(attempt)
    seen = observe_queued(attempt.job, commands, datetime.now(UTC))
    if seen is None:
        return RequeueResult(
            outcome=RequeueOutcome.refused, message=f"Slurm no longer has job {attempt.job}"
        )
    if seen.restarts > attempt.restart_count or seen.state.base is BaseState.pending:
        why = f" ({seen.reason})" if seen.reason else ""
        message = f"requeued already: {seen.state.text}{why}, restart {seen.restarts}"
        return RequeueResult(outcome=RequeueOutcome.requeued, message=message)
    if _ended_on_purpose(seen) and not is_preempted(commands, seen):
        message = f"job {attempt.job} was ended by someone, or completed: {seen.state.text}"
        return RequeueResult(outcome=RequeueOutcome.refused, message=message)
    return seen


def _let_go(commands: SlurmCommands, attempt: JobAttempt, seen: Observation) -> None:
    """Remove the lost nodes from the job, so that it need not wait until Slurm misses them.

    Measured with 22.05: a job with a dead node stays COMPLETING until SlurmdTimeout (300 s by
    default). A job that has released the node waits only for requeue's own delay, and requests as
    many nodes as before. Slurm refuses this for the batch host: then waiting is all that is left.
    """
    nodes = node_names(seen.nodes)
    left = [node for node in nodes if node not in attempt.lost]
    if left and len(left) < len(nodes):
        _check_own(attempt)
        with contextlib.suppress(SchedulerRefusedError):
            change = f"NodeList={compress_nodes(left)}"
            commands.run("scontrol", "update", f"JobId={attempt.job}", change)


def _ended_on_purpose(seen: Observation) -> bool:
    """Return whether the job was cancelled or completed; squeue hides it while processes remain.

    Measured with 22.05: COMPLETING has no reason after scancel, but has one after a time limit, a
    failure or a lost node; and `scontrol requeue` would bring back a job that its user cancelled.
    """
    completing = StateFlag.completing in seen.state.flags and not seen.reason
    return completing or seen.state.base in _NEVER_AGAIN


def _lasts(said: str) -> bool:
    lowered = said.lower()
    return any(mark in lowered for mark in _LASTING)


def _check_own(attempt: JobAttempt) -> None:
    if not attempt.owns_run():
        raise _NotOursError


def _tries(patience: timedelta) -> Iterator[None]:
    """Yield at once, then after increasing pauses, until the patience is used up."""
    deadline, pause = time.monotonic() + patience.total_seconds(), _FIRST_PAUSE_S
    yield
    while time.monotonic() + pause < deadline:
        time.sleep(pause)
        yield
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _exclude(
    commands: SlurmCommands, attempt: JobAttempt, exclusion: Exclusion, result: RequeueResult
) -> RequeueResult:
    """Set the excluded nodes; raises as `run`."""
    if exclusion.added:
        change = f"ExcNodeList={compress_nodes(exclusion.nodes)}"
        commands.run("scontrol", "update", f"JobId={attempt.job}", change)
    spared = compress_nodes(exclusion.spared)
    warning = f"{spared} not excluded: the job could not start without" if spared else ""
    return replace(
        result,
        excluded=exclusion.nodes,
        added=exclusion.added,
        warning=warning,
        kept=exclusion.spared,
    )


def find_exclusion(
    commands: SlurmCommands, job: str, asked: ResourceSpec, wanted: Sequence[str]
) -> Exclusion:
    """Return the nodes that a job is to leave out, including earlier ones.

    `asked` is what it was submitted with. Raises SchedulerAwayError or SchedulerRefusedError.
    """
    before = excluded_nodes(job, commands)
    new = [node for node in wanted if node not in before]
    spared = _spared(commands, job, asked, before, new)
    added = tuple(node for node in new if node not in spared)
    return Exclusion(nodes=(*before, *added), added=added, spared=tuple(spared))


def _spared(
    commands: SlurmCommands,
    job: str,
    asked: ResourceSpec,
    before: Sequence[str],
    new: Sequence[str],
) -> list[str]:
    """Return the new nodes that the job cannot do without: it would be held indefinitely."""
    found = terms(job, commands) if new else None
    if found is None:
        return []
    nodes = cluster_nodes(commands)
    reserved = (found.reservation and reserved_nodes(commands, found.reservation)) or None
    partitions = found.partition.split(",")
    usable = usable_nodes(nodes, asked, partitions=partitions, reserved=reserved)
    back = [
        replace(node, has=replace(node.has, state="idle")) for node in nodes if node.name in new
    ]
    fitting = usable_nodes(back, asked, partitions=partitions, reserved=reserved)
    if usable is None or fitting is None:
        return [*new]
    spared = [node for node in new if node in found.required]
    left = len(usable.difference(before, new)) + len(spared)
    others = [node for node in new if node in fitting and node not in spared]
    # The last ones are spared first: the caller names the worst ones first. Slurm waits for nodes
    # that are down and come back, and never starts a job that leaves out too many: spared at last.
    others.sort(key=usable.__contains__)
    return spared + others[::-1][: max(0, asked.allocated_nodes - left)]
