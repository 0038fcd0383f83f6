"""Which runs may be cleaned: pure, from views.

Responsible for never naming a run that may be alive; it must not look at files, nor remove any.
"""

from __future__ import annotations

from collections.abc import Collection

from hpckit.model.run import RunView
from hpckit.model.states import RunState


def spared(view: RunView, *, of_slurm: bool, doubtful: Collection[int] = ()) -> str | None:
    """Return why nothing of a run may be removed, None where something may.

    `doubtful` are runs of which it is not known whether Slurm accepted them.
    """
    seen, record = view.observation, view.record
    if record.index in doubtful:
        return "it is not known whether Slurm accepted it: see `hpckit doctor`"
    if seen is not None and not seen.state.ended:
        return f"Slurm has not ended its job ({seen.state.text})"
    if view.alive:
        return "the process that carries it lives"
    # Before `settled`: by our record alone it may have ended, and Slurm may have begun it anew.
    if of_slurm and record.job and not view.asked and record.state is not RunState.completed:
        return "Slurm has not said whether its job has ended"
    if not view.settled:
        return "it may still begin" if view.state is RunState.pending else "it may be alive"
    return None
