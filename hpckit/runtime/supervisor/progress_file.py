"""The progress of an attempt, for users: a small file on a shared file system.

A thread replaces it at growing intervals. Do not base decisions on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

from hpckit.record.store import write_text
from hpckit.runtime.clock import now
from hpckit.runtime.file_thread import FileThread
from hpckit.values import dataclass, field

_SHORTEST_S = 1.0
_LONGEST_S = 30.0
_SHARE = 1 / 20


@dataclass(slots=True, kw_only=True)
class ProgressFile:
    """The progress.json of one attempt: its interval grows as a share of the attempt's age."""

    path: Path
    files: FileThread
    _began_at: float = field(default_factory=time.monotonic, init=False)
    _noted_at: float = field(default=-math.inf, init=False)
    _latest: dict[str, Any] = field(default_factory=dict, init=False)
    _due: asyncio.TimerHandle | None = field(default=None, init=False)

    def note(self, round_: int, step: int, total: int | None, *, last: bool = False) -> None:
        """Write the latest step: now if it is the `last` of a round, else as soon as one is due.

        Call it in an event loop. No later step may come, so that the latest one is written anyway.
        """
        said = now().isoformat(timespec="milliseconds")
        self._latest = {"round": round_, "step": step, "total": total, "at": said}
        at = time.monotonic()
        pause_s = min(max(_SHORTEST_S, _SHARE * (at - self._began_at)), _LONGEST_S)
        rest_s = self._noted_at + pause_s - at
        if last or rest_s <= 0:
            self._put()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(rest_s, self._put)

    def _put(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._noted_at, self._due = time.monotonic(), None
        text = json.dumps(self._latest) + "\n"
        self.files.put_latest(self.path.name, lambda: self._replace(text))

    def _replace(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a courtesy
            write_text(self.path, text, lasting=False)
