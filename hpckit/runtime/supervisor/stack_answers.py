"""Answers requests of users for what the ranks are doing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from hpckit.model.failure import RankStack, StacksAnswer
from hpckit.model.parallel.layout import Layout
from hpckit.record.layout import AttemptPaths
from hpckit.runtime.channel import messages
from hpckit.runtime.clock import now
from hpckit.runtime.file_thread import FileThread
from hpckit.runtime.mailbox import write_answer
from hpckit.values import dataclass, field


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


_COLLECT_S = 8.0
"""How long agents may take: a little longer than an agent waits for its ranks."""


class Collecting(Protocol):
    """A round that can be asked for its stacks."""

    async def collect_stacks(self, request: int, limit_s: float) -> StackCollection | None:
        """Have every rank say what it is doing; None if no ranks are watched at the moment."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAnswers:
    """Where requests come from and answers go; `round` returns the latest round, if any."""

    paths: AttemptPaths
    files: FileThread
    round: Callable[[], Collecting | None]

    @property
    def requests(self) -> Path:
        """The file of requests."""
        return self.paths.stacks_requests

    async def answer(self, request: int) -> None:
        """Collect the stacks and write them down."""
        answer = await self._answer(request)
        self.files.put_latest(self.paths.stacks_answer.name, partial(self._write, answer))

    async def _answer(self, request: int) -> StacksAnswer:
        current = self.round()
        found = None if current is None else await current.collect_stacks(request, _COLLECT_S)
        if found is None:
            return StacksAnswer(request=request, at=now(), round=None)
        return StacksAnswer(
            request=request,
            at=now(),
            round=found.round,
            stacks=tuple(found.stacks[rank] for rank in sorted(found.stacks)),
            silent=found.silent,
            layout=found.layout,
        )

    def _write(self, answer: StacksAnswer) -> None:
        with contextlib.suppress(OSError):  # whoever asked is told that no answer came
            write_answer(self.paths.stacks_answer, answer)
