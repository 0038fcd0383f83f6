"""Says which notices were kept and not sent, why, and what to do about it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from hpckit.context import Context
from hpckit.model.counted import counted
from hpckit.model.run import RunRecord, RunView
from hpckit.model.settings import VARIABLE, NoticeKind, Notify
from hpckit.operations.next_step import reference
from hpckit.planning.notices import kind_of_rest
from hpckit.record.launches import Launch, load_settings
from hpckit.record.layout import NoticePaths
from hpckit.record.notices import problems_of, unsent_notices
from hpckit.report.notice import key_of_launch, key_of_run

_LONGEST_S = 12.0
"""A little longer than a supervisor may take to send."""

_LOOK_S = 0.1


def remarks(problems: Sequence[str], notify: Notify, named: str) -> list[str]:
    """Return a warning for each kind of problem; there is one problem for each notice.

    `named` is the launch in commands.
    """
    return [
        f"warning: {counted(count, 'notice')} not sent, but kept: {problem}; "
        + _remedy(notify, named)
        for problem, count in Counter(problems).items()
    ]


def _remedy(notify: Notify, named: str) -> str:
    verb = f"hpckit status {named}"
    if notify.file is not None:
        return f"once {notify.file} is right, `{verb}` sends them"
    return (
        f"to send them: export {VARIABLE} as for the launch, then {verb}; "
        f"to discard them: {VARIABLE}=exec:true {verb}"
    )


def say_unsent(launch: Launch, views: Sequence[RunView], context: Context) -> None:
    """After a wait for these runs: await the sending of what is due, and say what was not sent."""
    if launch.stranger is not None:
        return
    notify = load_settings(launch, 0)[0].notify
    due = [launch.paths.notice(key) for key in _due(launch, views, notify)]
    if not due:
        return
    deadline = time.monotonic() + _LONGEST_S
    while not all(map(_settled, due)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    problems = [
        problem
        for notice in unsent_notices(launch.paths)
        for problem in problems_of(launch.paths.notice(notice.key))
    ]
    for remark in remarks(problems, notify, reference(launch, context)):
        context.note(remark)


def _due(launch: Launch, views: Sequence[RunView], notify: Notify) -> Iterator[str]:
    """Give the keys of the notices that the ends of these runs are due for."""
    for view in views:
        kind = kind_of_rest(view.state)
        if kind is not None and kind in notify.events:
            yield key_of_run(kind, view.record.index, key_of_end(view.record))
    if NoticeKind.finished in notify.events and len(views) == len(launch.runs):
        yield key_of_launch(sum(view.record.attempt for view in views))


def key_of_end(record: RunRecord) -> str:
    """Return what tells the end of an attempt apart from other events of its run."""
    return f"-{record.attempt:03d}"


def _settled(notice: NoticePaths) -> bool:
    return notice.sent.exists() or (bool(problems_of(notice)) and not notice.sending.exists())
