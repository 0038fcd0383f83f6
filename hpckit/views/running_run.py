"""The one run that is meant by a verb for running runs."""

from __future__ import annotations

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.record.lookup import Selection
from hpckit.views.launch_view import Ask, launch_view

_SHOWN = 10


def running_run(selection: Selection, context: Context, asked: str) -> RunView:
    """Return the selected run, or the only one of the launch that is running.

    `asked` is what can be done with running runs alone, such as `entered`. Raises UsageError if the
    run is not running, or if several are.
    """
    launch, index = selection.launch, selection.index
    indices = None if index is None else [index]
    view = launch_view(launch, context, ask=Ask.open_runs, indices=indices)
    running = [one for one in view.runs if one.state is RunState.running]
    if len(running) == 1:
        return running[0]
    if running:
        names = ", ".join(one.record.id for one in running[:_SHOWN])
        more = f" and {len(running) - _SHOWN} more" if len(running) > _SHOWN else ""
        raise UsageError(
            f"launch {launch.id} has several running runs", hint=f"name one of {names}{more}"
        )
    if len(view.runs) == 1:
        (only,) = view.runs
        raise UsageError(
            f"run {only.record.id} is {only.state}: only a running run can be {asked}",
            hint=f"`hpckit status {only.record.id}` says more, `hpckit logs` what it printed",
        )
    raise UsageError(
        f"no run of launch {launch.id} is running", hint="`hpckit status` shows how they stand"
    )
