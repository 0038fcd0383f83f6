"""A rank does not outlive its agent: the kernel sees to it, or a thread if nsys is in between.

Imports no torch.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Mapping

from hpckit.record.process import start_mark

NSYS_VARIABLE = "HPCKIT_NSYS"
"""Names the file for nsys's report, in a rank that was started below nsys; else why it was not."""
AGENT_VARIABLE = "HPCKIT_AGENT_PID"
"""Names the agent of a rank that is not its child."""

_PR_SET_PDEATHSIG = 1
_LOOK_S = 1.0


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent dies (Linux; kept across exec)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_agent(environ: Mapping[str, str]) -> None:
    """End this process when its agent dies.

    The kernel counts the thread that started a process as its parent, and nobody knows how long
    that thread of nsys lives: below nsys, a thread of our own watches the agent.
    """
    agent = environ.get(AGENT_VARIABLE, "")
    if not agent.isdecimal():
        die_with_parent()
        return
    mark = start_mark(int(agent))
    watching = threading.Thread(target=_watch, args=(int(agent), mark), daemon=True)
    watching.start()


def _watch(agent: int, mark: str | None) -> None:
    while mark is not None and start_mark(agent) == mark:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)
