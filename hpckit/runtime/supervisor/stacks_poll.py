"""Looks now and then whether a user wants to know what the ranks are doing, and answers.

The files are read and written by threads: a file system that does not answer delays the answer,
and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from hpckit.model.failure import StacksAnswer
from hpckit.record.layout import AttemptPaths
from hpckit.runtime.clock import now
from hpckit.runtime.file_thread import FileThread
from hpckit.runtime.stacks_request import POLL_S, latest_request, write_answer
from hpckit.runtime.supervisor.stack_collection import StackCollection
from hpckit.runtime.threads import aside

_COLLECT_S = 8.0
"""How long agents may take: a little longer than an agent waits for its ranks."""


class Collecting(Protocol):
    """A round that can be asked for its stacks."""

    async def collect_stacks(self, request: int, limit_s: float) -> StackCollection | None:
        """Have every rank say what it is doing; None if no ranks are watched at the moment."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksPoll:
    """Where requests come from and answers go; `round` returns the latest round, if any."""

    paths: AttemptPaths
    files: FileThread
    round: Callable[[], Collecting | None]
    interval_s: float = POLL_S

    async def run(self) -> None:
        """Poll until cancelled."""
        answered = 0
        while True:
            await asyncio.sleep(self.interval_s)
            request = await aside(lambda: latest_request(self.paths))
            if request > answered:
                answered = request
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
        )

    def _write(self, answer: StacksAnswer) -> None:
        with contextlib.suppress(OSError):  # whoever asked is told that no answer came
            write_answer(self.paths, answer)
