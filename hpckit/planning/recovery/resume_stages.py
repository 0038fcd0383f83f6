"""Which runs of later stages are submitted again when runs of earlier ones are. Pure.

planning.recovery.resume chooses the runs; this module adds what follows from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpckit.model.run import RunView
from hpckit.model.stages import DependencyType, Stage, followed, kind_of
from hpckit.model.standing import Judgement, Standing
from hpckit.model.states import RunState

Judged = dict[int, tuple[RunView, Judgement]]
"""The view and the judgement of each run."""

_AGAIN = Judgement(standing=Standing.resumable)


def with_stages(judged: Judged, stages: Sequence[Stage]) -> Judged:
    """Return the judgements of runs with the runs they follow taken into account.

    A blocked run is submitted again if every run it follows has completed, is under way, or is
    submitted again itself. A run that has reported on all runs of a stage is submitted again if one
    of those is.
    """
    found = dict(judged)
    known: dict[range, Judgement] = {}
    for index in sorted(found):
        view, own = found[index]
        before = followed(stages, index)
        if view.blocked:
            if before not in known:
                known[before] = _blocked(before, found, view.blocked)
            found[index] = (view, known[before])
        elif _has_reported(view, stages) and any(_is_again(found, run) for run in before):
            found[index] = (view, _AGAIN)
        else:
            found[index] = (view, own)
    return found


def _has_reported(view: RunView, stages: Sequence[Stage]) -> bool:
    kind = kind_of(stages, view.record.index)
    return kind is DependencyType.afterany and view.state is RunState.completed


def _blocked(before: range, found: Mapping[int, tuple[RunView, Judgement]], why: str) -> Judgement:
    for run in before:
        if run not in found:
            return Judgement(standing=Standing.detached, follows=run)
        if not _lets_begin(found[run][1].standing):
            return Judgement(standing=Standing.blocked, detail=why)
    return _AGAIN


def _lets_begin(standing: Standing) -> bool:
    """Whether a run that follows one of this standing may wait for it."""
    return standing.under_way or standing in {Standing.resumable, Standing.completed}


def _is_again(found: Mapping[int, tuple[RunView, Judgement]], run: int) -> bool:
    return run in found and found[run][1].standing is Standing.resumable
