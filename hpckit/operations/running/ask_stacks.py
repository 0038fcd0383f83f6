"""Asks the supervisor of a running run what its ranks are doing, and waits for the answer."""

from __future__ import annotations

from hpckit.context import Context
from hpckit.model.failure import StacksAnswer
from hpckit.model.plain import to_plain
from hpckit.model.run import RunRecord
from hpckit.record.lookup import Selection
from hpckit.record.process import this_host
from hpckit.runtime.mailbox import read_stacks
from hpckit.views.awaited_answer import await_answer, put_request, running_run


def ask_stacks(selection: Selection, context: Context) -> tuple[RunRecord, StacksAnswer]:
    """Return the selected run, which continues, and the stacks of all its ranks.

    Raises UsageError if it is not running, RunError if it ends meanwhile, or its
    supervisor does not answer.
    """
    launch = selection.launch
    record = running_run(selection, context, "asked for its stacks").record
    paths = launch.paths.run(record.index).attempt(record.attempt)
    asked = {"at": to_plain(context.now()), "host": this_host()}
    request = put_request(paths.stacks_requests, asked)
    return record, await_answer(lambda: read_stacks(paths, request), launch, record, context)
