"""Stages: the parts of a launch that follow each other, and which of their runs belong together.

Responsible for which runs a run follows; it must not know what became of them. The runs of a stage
are numbered one after the other, in the order of the sweep's points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from hpckit.values import dataclass


class DependencyType(StrEnum):
    """When a run of a stage may begin: Slurm's words for how the stage before has to end."""

    afterok = "afterok"
    """all runs of the stage before have completed"""
    aftercorr = "aftercorr"
    """the run of the same point has completed"""
    afterany = "afterany"
    """all runs of the stage before have ended, whatever their result"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a launch: `count` runs from index `first`.

    `after` is how it follows the stage before it; of the first one it says nothing.
    """

    name: str
    first: int
    count: int
    after: DependencyType = DependencyType.afterok

    @property
    def runs(self) -> range:
        """The indices of its runs."""
        return range(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDependency:
    """That a job of a launch waits for another one: the index of that job, and for what of it."""

    job: int
    kind: DependencyType


def find_stage_of_run(stages: Sequence[Stage], run: int) -> int:
    """Return the place of a run's stage among all; raises LookupError where it is in none."""
    for place, stage in enumerate(stages):
        if run in stage.runs:
            return place
    raise LookupError(f"run {run} belongs to no stage")


def find_stage_dependency_of_run(stages: Sequence[Stage], run: int) -> DependencyType | None:
    """Return how a run follows the stage before its own; None where it follows nothing."""
    place = find_stage_of_run(stages, run) if stages else 0
    return stages[place].after if place else None


def list_prerequisite_runs(stages: Sequence[Stage], run: int) -> range:
    """Return the runs that a run waits for; none in the first stage, and without stages."""
    place = find_stage_of_run(stages, run) if stages else 0
    if not place:
        return range(0)
    before, own = stages[place - 1], stages[place]
    if own.after is DependencyType.aftercorr:
        return _range_of_one_run(before, run - own.first)
    return before.runs


def map_earlier_stages_to_runs(stages: Sequence[Stage], run: int) -> Mapping[str, range]:
    """Return the runs of all earlier stages that a run belongs with, by the stages' names.

    Of a stage with as many runs as its own it is the one of the same point, else all.
    """
    place = find_stage_of_run(stages, run) if stages else 0
    if not place:
        return {}
    own = stages[place]
    return {
        stage.name: _range_of_one_run(stage, run - own.first) if stage.count == own.count else stage.runs
        for stage in stages[:place]
    }


def _range_of_one_run(stage: Stage, position: int) -> range:
    return range(stage.first + position, stage.first + position + 1)


def add_prerequisite_runs(stages: Sequence[Stage], runs: Sequence[int]) -> tuple[int, ...]:
    """Return these runs and all that they wait for, directly or not, in order."""
    found = set(runs)
    for _ in stages:
        ranges = {list_prerequisite_runs(stages, run) for run in found}
        found |= {run for range_ in ranges for run in range_}
    return tuple(sorted(found))
