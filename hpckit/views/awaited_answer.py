"""Waits for the answer of a running run's supervisor, which may end before it gives one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hpckit.context import Context
from hpckit.errors import RunError
from hpckit.model.run import RunRecord
from hpckit.model.states import RunState
from hpckit.record.launches import Launch, read_runs
from hpckit.runtime.requests import LOOK_S, WAIT_S

_ENDED = {
    RunState.completed: "completed",
    RunState.failed: "failed",
    RunState.cancelled: "was cancelled",
    RunState.interrupted: "was interrupted",
}
_RECORD_S = 5.0
"""How often a wait reads the run's record."""

Answer = TypeVar("Answer")


def await_answer(
    read: Callable[[], Answer | None], launch: Launch, asked: RunRecord, context: Context
) -> Answer:
    """Return the first answer that `read` gives to what a running run was asked.

    Raises RunError if the run ends before, or if no answer comes.
    """
    waited_s = 0.0
    while (answer := read()) is None:
        late = waited_s >= WAIT_S
        if late or waited_s % _RECORD_S < LOOK_S:
            _check_running(launch, asked)
        if late:
            raise RunError(
                f"the supervisor of run {asked.id} did not answer within {WAIT_S:.0f} s",
                hint=f"`hpckit status {asked.id}` says how the run stands; a supervisor of an "
                "earlier hpckit does not answer",
            )
        context.sleep(LOOK_S)
        waited_s += LOOK_S
    return answer


def _check_running(launch: Launch, asked: RunRecord) -> None:
    (record,) = read_runs(launch, [asked.index])
    if record.attempt == asked.attempt and record.state in _ENDED:
        raise RunError(
            f"run {asked.id} {_ENDED[record.state]} before it could answer",
            hint=f"`hpckit status {asked.id}` says more, `hpckit logs {asked.id}` what it printed",
        )
