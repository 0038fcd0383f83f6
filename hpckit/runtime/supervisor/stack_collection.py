"""What the members of a round have answered to a user's request for stacks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpckit.model.failure import RankStack
from hpckit.model.parallel.layout import Layout
from hpckit.runtime.channel import messages


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
