"""A run whose next job waits for the end of its present one: which of the two it is.

Responsible for that choice alone; it must not ask anybody for a state.
"""

from __future__ import annotations

from dataclasses import replace

from hpckit.model.run import Observation, RunView
from hpckit.model.states import RunState


def carried_on(view: RunView, successor: Observation | None) -> RunView:
    """Return the view of a run by its successor's job, once that is what there is of it.

    While the present job lives it is the run's job. After that it is the successor, waiting or
    started, unless the run has completed or the successor is over itself: dropped, or lost. A
    successor that has begun an attempt is in the record already.
    """
    if successor is None or successor.state.ended or view.record.job == successor.job:
        return view
    if view.state is RunState.completed or not view.settled:
        return view
    waiting = replace(view.record.waiting(), job=successor.job, restart_count=0)
    return RunView(record=waiting, observation=successor, asked=True)
