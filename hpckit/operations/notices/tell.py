"""Notifies people of what happened: makes each notice once, and sends it within a time limit.

One process sends a notice, to all destinations at once. What cannot be sent is kept in the launch
folder, and the next verb sends it. Nothing here raises, and nothing takes longer than its limit: a
run does not fail, or wait, for a notice.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from hpckit.context import Context
from hpckit.errors import ConfigError
from hpckit.model import events
from hpckit.model.failure import Failure
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind
from hpckit.model.run import RunRecord, RunView
from hpckit.model.settings import NoticeKind, Notify, UserNotice
from hpckit.operations.next_step import launch_reference
from hpckit.operations.notices.addresses import find_notice_destinations
from hpckit.operations.notices.unsent import attempt_end_key_suffix, format_unsent_warnings
from hpckit.planning.notices import (
    Destination,
    is_run_over,
    notice_kind_for_attempt_end,
    notice_kind_for_final_state,
    notice_kinds_for_event,
    notice_to_json,
    was_new_attempt_decided,
)
from hpckit.planning.secrecy import mask_message
from hpckit.record.attempts import latest_attempt_number, read_events_by_attempt
from hpckit.record.launches import Launch, load_run_settings, read_launch_history, read_run_records
from hpckit.record.layout import LaunchPaths
from hpckit.record.notices import (
    claim_notice_sending,
    read_delivered_destination_indices,
    read_unsent_user_notices,
    record_notice_delivery,
    write_user_notice,
)
from hpckit.record.secret_variables import read_secrets
from hpckit.report.notice import NoticeWriter
from hpckit.values import dataclass, field, replace
from hpckit.views.launch_view import Ask, build_launch_view

LIMIT_S = 10.0
"""How long notices may hold up the end of an attempt, and of `watch` and the auto-resume job."""

VERB_LIMIT_S = 3.0
"""How long a verb may take to send what was kept."""

_AT_ONCE = 64
"""Runs read at a time, to find one that is not over."""


@dataclass(slots=True, kw_only=True)
class _Telling:
    """Makes and sends the notices of one launch."""

    launch: Launch
    notify: Notify
    context: Context

    @property
    def notice_writer(self) -> NoticeWriter:
        return NoticeWriter(
            launch=self.launch.id,
            folder=str(self.launch.folder),
            named=launch_reference(self.launch, self.context),
            at=self.context.now(),
        )

    def store_run_notice_if_new(
        self, kind: NoticeKind, record: RunRecord, key: str, *, why: str = ""
    ) -> UserNotice | None:
        """Keep a notice of a run; return it if this process is to send it."""
        if kind not in self.notify.events:
            return None
        known = replace(record, failure=self._mask_failure_secrets(record.failure, record.index))
        return self._store_notice_if_new(self.notice_writer.build_run_notice(kind, known, key, why=why))

    def store_launch_notice_if_new(self, views: Sequence[RunView]) -> UserNotice | None:
        """Keep the notice of the launch's end; return it if this process is to send it."""
        sweep = load_run_settings(self.launch, 0)[0].sweep
        if sweep.metric is not None:
            indices = [view.record.index for view in views]
            logged = read_run_records(self.launch, indices, metrics=True)
            views = [
                replace(view, record=replace(view.record, metrics=one.metrics))
                for view, one in zip(views, logged, strict=True)
            ]
        return self._store_notice_if_new(self.notice_writer.build_launch_over_notice(views, sweep))

    def _mask_failure_secrets(self, failure: Failure | None, index: int) -> Failure | None:
        if failure is None:
            return None
        settings, _ = load_run_settings(self.launch, index)
        secrets = read_secrets(self.launch.paths, index, settings).secret_values
        return replace(failure, message=mask_message(failure.message, (), secrets))

    def _store_notice_if_new(self, notice: UserNotice) -> UserNotice | None:
        if self.launch.paths.notice(notice.key).notice_file.exists():
            return None
        first = write_user_notice(self.launch.paths, notice.key, notice_to_json(notice))
        return notice if first else None

    def send_notices(self, made: Sequence[UserNotice | None], deadline: float) -> None:
        """Send notices to all destinations; what fails is kept, and noted."""
        notices = [notice for notice in made if notice is not None]
        if not notices:
            return
        try:
            destinations = find_notice_destinations(self.notify, self.context.environ)
        except ConfigError as error:
            for files in (self.launch.paths.notice(notice.key) for notice in notices):
                if claim_notice_sending(files):
                    said = [error.message]
                    record_notice_delivery(
                        files, read_delivered_destination_indices(files), all_of_them=False, problems=said
                    )
            problems = [error.message] * len(notices)
        else:
            problems = send_to_all_destinations(
                self.launch.paths, notices, destinations, self.context, deadline
            )
        for remark in format_unsent_warnings(problems, self.notify, self.notice_writer.named):
            self.context.note(remark)


@dataclass(slots=True, kw_only=True)
class AttemptTeller(_Telling):
    """Sends the notices of one attempt of a run, for its supervisor."""

    index: int
    _threads: list[threading.Thread] = field(default_factory=list, init=False)
    _because: Failure | None = field(default=None, init=False)

    def send_notices_of_event(self, attempt: int, event: events.Event) -> None:
        """Send the notices of an event of the running attempt, in a thread of its own."""
        if isinstance(event, events.RoundEnded):
            self._because = event.failure
        wanted = (kind for kind in notice_kinds_for_event(event, attempt) if kind in self.notify.events)
        for kind in wanted:
            number = getattr(event, "round", 0)
            work = partial(self._send_event_notice, kind, attempt, number, self._because)
            self._threads.append(_start_notice_thread(work, self.context))

    def send_notices_of_attempt_end(self) -> None:
        """Send the notices of the ends of attempt and launch; wait for all, within the limit."""
        deadline = time.monotonic() + LIMIT_S
        if self.notify.events:
            self._threads.append(
                _start_notice_thread(partial(self._send_end_notices, deadline), self.context)
            )
        _join_threads(self._threads, deadline)

    def _send_event_notice(
        self, kind: NoticeKind, attempt: int, number: int, because: Failure | None
    ) -> None:
        deadline = time.monotonic() + LIMIT_S
        (record,) = read_run_records(self.launch, [self.index])
        key = f"-{attempt:03d}-{number:03d}"
        why = f"round {number} of attempt {attempt}"
        record = replace(record, attempt=attempt, failure=because)
        self.send_notices([self.store_run_notice_if_new(kind, record, key, why=why)], deadline)

    def _send_end_notices(self, deadline: float) -> None:
        (record,) = read_run_records(self.launch, [self.index], metrics=True)
        history = read_launch_history(self.launch)
        continues = _will_run_again(self.launch, self.index, history)
        made: list[UserNotice | None] = []
        kind = notice_kind_for_attempt_end(record.state, continues=continues)
        if kind is not None:
            made.append(self.store_run_notice_if_new(kind, record, attempt_end_key_suffix(record)))
        if NoticeKind.finished in self.notify.events:
            views = _list_runs_if_all_over(self.launch, history, self.context)
            made.append(None if views is None else self.store_launch_notice_if_new(views))
        self.send_notices(made, deadline)


def announce_launch_end(launch: Launch, views: Sequence[RunView], context: Context) -> None:
    """Send the notices of the end of a launch, if no run continues, and of runs without one yet.

    `views` are those of all its runs, of which some may have lost their supervisors.
    """

    def tell() -> None:
        notify = load_run_settings(launch, 0)[0].notify
        if not notify.events:
            return
        telling = _Telling(launch=launch, notify=notify, context=context)
        made = [
            telling.store_run_notice_if_new(
                kind, replace(view.record, state=view.state), attempt_end_key_suffix(view.record)
            )
            for view in views
            if (kind := notice_kind_for_final_state(view.state)) is not None
        ]
        if NoticeKind.finished in notify.events:
            made.append(telling.store_launch_notice_if_new(views))
        telling.send_notices(made, deadline)

    deadline = time.monotonic() + LIMIT_S
    _join_threads([_start_notice_thread(tell, context)], deadline)


def resend_unsent_notices(launch: Launch, context: Context) -> None:
    """Send the notices of one's own launch that could not be sent; say so if that fails again."""
    kept = () if launch.stranger is not None else read_unsent_user_notices(launch.paths)
    if not kept:
        return

    def send() -> None:
        notify = load_run_settings(launch, 0)[0].notify
        _Telling(launch=launch, notify=notify, context=context).send_notices(kept, deadline)

    deadline = time.monotonic() + VERB_LIMIT_S
    _join_threads([_start_notice_thread(send, context)], deadline)


def _will_run_again(launch: Launch, index: int, history: LaunchHistory) -> bool:
    job = history.find_job_of_run(index)
    on_slurm = launch.cluster.kind is ClusterKind.slurm
    if on_slurm and (job.requeue or job.shared_job is not None):
        return True
    if history.auto_resume is not None or index in history.successors:
        return True
    last = latest_attempt_number(launch.paths.run(index).attempts)
    return any(
        was_new_attempt_decided(told)
        for number, told in read_events_by_attempt(launch.paths.run(index))
        if number == last
    )


def _list_runs_if_all_over(
    launch: Launch, history: LaunchHistory, context: Context
) -> tuple[RunView, ...] | None:
    """Return all runs if all are over by the record, else None; most likely after a few reads."""
    if launch.cluster.kind is ClusterKind.slurm and history.list_unsubmitted_jobs():
        return None
    if launch.stages:  # runs that will not begin, as one before them failed, are over
        views = build_launch_view(launch, context, ask=Ask.nothing).runs
        return views if all(_is_run_over(launch, view, history) for view in views) else None
    count, found = len(launch.runs), list[RunView]()
    for start in reversed(range(0, count, _AT_ONCE)):
        records = read_run_records(launch, range(start, min(count, start + _AT_ONCE)))
        views = tuple(RunView(record=record) for record in records)
        if not all(_is_run_over(launch, view, history) for view in views):
            return None
        found[:0] = views
    return tuple(found)


def _is_run_over(launch: Launch, view: RunView, history: LaunchHistory) -> bool:
    return is_run_over(view, continues=_will_run_again(launch, view.record.index, history))


def _start_notice_thread(work: Callable[[], None], context: Context) -> threading.Thread:
    """Start a thread that the process need not wait for; its errors are noted."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # no notice is worth a run
            context.note(f"warning: a notice could not be made: {type(error).__name__}")

    thread = threading.Thread(target=run, name="notices", daemon=True)
    thread.start()
    return thread


def _join_threads(threads: Sequence[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


_TO_RECORD_S = 1.0
"""Time kept for recording who has a notice."""

_LEAST_S = 0.2


def send_to_all_destinations(
    paths: LaunchPaths,
    notices: Sequence[UserNotice],
    destinations: Sequence[Destination],
    context: Context,
    deadline: float,
) -> list[str]:
    """Send notices, and return what went wrong, without addresses; raises OSError.

    What went wrong is recorded, too. `deadline` is in the time of `time.monotonic`.
    """
    # Imported here: most verbs send nothing, and it takes as long as all else they do.
    transports = importlib.import_module("hpckit.operations.notices.transports")
    mine = [notice for notice in notices if claim_notice_sending(paths.notice(notice.key))]
    problems: dict[tuple[str, int], str] = {}
    threads: list[threading.Thread] = []
    until = deadline - _TO_RECORD_S

    def deliver(notice: UserNotice, to: Destination, limit_s: float) -> None:
        try:
            transports.deliver(to, notice, context.environ, limit_s)
        except transports.DeliveryError as error:
            problems[notice.key, to.place] = f"{to.name}: {error}"
        else:
            del problems[notice.key, to.place]

    for notice in mine:
        done = read_delivered_destination_indices(paths.notice(notice.key))
        for to in (to for to in destinations if to.place not in done):
            problems[notice.key, to.place] = f"{to.name}: no answer in time"
            limit_s = max(_LEAST_S, until - time.monotonic())
            # The resolver, and a slow answer, know no time limit.
            thread = threading.Thread(target=deliver, args=(notice, to, limit_s), daemon=True)
            thread.start()
            threads.append(thread)
    for thread in threads:
        with suppress(RuntimeError):
            thread.join(max(_LEAST_S, until - time.monotonic()))
    left = dict(problems)  # as it is now: a late thread may still change it
    for notice in mine:
        files = paths.notice(notice.key)
        failed = {place: said for (key, place), said in left.items() if key == notice.key}
        has = read_delivered_destination_indices(files) | {to.place for to in destinations} - failed.keys()
        record_notice_delivery(files, has, all_of_them=not failed, problems=failed.values())
    return list(left.values())
