"""Asks a running run's supervisor, and waits for its answer; it may end before it gives one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hpckit.context import Context
from hpckit.errors import RunError, UsageError
from hpckit.model.blocked import HAS_ENDED
from hpckit.model.counted import format_short_list
from hpckit.model.plain import to_plain
from hpckit.model.run import RunRecord, RunView
from hpckit.model.states import RunState
from hpckit.patterns import lazy_pattern
from hpckit.record.launches import Launch, read_run_records
from hpckit.record.lookup import Selection
from hpckit.record.store import append_json_lines
from hpckit.runtime.mailbox import LOOK_S, WAIT_S, Mailbox, Named
from hpckit.views.launch_view import Ask, build_launch_view

_RECORD_S = 5.0
"""How often a wait reads the run's record."""

_NOT_IN_NAMES = lazy_pattern(r"[^0-9a-zA-Z]")

Answer = TypeVar("Answer")
NamedRequest = TypeVar("NamedRequest", bound=Named)
NamedAnswer = TypeVar("NamedAnswer", bound=Named)


def create_request_name(context: Context) -> str:
    """Return a name for a request that no other has."""
    token = _NOT_IN_NAMES.sub("", context.token())[:32] or "0"
    return f"{context.now():%Y%m%dT%H%M%SZ}-{token}"


def ask_supervisor_and_wait(
    mailbox: Mailbox[NamedRequest, NamedAnswer],
    request: NamedRequest,
    launch: Launch,
    asked: RunRecord,
    context: Context,
) -> NamedAnswer:
    """Return the answer to a request.

    Raises RunError as `append_supervisor_request` and `await_answer_of_run` do.
    """
    append_supervisor_request(mailbox.requests, to_plain(request))
    return wait_for_supervisor_answer(lambda: mailbox.get_answer(request.id), launch, asked, context)


def append_supervisor_request(file: Path, request: Mapping[str, Any]) -> int:
    """Append a request to a file; return its number. Raises RunError."""
    try:
        return append_json_lines(file, request)
    except OSError as error:
        raise RunError(f"cannot write {file}: {error.strerror}") from error


def wait_for_supervisor_answer(
    read: Callable[[], Answer | None], launch: Launch, asked: RunRecord, context: Context
) -> Answer:
    """Return the first answer that `read` gives to what a running run was asked.

    Raises RunError if the run ends before, or if no answer comes.
    """
    waited_s = 0.0
    while (answer := read()) is None:
        late = waited_s >= WAIT_S
        if late or waited_s % _RECORD_S < LOOK_S:
            _refuse_if_run_ended(launch, asked)
        if late:
            raise RunError(
                f"the supervisor of run {asked.id} did not answer within {WAIT_S:.0f} s",
                hint=f"`hpckit status {asked.id}` says how the run stands; a supervisor of an "
                "earlier hpckit does not answer",
            )
        context.sleep(LOOK_S)
        waited_s += LOOK_S
    return answer


def _refuse_if_run_ended(launch: Launch, asked: RunRecord) -> None:
    (record,) = read_run_records(launch, [asked.index])
    if record.attempt == asked.attempt and record.state.ended:
        raise RunError(
            f"run {asked.id} {HAS_ENDED[record.state]} before it could answer",
            hint=f"`hpckit status {asked.id}` says more, `hpckit logs {asked.id}` what it printed",
        )


_SHOWN = 10


def find_single_running_run(
    selection: Selection, context: Context, asked: str, otherwise: Callable[[RunView], bool] = lambda _: False
) -> RunView:
    """Return the selected run, or the only one of the launch that is running.

    `asked` is what can be done with running runs alone, such as `entered`; if none is running, with
    those that `otherwise` takes. Raises UsageError if not exactly one run is such a run.
    """
    launch = selection.launch
    view = build_launch_view(launch, context, ask=Ask.open_runs, indices=selection.indices)
    running = [run for run in view.runs if run.state is RunState.running]
    running = running or [run for run in view.runs if otherwise(run)]
    if len(running) == 1:
        return running[0]
    if running:
        names = format_short_list([run.record.id for run in running], _SHOWN)
        raise UsageError(f"launch {launch.id} has several such runs", hint=f"name one of {names}")
    if len(view.runs) == 1:
        run, state = view.runs[0].record.id, view.runs[0].state
        raise UsageError(
            f"run {run} is not running ({state}): only a running run can be {asked}",
            hint=f"`hpckit status {run}` says more, `hpckit logs` what it printed",
        )
    raise UsageError(f"no run of launch {launch.id} is running", hint="`hpckit status` shows how they stand")
