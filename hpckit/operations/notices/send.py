"""Sends kept notices to all destinations at once, each notice by one process, within a deadline."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from hpckit.context import Context
from hpckit.model.outside.notices import UserNotice
from hpckit.planning.notices.destinations import Destination
from hpckit.record.layout import LaunchPaths, NoticePaths
from hpckit.record.outside.notices import begin_sending, delivered_to, end_sending
from hpckit.values import dataclass, field

_TO_RECORD_S = 1.0
"""Time kept for recording who has a notice."""

_LEAST_S = 0.2


def send_all(
    paths: LaunchPaths,
    notices: Sequence[UserNotice],
    destinations: Sequence[Destination],
    context: Context,
    deadline: float,
) -> list[str]:
    """Send notices, and return what went wrong, without addresses; raises OSError.

    What went wrong is recorded, too. `deadline` is in the time of `time.monotonic`.
    """
    mine = [notice for notice in notices if begin_sending(paths.notice(notice.key))]
    tries = [
        _Delivery(notice=notice, files=paths.notice(notice.key), destination=to, context=context)
        for notice in mine
        for to in destinations
        if to.place not in delivered_to(paths.notice(notice.key))
    ]
    until = deadline - _TO_RECORD_S
    for attempt_ in tries:
        attempt_.begin(max(_LEAST_S, until - time.monotonic()))
    for attempt_ in tries:
        attempt_.await_end(max(_LEAST_S, until - time.monotonic()))
    for notice in mine:
        files = paths.notice(notice.key)
        bad = [attempt_ for attempt_ in tries if attempt_.notice == notice and attempt_.problem]
        failed = {failure.destination.place for failure in bad}
        has = delivered_to(files) | {destination.place for destination in destinations} - failed
        why = [failure.said for failure in bad]
        end_sending(files, has, all_of_them=not failed, problems=why)
    return [attempt_.said for attempt_ in tries if attempt_.problem]


def hold_back(paths: LaunchPaths, notices: Sequence[UserNotice], why: str) -> None:
    """Record why notices could not be sent to anyone; raises OSError."""
    for notice in notices:
        files = paths.notice(notice.key)
        if begin_sending(files):
            end_sending(files, delivered_to(files), all_of_them=False, problems=[why])


@dataclass(slots=True, kw_only=True)
class _Delivery:
    """One notice to one destination. `problem` is empty once it was delivered."""

    notice: UserNotice
    files: NoticePaths
    destination: Destination
    context: Context
    problem: str = "no answer in time"
    thread: threading.Thread | None = field(default=None, init=False)

    @property
    def said(self) -> str:
        """What went wrong, and with which destination."""
        return f"{self.destination.name}: {self.problem}"

    def begin(self, limit_s: float) -> None:
        """Send it in a thread: the resolver, and a slow answer, know no time limit."""
        # Imported here: most verbs send nothing, and it takes as long as all else they do.
        transports = importlib.import_module("hpckit.operations.notices.transports")

        def run() -> None:
            try:
                transports.deliver(self.destination, self.notice, self.context.environ, limit_s)
            except transports.DeliveryError as error:
                self.problem = str(error)
            else:
                self.problem = ""

        self.thread = threading.Thread(target=run, name="notice", daemon=True)
        self.thread.start()

    def await_end(self, limit_s: float) -> None:
        """Wait until it is delivered, or until the limit."""
        if self.thread is not None:
            with suppress(RuntimeError):
                self.thread.join(limit_s)
