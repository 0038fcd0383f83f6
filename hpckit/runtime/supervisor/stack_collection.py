"""The stacks of all ranks of a round, when a user asks what they are doing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpckit.model.failure import RankStack, StacksAnswer
from hpckit.runtime.channel import messages
from hpckit.runtime.clock import now
from hpckit.runtime.mailbox import write_answer
from hpckit.runtime.supervisor.hang_report import Told
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.tasks import done_within
from hpckit.values import dataclass, field, replace

if TYPE_CHECKING:
    from hpckit.runtime.supervisor.round import Round

_COLLECT_S = 8.0
"""How long agents may take: a little longer than an agent waits for its ranks."""


@dataclass(slots=True, kw_only=True)
class StackCollection:
    """The answers so far to one request; `nodes` are those that should answer, by node rank.

    `complete` is set when all of them have sent all stacks.
    """

    request: int
    nodes: Mapping[int, str]
    stacks: dict[int, RankStack] = field(default_factory=dict, init=False)
    complete: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _answered: set[int] = field(default_factory=set, init=False)

    def take(self, sender: int, message: Told) -> None:
        """Add an agent's message; those for an earlier request came too late."""
        match message:
            case messages.StackSaved(request=self.request):
                self.stacks[message.stack.rank] = message.stack
            case messages.StacksSaved(request=self.request):
                self._answered.add(sender)
                if self._answered >= self.nodes.keys():
                    self.complete.set()

    @property
    def silent(self) -> tuple[str, ...]:
        """The nodes that have not answered."""
        return tuple(name for rank, name in self.nodes.items() if rank not in self._answered)


async def answer_stacks(journal: Journal, round_: Round | None, request: int) -> None:
    """Have every rank of a round say what it is doing, if ranks are watched, and write it down."""
    file, found = journal.paths.stacks_answer, None
    if round_ is not None and round_.watching:
        nodes = {peer.node_rank: peer.node for peer in round_.members}
        round_.stacks_asked = found = StackCollection(request=request, nodes=nodes)
        await round_.agents.broadcast(messages.SaveStacks(request=request))
        await done_within(_COLLECT_S, found.complete.wait())
    answer = StacksAnswer(request=request, at=now(), round=None)
    if round_ is not None and found is not None:
        answer = replace(
            answer,
            round=round_.number,
            stacks=tuple(found.stacks[rank] for rank in sorted(found.stacks)),
            silent=found.silent,
            layout=round_.layout,
        )

    def write() -> None:
        with contextlib.suppress(OSError):  # whoever asked is told that no answer came
            write_answer(file, answer)

    journal.files.put_latest(file.name, write)
