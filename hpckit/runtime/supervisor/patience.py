"""Retries of file operations without which an attempt cannot begin.

The wait blocks. Do not use it once ranks train: they need no file.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from hpckit.model.failure import Cause

T = TypeVar("T")

PATIENCE_S = 60.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING = _FULL | {
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY, errno.EINTR),
    *(errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.ENOBUFS, errno.EREMOTEIO, errno.ENOLINK),
}
"""Errors of a busy or failing-over file server, and of a machine that is short of something."""


def retry_transient_file_errors(work: Callable[[], T], patience_s: float | None = None) -> T:
    """Return what the work returns; retry for `patience_s` if its OSError may pass."""
    limit_s = PATIENCE_S if patience_s is None else patience_s
    deadline, pause_s = time.monotonic() + limit_s, _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except OSError as error:
            if error.errno not in _PASSING or time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def cause_of_supervisor_failure(error: OSError) -> Cause:
    """Return the cause for a failure of the supervisor itself with this error."""
    return Cause.disk_full if error.errno in _FULL else Cause.launcher_lost
