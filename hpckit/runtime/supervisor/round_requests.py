"""What users ask of a round that is under way: stacks of its ranks, and profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpckit.model.parallel.layout import Layout
from hpckit.runtime.channel import messages
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.hang_report import HangReport, Told
from hpckit.runtime.supervisor.profiles import Profiles
from hpckit.runtime.supervisor.stack_answers import StackCollection
from hpckit.runtime.tasks import done_within
from hpckit.values import dataclass, field

RankAnswer = Told | messages.Profiled
"""What agents send when they are asked, or because ranks hang."""


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
    profiles: Profiles | None
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

    def take(self, sender: int, message: RankAnswer) -> None:
        """Pass on what belongs to a hang, or to the request of a user."""
        if isinstance(message, messages.Profiled):
            if self.profiles is not None:
                self.profiles.take(message)
        elif isinstance(message, messages.Hung | messages.CollectivesTold) or not message.request:
            self.hang.take(sender, message)
        elif self._requested is not None:
            self._requested.take(sender, message)

    def ended(self, rank: int) -> None:
        """Note that a rank has ended."""
        if self.profiles is not None:
            self.profiles.ended(self.number, rank)
