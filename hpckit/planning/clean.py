"""Which runs may be cleaned, decided from views. Pure.

A run that may be alive is never allowed.
"""

from __future__ import annotations

from collections.abc import Collection

from hpckit.model.run import RunView
from hpckit.model.states import RunState


def explain_why_clean_keeps_run(
    view: RunView, *, of_slurm: bool, doubtful: Collection[int] = ()
) -> str | None:
    """Return why nothing of a run may be removed, or None if it may be cleaned.

    `doubtful` are runs for which it is not known whether Slurm accepted them.
    """
    seen, record = view.observation, view.record
    if record.index in doubtful:
        return "it is not known whether Slurm accepted it: see `hpckit doctor`"
    if seen is not None and not seen.state.ended:
        return f"its Slurm job has not ended ({seen.state.text})"
    if view.alive:
        return "the process that runs it is alive"
    # Checked before `settled`: the run may have ended by our record, but been restarted by Slurm.
    if of_slurm and record.job and not view.asked and record.state is not RunState.completed:
        return "Slurm has not said whether its job has ended"
    if not view.can_no_longer_change:
        return "it may still begin" if view.state is RunState.pending else "it may be alive"
    return None
