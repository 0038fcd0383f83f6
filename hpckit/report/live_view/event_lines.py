"""Events of a run or launch as lines for people. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpckit.model import events
from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.counted import counted, steps_text, whole_percent
from hpckit.model.failure import Failure, RankExit
from hpckit.model.ranges import ranges


def event_words(event: events.Event) -> str:
    """Return what happened, in one line; empty for what is not worth one."""
    words = _WORDS.get(type(event))
    return "" if words is None else words(event)


def _attempt_started(event: events.AttemptStarted) -> str:
    job = f", job {event.job}" if event.job else ""
    return f"attempt {event.attempt} began on {event.host}{job}"


def _round_started(event: events.RoundStarted) -> str:
    ranks = counted(event.world_size, "rank")
    return f"round {event.round}: {ranks} on {compress_nodes(event.nodes)}"


def _round_ended(event: events.RoundEnded) -> str:
    action = event.action.replace("_", " ")
    return f"round {event.round} ended{_why(event.failure)}; next: {action}"


def _rank_exited(event: events.RankExited) -> str:
    end: RankExit = event.exit
    code = f" ({end.signal or end.code})" if end.signal or end.code else ""
    how = f", {end.exception}: {end.message}" if end.exception else ""
    return f"rank {end.rank} on {end.node} ended{code}{how}"


def _straggler_found(event: events.StragglerFound) -> str:
    slow = event.straggler
    return (
        f"{slow.rank_name} on {slow.node} is {whole_percent(slow.slower_by)} slower than its peers"
    )


def _nodes_inspected(event: events.NodesInspected) -> str:
    count = len(event.fine) + len(event.troubled)
    bad = [f"{one.node} {one.verdict}" for one in event.troubled]
    return f"inspected {counted(count, 'node')}: {', '.join(bad) or 'all ok'}"


def _why(failure: Failure | None) -> str:
    return "" if failure is None else f" ({failure.cause}: {failure.message})"


_WORDS: Mapping[type[events.Event], Callable[[Any], str]] = {
    events.AttemptStarted: _attempt_started,
    events.RoundStarted: _round_started,
    events.StepReached: lambda event: f"round {event.round}: first step {steps_text(event.step)}",
    events.RankExited: _rank_exited,
    events.RanksExited: lambda event: f"ranks {event.ranks} ended: {event.reason}",
    events.CheckpointSaved: lambda event: f"saved step {event.step} in {event.duration_s:.1f} s",
    events.RoundEnded: _round_ended,
    events.AttemptEnded: lambda event: f"attempt ended: {event.state}{_why(event.failure)}",
    events.NodeLost: lambda event: f"node {event.node} was silent for {event.silent_s:.0f} s",
    events.NodeDraining: lambda event: f"node {event.node} is being drained: {event.action}",
    events.StragglerFound: _straggler_found,
    events.NodesInspected: _nodes_inspected,
    events.RequeueAsked: lambda event: f"requeue: {event.outcome}",
    events.Warned: lambda event: f"warning: {event.message}",
    events.NoticeHeard: lambda event: f"notice {event.signal}: {event.cause}",
    events.Suspended: lambda event: f"stood still for {event.seconds:.0f} s: suspended",
    events.Submitted: lambda event: f"Slurm accepted job {event.job}",
    events.SubmitRefused: lambda event: f"submission refused: {event.message}",
    events.CancelRequested: lambda event: f"cancellation of runs {ranges(event.runs)}",
    events.LocalStarted: lambda event: f"local executor {event.pid} began on {event.host}",
    events.JobAdded: lambda event: f"{counted(len(event.job.runs), 'run')} submitted again",
}
