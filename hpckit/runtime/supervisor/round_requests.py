"""What users ask of a round that is under way: stacks of its ranks, and profiles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from hpckit.model.failure import RankStack, StacksAnswer
from hpckit.model.parallel.layout import Layout
from hpckit.record.layout import AttemptPaths
from hpckit.runtime.channel import messages
from hpckit.runtime.clock import now
from hpckit.runtime.file_thread import FileThread
from hpckit.runtime.mailbox import write_answer
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.hang_report import HangReport, Told
from hpckit.runtime.tasks import done_within
from hpckit.values import dataclass, field, replace

_COLLECT_S = 8.0
"""How long agents may take: a little longer than an agent waits for its ranks."""


@dataclass(slots=True, kw_only=True)
class StackCollection:
    """The answers so far to one request; `nodes` are those that should answer, by node rank.

    `layout` is that of the round. `complete` is set when all of them have sent all stacks.
    """

    request: int
    round: int
    nodes: Mapping[int, str]
    layout: Layout | None = None
    stacks: dict[int, RankStack] = field(default_factory=dict, init=False)
    complete: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _answered: set[int] = field(default_factory=set, init=False)

    def take(self, sender: int, message: messages.StackSaved | messages.StacksSaved) -> None:
        """Add an agent's message; those for an earlier request came too late."""
        if message.request != self.request:
            return
        if isinstance(message, messages.StackSaved):
            self.stacks[message.stack.rank] = message.stack
            return
        self._answered.add(sender)
        if self._answered >= self.nodes.keys():
            self.complete.set()

    @property
    def silent(self) -> tuple[str, ...]:
        """The nodes that have not answered."""
        return tuple(name for rank, name in self.nodes.items() if rank not in self._answered)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """Whether the ranks of a round are watched, were asked to leave, and at which step they are."""

    watched: bool
    leaving: bool
    step: int | None


@dataclass(slots=True, kw_only=True)
class RoundRequests:
    """Passes requests on to the members of round `number`, and their answers back.

    `nodes` are the members' names by node rank; `state` and `has_ended` tell of the round as it is.
    """

    number: int
    world_size: int
    agents: Agents
    nodes: Mapping[int, str]
    state: Callable[[], RoundState]
    has_ended: Callable[[int], bool]
    hang: HangReport
    layout: Layout | None = None
    _requested: StackCollection | None = field(default=None, init=False)

    @property
    def not_profiled(self) -> str | None:
        """Why the ranks cannot be profiled now; None if they can."""
        state = self.state()
        if state.leaving:
            return "it was asked to leave"
        if not state.watched:
            return "its ranks are being started, or have just ended"
        if state.step is None:
            return (
                "none of its ranks has begun a step of `run.steps()` yet, and a profile is made "
                "of steps"
            )
        return None

    async def profile(self, order: messages.StartProfile) -> None:
        """Pass an order for a profile on to the ranks."""
        await self.agents.broadcast(order)

    async def collect_stacks(self, request: int, limit_s: float) -> StackCollection | None:
        """Have every rank say what it is doing; None if no ranks are watched at the moment."""
        if not self.state().watched:
            return None
        found = StackCollection(
            request=request, round=self.number, nodes=self.nodes, layout=self.layout
        )
        self._requested = found
        await self.agents.broadcast(messages.SaveStacks(request=request))
        await done_within(limit_s, found.complete.wait())
        return found

    def take(self, sender: int, message: Told) -> None:
        """Pass on what belongs to a hang, or to the request of a user."""
        if isinstance(message, messages.Hung | messages.CollectivesTold) or not message.request:
            self.hang.take(sender, message)
        elif self._requested is not None:
            self._requested.take(sender, message)


async def answer_stacks(
    paths: AttemptPaths, files: FileThread, round_: RoundRequests | None, request: int
) -> None:
    """Collect the stacks of the latest round, if there is one, and write them down."""
    found = None if round_ is None else await round_.collect_stacks(request, _COLLECT_S)
    answer = StacksAnswer(request=request, at=now(), round=None)
    if found is not None:
        answer = replace(
            answer,
            round=found.round,
            stacks=tuple(found.stacks[rank] for rank in sorted(found.stacks)),
            silent=found.silent,
            layout=found.layout,
        )

    def write() -> None:
        with contextlib.suppress(OSError):  # whoever asked is told that no answer came
            write_answer(paths.stacks_answer, answer)

    files.put_latest(paths.stacks_answer.name, write)
