"""Which runs of later stages go on when runs of earlier ones are submitted again. Pure.

Responsible for what follows from that choice; it must not make it (planning.resume does).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hpckit.model.run import RunView
from hpckit.model.stages import DependencyType, Stage, followed, kind_of
from hpckit.model.states import RunState

Reasons = dict[int, tuple[RunView, str | None]]
"""For each run its view, and why it is left alone; None where it is submitted again."""


def with_stages(reasons: Reasons, stages: Sequence[Stage], going_on: Collection[str]) -> Reasons:
    """Return the reasons with the later stages in: those blocked go on, reports are made anew.

    `going_on` are the reasons of runs that are under way. A run that was blocked is submitted again
    where every run it follows has completed, is under way or is submitted again itself; one that
    has reported on all runs of a stage, where one of these is submitted again.
    """
    found = dict(reasons)
    known: dict[range, str | None] = {}
    for index in sorted(found):
        view, reason = found[index]
        kind = kind_of(stages, index)
        before = followed(stages, index)
        if view.blocked:
            if before not in known:
                known[before] = _held(before, found, going_on, view.blocked)
            found[index] = (view, known[before])
        elif kind is DependencyType.afterany and view.state is RunState.completed:
            again = any(_is_again(found, run) for run in before)
            found[index] = (view, None if again else reason)
    return found


def _held(
    before: range,
    found: Mapping[int, tuple[RunView, str | None]],
    going_on: Collection[str],
    why: str,
) -> str | None:
    for run in before:
        if run not in found:
            return f"it follows run {run}: resume that one, or the whole launch"
        view, reason = found[run]
        fine = reason is None or reason in going_on or view.state is RunState.completed
        if not fine:
            return f"it follows another run: {why}"
    return None


def _is_again(found: Mapping[int, tuple[RunView, str | None]], run: int) -> bool:
    return run in found and found[run][1] is None
