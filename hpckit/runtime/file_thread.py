"""One thread for the file operations of a process whose event loop must never wait for a file.

Runs them in order, one after the other, and bounds how many wait. A file system that does not
answer holds up this thread and nothing else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from hpckit.runtime.tasks import done_within
from hpckit.runtime.threads import aside
from hpckit.values import dataclass, field

T = TypeVar("T")

MOST_WAITING = 10_000
"""Maximum number of waiting operations: minutes of a large run, a few megabytes."""


@dataclass(slots=True)
class FileThread:
    """Runs the operations that it is given.

    Its thread starts with the first operation. The process may end without waiting for it, so await
    `settled` first.
    """

    most: int = MOST_WAITING
    _works: deque[Callable[[], None]] = field(default_factory=deque, init=False)
    _latest: dict[str, Callable[[], None]] = field(default_factory=dict, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _begun: bool = field(default=False, init=False)

    def put(self, work: Callable[[], None], *, droppable: bool = False) -> bool:
        """Queue work after all earlier work; return False if it is droppable and the queue is full.

        The work must not raise.
        """
        with self._changed:
            if droppable and len(self._works) >= self.most:
                return False
            self._works.append(work)
            self._wake()
        return True

    def put_latest(self, name: str, work: Callable[[], None]) -> None:
        """Run the work when nothing else waits, unless later work of the same name replaces it."""
        with self._changed:
            self._latest[name] = work
            self._wake()

    async def settled(self, limit_s: float) -> bool:
        """Return whether everything queued so far is done within `limit_s` seconds."""
        return await done_within(limit_s, aside(lambda: None, partial(self.put_latest, "settled")))

    def _wake(self) -> None:
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._run, name="files", daemon=True).start()
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._works or self._latest):
                    self._changed.wait()
                if self._works:
                    work = self._works.popleft()
                else:
                    work = self._latest.pop(next(iter(self._latest)))
            work()
