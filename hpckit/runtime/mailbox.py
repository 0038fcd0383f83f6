"""Requests of users to a running supervisor, and its answers: files through which the two talk.

A verb may run on any host that sees the launch folder. It appends a line to a file; the size of the file is
the number of the request. The supervisor looks at that size now and then, and answers in another file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from hpckit.model.elastic import ResizeAnswer, ResizeRequest
from hpckit.model.failure import StacksAnswer
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.profile import ProfileAnswer, ProfileRequest
from hpckit.patterns import lazy_pattern
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import (
    PRIVATE_FILE,
    make_private_folder,
    read_json,
    read_rows_with_offsets,
    write_text_atomically,
)
from hpckit.runtime.threads import run_in_thread
from hpckit.values import dataclass

POLL_S = 10.0
"""How often a supervisor looks: thousands of them may share a file system."""

WAIT_S = 30.0
"""How long a verb waits: the supervisor looks every few seconds, and files take a moment."""

LOOK_S = 1.0
"""How often a waiting verb looks for its answer."""

_ID = lazy_pattern(r"(\d{8}T\d{6}Z-[0-9a-zA-Z]{1,32}|planned-\d{3,6})", re.ASCII)
"""What names a request, or a profile that is planned for a round: paths are made of it."""


class Named(Protocol):
    """A request or an answer, by the name of the request."""

    @property
    def id(self) -> str:
        """The name."""
        ...


Read = TypeVar("Read")
Request = TypeVar("Request", bound=Named)
Answer = TypeVar("Answer", bound=Named)


@dataclass(frozen=True, slots=True)
class Mailbox(Generic[Request, Answer]):
    """Requests of one kind, and a file for each answer; `file` returns that of a name."""

    requests: Path
    file: Callable[[str], Path]
    request_type: type[Request]
    answer_type: type[Answer]

    def read_requests(self, start: int) -> list[Request]:
        """Return the requests after the first `start` bytes, without those that are damaged."""
        found: list[Request] = []
        with contextlib.suppress(OSError):
            for row, _ in read_rows_with_offsets(self.requests, start=start):
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    found.append(from_plain(self.request_type, row))
        return [request for request in found if _ID.fullmatch(request.id)]

    def put_answer(self, answer: Answer) -> None:
        """Write the answer; if that fails, the waiting verb reports that no answer came."""
        file = self.file(answer.id)
        with contextlib.suppress(OSError):
            make_private_folder(file.parent)
            write_answer_file(file, answer)

    def get_answer(self, name: str) -> Answer | None:
        """Return the answer to the request with this name; None without a readable one."""
        if not _ID.fullmatch(name):
            return None
        answer = read_answer_file(self.file(name), self.answer_type)
        return answer if answer is not None and answer.id == name else None


def profile_mailbox(paths: AttemptPaths) -> Mailbox[ProfileRequest, ProfileAnswer]:
    """Return where an attempt is asked for profiles."""
    return Mailbox(paths.profile_requests, paths.profile_answer, ProfileRequest, ProfileAnswer)


def resize_mailbox(paths: AttemptPaths) -> Mailbox[ResizeRequest, ResizeAnswer]:
    """Return where an attempt is asked to grow or shrink."""
    return Mailbox(paths.resize_requests, paths.resize_answer, ResizeRequest, ResizeAnswer)


def write_answer_file(file: Path, answer: Any) -> None:
    """Replace an answer; raises OSError."""
    text = json.dumps(to_plain(answer), separators=(",", ":")) + "\n"
    write_text_atomically(file, text, lasting=False)


def read_answer_file(file: Path, kind: type[Read]) -> Read | None:
    """Return the answer in a file; None without a readable one."""
    try:
        return from_plain(kind, read_json(file))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def read_stacks_answer(paths: AttemptPaths, request: int) -> StacksAnswer | None:
    """Return the stacks that were asked for by this request, or by a later one; None so far."""
    answer = read_answer_file(paths.stacks_answer, StacksAnswer)
    return answer if answer is not None and answer.request >= request else None


def latest_request_number(file: Path) -> int:
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


async def poll_and_answer_requests(
    answers: Mapping[Path, Callable[[int, int], Awaitable[None]]], interval_s: float = POLL_S
) -> None:
    """Poll files of requests until cancelled.

    The function of a file is called with the numbers of the latest request that it answered (0:
    none) and of the latest one, and answers all that came in between.
    """
    answered = dict.fromkeys(answers, 0)
    while True:
        await asyncio.sleep(interval_s)
        for file, answer in answers.items():
            request = await run_in_thread(partial(latest_request_number, file))
            if request > answered[file]:
                before, answered[file] = answered[file], request
                await answer(before, request)
