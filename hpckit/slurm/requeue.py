"""Asking Slurm to start a job anew: at most once for one event, however long Slurm is away.

Responsible for the call, for telling whether it is still called for, and for the nodes to leave
out next time; it must not decide whether a run deserves a new attempt, and never cancels, but for
`requeue_or_cancel`. All of it blocks, for as long as `patience` says.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hpckit.errors import SchedulerAbsentError, SchedulerAwayError, SchedulerRefusedError
from hpckit.model.cluster.allocation import RequeueResult
from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.run import Observation
from hpckit.model.states import BaseState, RequeueOutcome, StateFlag
from hpckit.slurm.cancel import cancel
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.parse import node_names
from hpckit.slurm.query import excluded_nodes, observe_queued, settings, terms

PATIENCE = timedelta(hours=1)
"""How long Slurm is asked again while it is away."""

_EXCLUDING = timedelta(seconds=20)
"""How long the nodes to leave out are written again. Who was requeued lives for KillWait."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0

_FENCED = "the run has a later attempt"

_UNKNOWN_REFUSALS = 4
"""How often a refusal in words nobody knows is taken for one that may pass."""

_LASTING = ("disabled", "invalid job id", "batch job", "permission denied")
"""Slurm's words for what stays so: --no-requeue, a job that is gone, salloc, another's job."""

_STARTED = "no longer pending"
"""Slurm's words for an update that comes after the next attempt's start."""

_NEVER_AGAIN = frozenset({BaseState.completed, BaseState.cancelled, BaseState.deadline})
"""Ends after which `scontrol requeue` would start the job all the same, as measured with 22.05."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttempt:
    """The attempt that asks: job `123` or `123_4`, its restart count, and its number of nodes.

    `lost` are nodes of it that are dead or cut off, whether Slurm has noticed or not. `owns_run`
    is whether the run is still this attempt's; it is asked before each call, from the thread that
    asks Slurm.
    """

    job: str
    restart_count: int
    nodes: int
    owns_run: Callable[[], bool]
    lost: tuple[str, ...] = ()


class _NotOursError(Exception):
    """The run belongs to a later attempt."""


def requeue(
    commands: SlurmCommands,
    attempt: JobAttempt,
    *,
    exclude: Iterable[str] = (),
    patience: timedelta = PATIENCE,
) -> RequeueResult:
    """Let Slurm start the job anew, without the nodes of `exclude`; return what came of it.

    Slurm then ends the caller too: SIGTERM at once, SIGKILL after KillWait.
    """
    wanted = tuple(dict.fromkeys(exclude))
    try:
        result = _ask(commands, attempt, patience)
    except _NotOursError:
        return RequeueResult(outcome=RequeueOutcome.fenced, message=_FENCED)
    if result.outcome is RequeueOutcome.requeued and wanted:
        return leave_out(commands, attempt, wanted, result)
    return result


def requeue_or_cancel(
    commands: SlurmCommands,
    attempt: JobAttempt,
    *,
    exclude: Iterable[str] = (),
    patience: timedelta = PATIENCE,
) -> RequeueResult:
    """Requeue a job whose supervisor is gone, or cancel it where Slurm refuses.

    For the other nodes of a --no-kill job that lost its batch host: nobody else would end it, and
    it would hold its nodes until its time limit, as measured with 22.05.
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
    commands: SlurmCommands, attempt: JobAttempt, wanted: tuple[str, ...], result: RequeueResult
) -> RequeueResult:
    """Add to a job's excluded nodes, and return the result with them.

    Slurm takes them only of a job that is queued, or queued again.

    A program started here may be ended by the signal that ends this attempt: then, once more.
    """
    said = ""
    for _ in _tries(_EXCLUDING):
        if not attempt.owns_run():
            said = _FENCED
            break
        try:
            return _exclude(commands, attempt, wanted, result)
        except SchedulerAwayError as error:
            said = error.message
        except SchedulerRefusedError as error:
            said = error.message
            if _STARTED in said.lower():
                break
    return replace(result, warning=f"{compress_nodes(wanted)} not excluded: {said}")


def _ask(commands: SlurmCommands, attempt: JobAttempt, patience: timedelta) -> RequeueResult:
    """Ask until there is an answer; look before each call, as it may be too late for one."""
    said, refusals = "", 0
    for _ in _tries(patience):
        try:
            seen = _look(commands, attempt)
            if isinstance(seen, RequeueResult):
                return seen
            _let_go(commands, attempt, seen)
            _check_own(attempt)
            commands.run("scontrol", "requeue", attempt.job)
            return RequeueResult(outcome=RequeueOutcome.requeued, message="accepted")
        except SchedulerAbsentError as error:
            return RequeueResult(outcome=RequeueOutcome.refused, message=error.message)
        except SchedulerAwayError as error:
            said = error.message
        except SchedulerRefusedError as error:
            said, refusals = error.message, refusals + 1
            if _lasts(said) or refusals == _UNKNOWN_REFUSALS:
                return RequeueResult(outcome=RequeueOutcome.refused, message=said)
    return RequeueResult(outcome=RequeueOutcome.unreachable, message=said)


def _look(commands: SlurmCommands, attempt: JobAttempt) -> RequeueResult | Observation:
    """Return what Slurm's own record settles; what it says where the job may be requeued."""
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
    if _ended_on_purpose(seen):
        message = f"job {attempt.job} was ended by someone, or completed: {seen.state.text}"
        return RequeueResult(outcome=RequeueOutcome.refused, message=message)
    return seen


def _let_go(commands: SlurmCommands, attempt: JobAttempt, seen: Observation) -> None:
    """Take the lost nodes out of the job, so that it need not wait until Slurm misses them.

    Measured with 22.05: a job with a dead node stays COMPLETING until SlurmdTimeout (300 s by
    default), one that has let go of it waits for nothing but requeue's own delay, and asks for
    as many nodes as ever. Slurm refuses for the batch host: then there is only waiting.
    """
    nodes = node_names(seen.nodes)
    left = [node for node in nodes if node not in attempt.lost]
    if left and len(left) < len(nodes):
        _check_own(attempt)
        with contextlib.suppress(SchedulerRefusedError):
            change = f"NodeList={compress_nodes(left)}"
            commands.run("scontrol", "update", f"JobId={attempt.job}", change)


def _ended_on_purpose(seen: Observation) -> bool:
    """Whether the job was cancelled or completed, which squeue hides while processes are left.

    Measured with 22.05: COMPLETING after scancel has no reason, after a time limit, a failure or
    a lost node it has; and `scontrol requeue` would bring back a job that its user has cancelled.
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
    """Yield at once, then after ever longer pauses, until the patience is spent."""
    deadline, pause = time.monotonic() + patience.total_seconds(), _FIRST_PAUSE_S
    yield
    while time.monotonic() + pause < deadline:
        time.sleep(pause)
        yield
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _exclude(
    commands: SlurmCommands, attempt: JobAttempt, wanted: Sequence[str], result: RequeueResult
) -> RequeueResult:
    """Write the nodes to leave out, those of before included; raises what `run` raises."""
    before = excluded_nodes(attempt.job, commands)
    new = [node for node in wanted if node not in before]
    spared = _spared(commands, attempt, before, new)
    after = (*before, *(node for node in new if node not in spared))
    if after != before:
        change = f"ExcNodeList={compress_nodes(after)}"
        commands.run("scontrol", "update", f"JobId={attempt.job}", change)
    warning = (
        f"{compress_nodes(spared)} not excluded: the job could not start without" if spared else ""
    )
    return replace(result, excluded=after, warning=warning)


def _spared(
    commands: SlurmCommands, attempt: JobAttempt, before: Sequence[str], new: Sequence[str]
) -> list[str]:
    """Return those of the new nodes that the job cannot do without: it would be held for ever."""
    found = terms(attempt.job, commands)
    if found is None or not new:
        return []
    spared = [node for node in new if node in found.required]
    partitions = [settings(commands, "partition", name) for name in found.partition.split(",")]
    there = {node for one in partitions for node in node_names(one.get("Nodes", ""))}
    if there:
        left = len(there.difference(before, new)) + len(spared)
        others = [node for node in new if node in there and node not in spared]
        # The last are spared first: the caller names the worst ones first.
        spared += others[::-1][: max(0, attempt.nodes - left)]
    return spared
