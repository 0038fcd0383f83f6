"""Asks the supervisor of a running run what its ranks are doing, and waits for the answer."""

from __future__ import annotations

from dataclasses import dataclass

from hpckit.context import Context
from hpckit.errors import RunError
from hpckit.model.failure import StacksAnswer
from hpckit.model.run import RunRecord
from hpckit.record.lookup import Selection
from hpckit.runtime.stacks_request import read_answer, request_stacks
from hpckit.views.awaited_answer import await_answer
from hpckit.views.running_run import running_run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStacks:
    """What the ranks of a run were doing."""

    record: RunRecord
    answer: StacksAnswer


def ask_stacks(selection: Selection, context: Context) -> RunStacks:
    """Return the stacks of all ranks of the selected run, which continues.

    Raises UsageError if it is not running, RunError if it ends meanwhile, or its
    supervisor does not answer.
    """
    launch = selection.launch
    record = running_run(selection, context, "asked for its stacks").record
    paths = launch.paths.run(record.index).attempt(record.attempt)
    try:
        request = request_stacks(paths, context.now())
    except OSError as error:
        raise RunError(f"cannot write {paths.stacks_requests}: {error.strerror}") from error
    answer = await_answer(lambda: read_answer(paths, request), launch, record, context)
    return RunStacks(record=record, answer=answer)
