"""What a supervisor is given: the run to attempt, how to start agents, what it may ask for.

`cli` fills in these classes, so that the runtime need not know a scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hpckit.model.cluster.allocation import AllocationEnding, AttemptLimits, AttemptRequest, RequeueResult
from hpckit.model.events import Event
from hpckit.model.failure import Cause
from hpckit.model.launch import LaunchConfig
from hpckit.record.launches import Launch
from hpckit.values import dataclass


class Step(Protocol):
    """The process that stands for the agents, from asyncio or forked."""

    async def wait(self) -> int:
        """Return its exit code."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Send it a signal; raises ProcessLookupError if it has left."""
        ...


ReadyAgent = Callable[[Sequence[str], Mapping[str, str], Path], Step]
"""Starts an agent that is already waiting: arguments, environment, log; raises OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """How agents are started: words put in front of the agent's own, and the environment.

    `nodes` are the names of the expected nodes, as far as they are known. `on_supervisor_lost` is the command
    that an agent runs, with the number of the attempt appended, when it finds that the supervisor is gone for
    good. `ready` is used instead of the command if an agent is already waiting. `again` gives the words for
    some nodes whose agents have ended; None if they are the same. `module` is the agent's, or that of the
    doorway which starts it; `python` runs it, None the launch's. `watch` starts a doorway on each node that
    watches its agent, if agents themselves cannot run `on_supervisor_lost`.
    """

    prefix: tuple[str, ...]
    environ: Mapping[str, str]
    module: str = "hpckit.runtime.agent"
    python: str | None = None
    watch: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    on_supervisor_lost: tuple[str, ...] = ()
    ready: ReadyAgent | None = None
    again: Callable[[Sequence[str]], tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What the supervisor may ask of its scheduler. All calls block and run in a thread.

    `limits` is called now and then and returns None if there is no answer. `why` returns why the attempt is
    being ended. `requeue` also gets a function that returns whether the attempt still owns its run.
    `draining` returns which nodes of the allocation, and of these others, are being drained, and why; None if
    that is unknown. A successor waits in the queue for the end of this attempt; `hand_to_successor` passes on
    which nodes it must leave out, `drop_successor` removes it from the queue. `regrow` submits a job for a
    number of replicas, less a number of idle nodes, and returns its id and its number of nodes; None if it
    fails. `drop_satellites` cancels those that still wait. `growth` returns after which causes a new attempt
    can have more of what ran out (empty), or why no longer.
    """

    limits: Callable[[], AttemptLimits | None]
    why: Callable[[], AllocationEnding]
    requeue: Callable[[AttemptRequest, Callable[[], bool]], RequeueResult]
    draining: Callable[[Sequence[str]], Mapping[str, str] | None]
    queue_successor: Callable[[], object] | None = None
    hand_to_successor: Callable[[AttemptRequest], RequeueResult] | None = None
    drop_successor: Callable[[], object] | None = None
    drop_satellites: Callable[[], object] | None = None
    regrow: Callable[[int, int], tuple[str, int] | None] | None = None
    growth: Callable[[], Mapping[Cause, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One run to attempt, for a job of its launch. `environ` is the supervisor's own environment.

    `allocation` is None if only this process stands behind the attempt; `requeue` is whether Slurm
    is expected to start the job again after a preemption. `heard` is called with the number of the
    attempt and each of its events; it must return at once, and not raise.
    """

    launch: Launch
    index: int
    job_index: int
    settings: LaunchConfig
    agents: AgentCommand
    requeue: bool
    environ: Mapping[str, str]
    allocation: Allocation | None = None
    heard: Callable[[int, Event], None] | None = None
