"""The thread that writes a checkpoint while training continues. Does not import torch."""

from __future__ import annotations

import threading
import time
from typing import final


@final
class WriterThread(threading.Thread):
    """Writes one checkpoint; a daemon, so that a rank can end without its peers."""


def writers_ended(timeout_s: float) -> bool:
    """Return whether every checkpoint's thread has ended, after at most `timeout_s` seconds.

    A process group must not be torn down under a thread that uses it: that aborts the process.
    """
    until = time.monotonic() + timeout_s
    writers = [one for one in threading.enumerate() if isinstance(one, WriterThread)]
    for one in writers:
        one.join(max(0.0, until - time.monotonic()))
    return not any(one.is_alive() for one in writers)
