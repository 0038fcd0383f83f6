"""The state of a run whose next job waits for the end of its present one."""

from __future__ import annotations

from dataclasses import replace

from hpckit.model.run import Observation, RunView
from hpckit.model.states import RunState


def carried_on(view: RunView, successor: Observation | None) -> RunView:
    """Return the view of a run, by its successor's job if the present job is over.

    While the present job is alive, it is the run's job. After that, the run's job is the successor,
    waiting or started, unless the run has completed or the successor has ended itself (cancelled or
    lost). A successor that has begun an attempt is already in the record.
    """
    if successor is None or successor.state.ended or view.record.job == successor.job:
        return view
    if view.state is RunState.completed or not view.settled:
        return view
    waiting = replace(view.record.waiting(), job=successor.job, restart_count=0)
    return RunView(record=waiting, observation=successor, asked=True)
