"""Requests for the stacks of all ranks: two files through which a verb and a supervisor talk.

The verb asks as `hpckit.runtime.requests` says; the supervisor replaces the other file by its
answer.
"""

from __future__ import annotations

import json
from datetime import datetime

from hpckit.model.failure import StacksAnswer
from hpckit.model.plain import from_plain, to_plain
from hpckit.record.layout import AttemptPaths
from hpckit.record.process import this_host
from hpckit.record.store import read_json, write_text
from hpckit.runtime.requests import ask


def request_stacks(paths: AttemptPaths, at: datetime) -> int:
    """Ask for the stacks of all ranks; return the number of the request. Raises OSError."""
    return ask(paths.stacks_requests, {"at": to_plain(at), "host": this_host()})


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
