"""Requests for the stacks of all ranks: two files through which a verb and a supervisor talk.

A verb may run on any host that sees the launch folder. It appends a line to one file; the size of
the file is the number of the request. The supervisor looks at that size now and then, and replaces
the other file by its answer.
"""

from __future__ import annotations

import contextlib
import json
import os
from datetime import datetime

from hpckit.model.failure import StacksAnswer
from hpckit.model.plain import from_plain, to_plain
from hpckit.record.layout import AttemptPaths
from hpckit.record.process import this_host
from hpckit.record.store import PRIVATE_FILE, append_line, read_json, write_text

POLL_S = 10.0
"""How often a supervisor looks: thousands of them may share a file system."""


def request_stacks(paths: AttemptPaths, at: datetime) -> int:
    """Ask for the stacks of all ranks; return the number of the request. Raises OSError."""
    return append_line(paths.stacks_requests, {"at": to_plain(at), "host": this_host()})


def latest_request(paths: AttemptPaths) -> int:
    """Return the number of the latest request, 0 without any.

    The file is opened, and made if it is missing: over NFS, only then its size is up to date.
    """
    with contextlib.suppress(OSError):
        flags = os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(paths.stacks_requests, flags, PRIVATE_FILE)
        try:
            return os.fstat(handle).st_size
        finally:
            os.close(handle)
    return 0


def write_answer(paths: AttemptPaths, answer: StacksAnswer) -> None:
    """Replace the answer; raises OSError."""
    text = json.dumps(to_plain(answer), separators=(",", ":")) + "\n"
    write_text(paths.stacks_answer, text, lasting=False)


def read_answer(paths: AttemptPaths, request: int) -> StacksAnswer | None:
    """Return the answer to this request, or to a later one; None if there is none yet."""
    try:
        answer = from_plain(StacksAnswer, read_json(paths.stacks_answer))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return answer if answer.request >= request else None
