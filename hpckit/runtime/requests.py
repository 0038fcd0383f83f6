"""Requests of users to a running supervisor: a file that grows, through which a verb asks.

A verb may run on any host that sees the launch folder. It appends a line; the size of the file is
the number of the request. The supervisor looks at that size now and then, and answers in a file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpckit.record.store import PRIVATE_FILE, append_line

POLL_S = 10.0
"""How often a supervisor looks: thousands of them may share a file system."""

WAIT_S = 30.0
"""How long a verb waits: the supervisor looks every few seconds, and files take a moment."""

LOOK_S = 1.0
"""How often a waiting verb looks for its answer."""


def ask(file: Path, request: Mapping[str, Any]) -> int:
    """Append a request; return its number. Raises OSError."""
    return append_line(file, request)


def latest_request(file: Path) -> int:
    """Return the number of the latest request, 0 without any.

    The file is opened, and made if it is missing: over NFS, only then its size is up to date.
    """
    with contextlib.suppress(OSError):
        flags = os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(file, flags, PRIVATE_FILE)
        try:
            return os.fstat(handle).st_size
        finally:
            os.close(handle)
    return 0
