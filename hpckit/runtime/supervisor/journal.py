"""The record of a running attempt: its events and its progress, written by a thread.

Keeps events in order, decides which to leave out if too many wait, and keeps the disk space that a
final event needs on a full disk. Training never ends, and the supervisor never waits, because a
record cannot be written: that is reported on standard error, which is the batch log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hpckit.model import events
from hpckit.model.node_setup import ContainerCheck
from hpckit.record.layout import AttemptPaths
from hpckit.record.metrics.log import describe_unreadable_rows
from hpckit.record.store import PRIVATE_FILE, append_event, write_text_atomically
from hpckit.runtime.clock import now
from hpckit.runtime.threads import await_with_limit, run_in_thread
from hpckit.values import dataclass, field

_LEFT_OUT_FIRST = (events.Warned, events.CheckpointSaved, events.NodeDraining)
"""What a reader can do without if a file system does not answer for long. Never an exit."""
_KEPT = 1000
"""Number of unwritten events, the latest ones, that are tried again."""
_FINAL_EVENT_TRIES = 5
_FINAL_EVENT_PAUSE_S = 1.0
_FINAL_EVENT_S = 10.0
"""How long the shutdown waits for the final event; the process itself waits longer."""
_SETTLED_S = 600.0
_PROGRESS_S, _MOST_PROGRESS_S, _SHARE = 1.0, 30.0, 1 / 20
"""Pauses between two writes of the progress: a share of the attempt's age, within these bounds."""
_RESERVE = 64 * 1024
"""Bytes kept on the disk for the final events of an attempt: some rounds' ends and its own."""


MOST_WAITING = 10_000
"""Maximum number of waiting operations: minutes of a large run, a few megabytes."""


@dataclass(slots=True)
class FileThread:
    """Runs file operations in order; a file system that does not answer holds up its thread alone.

    Its thread starts with the first operation. The process may end without waiting for it, so await
    `await_queued_work` first.
    """

    most: int = MOST_WAITING
    _works: deque[Callable[[], None]] = field(default_factory=deque, init=False)
    _latest: dict[str, Callable[[], None]] = field(default_factory=dict, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _begun: bool = field(default=False, init=False)

    def queue_work(self, work: Callable[[], None], *, droppable: bool = False) -> bool:
        """Queue work after all earlier work; return False if it is droppable and the queue is full.

        The work must not raise.
        """
        with self._changed:
            if droppable and len(self._works) >= self.most:
                return False
            self._works.append(work)
            self._wake_thread()
        return True

    def queue_replaceable_work(self, name: str, work: Callable[[], None]) -> None:
        """Run the work when nothing else waits, unless later work of the same name replaces it."""
        with self._changed:
            self._latest[name] = work
            self._wake_thread()

    async def await_queued_work(self, limit_s: float) -> bool:
        """Return whether everything queued so far is done within `limit_s` seconds."""
        return await await_with_limit(
            limit_s, run_in_thread(lambda: None, partial(self.queue_replaceable_work, "settled"))
        )

    def _wake_thread(self) -> None:
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._run_queue, name="files", daemon=True).start()
        self._changed.notify()

    def _run_queue(self) -> None:
        while True:
            with self._changed:
                while not (self._works or self._latest):
                    self._changed.wait()
                latest = self._latest
                work = self._works.popleft() if self._works else latest.pop(next(iter(latest)))
            work()


@dataclass(slots=True, kw_only=True)
class Journal:
    """The record of one attempt, as its supervisor keeps it.

    `heard` gets each event at once, `keep` each one that is written, in the thread of files; it may
    raise OSError.
    """

    paths: AttemptPaths
    heard: Callable[[events.Event], None] | None = None
    keep: Callable[[events.Event], None] | None = None
    files: FileThread = field(default_factory=FileThread)
    _left_out: int = field(default=0, init=False)
    _unwritten: list[events.Event] = field(default_factory=list, init=False)
    _began_at: float = field(default_factory=time.monotonic, init=False)
    _noted_at: float = field(default=-math.inf, init=False)
    _progress: dict[str, Any] = field(default_factory=dict, init=False)
    _due: asyncio.TimerHandle | None = field(default=None, init=False)

    def record_event(self, event: events.Event) -> None:
        """Append an event; if it cannot be written, that is reported, and the run continues."""
        if self.heard is not None:
            self.heard(event)
        droppable = isinstance(event, _LEFT_OUT_FIRST)
        if not self.files.queue_work(partial(self._append_event, event), droppable=droppable):
            self._left_out += 1

    def record_warning(self, message: str) -> None:
        """Record a warning."""
        self.record_event(events.Warned(at=now(), message=message))

    def record_container_check(self, node: str, found: ContainerCheck) -> None:
        """Record what a node found in its container."""
        self.record_event(events.ContainerChecked(at=now(), node=node, found=found))
        for warning in found.warnings:
            self.record_warning(f"{node}: {warning}")

    def write_step_progress(self, round_: int, step: int, total: int | None, *, last: bool = False) -> None:
        """Write the progress for users: now if it is the `last` of a round, else once it is due.

        Call it in an event loop. No later step may come, so that the latest one is written anyway.
        Do not base decisions on the file.
        """
        said = now().isoformat(timespec="milliseconds")
        self._progress = {"round": round_, "step": step, "total": total, "at": said}
        at = time.monotonic()
        pause_s = min(max(_PROGRESS_S, _SHARE * (at - self._began_at)), _MOST_PROGRESS_S)
        rest_s = self._noted_at + pause_s - at
        if last or rest_s <= 0:
            self._queue_progress()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(rest_s, self._queue_progress)

    def _queue_progress(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._noted_at, self._due = time.monotonic(), None
        path, text = self.paths.progress, json.dumps(self._progress) + "\n"

        def replace_file() -> None:
            with contextlib.suppress(OSError):  # a courtesy
                write_text_atomically(path, text, lasting=False)

        self.files.queue_replaceable_work(path.name, replace_file)

    async def record_attempt_end(self, event: events.AttemptEnded) -> None:
        """Write the final event of the attempt, with a few tries."""
        self.files.queue_work(partial(self._append_attempt_end, event))
        await self.files.await_queued_work(_FINAL_EVENT_S)

    async def await_writes(self) -> None:
        """Wait until everything is written, because the next action may read it."""
        if not await self.files.await_queued_work(_SETTLED_S):
            sys.stderr.write("hpckit: error: the record is incomplete: its files do not answer\n")

    def print_to_batch_log(self, text: str) -> None:
        """Write a line to the batch log through the thread: the log is on a file system, too."""
        self.files.queue_work(lambda: write_log_line(text))

    def _append_event(self, event: events.Event) -> None:
        """Append an event, after those that could not be written before."""
        waiting = [*self._unwritten, *self._build_left_out_events_warning(), event]
        for place, one in enumerate(waiting):
            try:
                append_event(self.paths.events, one)
            except OSError as error:
                write_log_line(f"error: cannot record {event.kind}: {error}")
                self._unwritten = waiting[place:][-_KEPT:]
                return
            if self.keep is not None:
                with contextlib.suppress(OSError):
                    self.keep(one)
        self._unwritten = []

    def _build_left_out_events_warning(self) -> list[events.Event]:
        """Return a warning about the events left out since the last such warning."""
        count, self._left_out = self._left_out, 0
        message = f"{count} events were left out: the file system did not answer for too long"
        return [events.Warned(at=now(), message=message)] if count else []

    def _append_attempt_end(self, event: events.AttemptEnded) -> None:
        lost = describe_unreadable_rows(self.paths)
        if lost:
            self._append_event(events.Warned(at=now(), message=lost))
        self._append_event(event)
        with contextlib.suppress(OSError):
            self.paths.reserve.unlink(missing_ok=True)
        for _ in range(_FINAL_EVENT_TRIES):
            if not self._unwritten:
                return
            *before, last = self._unwritten
            self._unwritten = _keep_latest_events_that_fit(before, _RESERVE // 2)
            self._append_event(last)
            if self._unwritten:
                time.sleep(_FINAL_EVENT_PAUSE_S)


def _keep_latest_events_that_fit(told: Sequence[events.Event], size: int) -> list[events.Event]:
    """Return the latest of some events whose lines take at most `size` bytes."""
    sizes = [len(json.dumps(events.encode_event(event))) for event in told]
    return [event for place, event in enumerate(told) if sum(sizes[place:]) <= size]


def write_log_line(text: str) -> None:
    """Write a line to the batch log."""
    with contextlib.suppress(OSError):  # it may be on a full disk
        sys.stderr.write(f"hpckit: {text}\n")
        sys.stderr.flush()


def reserve_disk_for_final_events(paths: AttemptPaths) -> None:
    """Reserve disk space for an attempt's final events; do without if there is none."""
    with contextlib.suppress(OSError):
        handle = os.open(paths.reserve, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        try:
            # Random: zeros would take no room on a file system that compresses.
            os.write(handle, os.urandom(_RESERVE))
        finally:
            os.close(handle)
