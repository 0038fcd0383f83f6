"""Looks now and then whether a user asks for something, and has it answered.

The files are read and written by threads: a file system that does not answer delays the answer,
and nothing else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from hpckit.runtime.mailbox import POLL_S, latest_request
from hpckit.runtime.threads import aside


class Answering(Protocol):
    """One kind of requests."""

    @property
    def requests(self) -> Path:
        """The file that grows with each request."""
        ...

    async def answer(self, request: int) -> None:
        """Answer all requests up to this one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPoll:
    """Who answers, and how often to look."""

    answering: tuple[Answering, ...]
    interval_s: float = POLL_S

    async def run(self) -> None:
        """Poll until cancelled."""
        answered = dict.fromkeys(range(len(self.answering)), 0)
        while True:
            await asyncio.sleep(self.interval_s)
            for place, one in enumerate(self.answering):
                request = await aside(partial(latest_request, one.requests))
                if request > answered[place]:
                    answered[place] = request
                    await one.answer(request)
