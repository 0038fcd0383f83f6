"""Says which notices were kept and not sent, why, and what to do about it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from hpckit.context import Context
from hpckit.model.counted import format_count
from hpckit.model.run import RunRecord, RunView
from hpckit.model.settings import VARIABLE, NoticeKind, Notify
from hpckit.operations.next_step import launch_reference
from hpckit.planning.notices import notice_kind_for_final_state
from hpckit.record.launches import Launch, load_run_settings
from hpckit.record.layout import NoticePaths
from hpckit.record.notices import read_notice_sending_problems, read_unsent_user_notices
from hpckit.report.notice import build_launch_over_notice_key, build_run_notice_key

_LONGEST_S = 12.0
"""A little longer than a supervisor may take to send."""

_LOOK_S = 0.1


def format_unsent_warnings(problems: Sequence[str], notify: Notify, named: str) -> list[str]:
    """Return a warning for each kind of problem; there is one problem for each notice.

    `named` is the launch in commands.
    """
    return [
        f"warning: {format_count(count, 'notice')} not sent, but kept: {problem}; "
        + _suggest_how_to_send(notify, named)
        for problem, count in Counter(problems).items()
    ]


def _suggest_how_to_send(notify: Notify, named: str) -> str:
    verb = f"hpckit status {named}"
    if notify.file is not None:
        return f"once {notify.file} is corrected, `{verb}` sends them"
    return (
        f"to send them: export {VARIABLE} as for the launch, then {verb}; "
        f"to discard them: {VARIABLE}=exec:true {verb}"
    )


def report_unsent_notices(launch: Launch, views: Sequence[RunView], context: Context) -> None:
    """After a wait for these runs, wait until due notices are sent, and say which were not sent."""
    if launch.stranger is not None:
        return
    notify = load_run_settings(launch, 0)[0].notify
    due = [launch.paths.notice(key) for key in _list_due_notice_keys(launch, views, notify)]
    if not due:
        return
    deadline = time.monotonic() + _LONGEST_S
    while not all(map(_is_sent_or_failed, due)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    problems = [
        problem
        for notice in read_unsent_user_notices(launch.paths)
        for problem in read_notice_sending_problems(launch.paths.notice(notice.key))
    ]
    for remark in format_unsent_warnings(problems, notify, launch_reference(launch, context)):
        context.note(remark)


def _list_due_notice_keys(launch: Launch, views: Sequence[RunView], notify: Notify) -> Iterator[str]:
    for view in views:
        kind = notice_kind_for_final_state(view.state)
        if kind is not None and kind in notify.events:
            yield build_run_notice_key(kind, view.record.index, attempt_end_key_suffix(view.record))
    if NoticeKind.finished in notify.events and len(views) == len(launch.runs):
        yield build_launch_over_notice_key(sum(view.record.attempt for view in views))


def attempt_end_key_suffix(record: RunRecord) -> str:
    """Return what tells the end of an attempt apart from other events of its run."""
    return f"-{record.attempt:03d}"


def _is_sent_or_failed(notice: NoticePaths) -> bool:
    return notice.sent_marker_file.exists() or (
        bool(read_notice_sending_problems(notice)) and not notice.sending_claim_file.exists()
    )
