"""Promises about runs that are told to leave as soon as they have restored: nothing is charged."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from hpckit.model.failure import ExitReason, StateKept, ToldBy
from hpckit.model.launch import Checkpoint
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.environ import rank_info
from hpckit.runtime.rank.checkpointing import SaveInterval, StepCheckpoints
from hpckit.runtime.rank.step_boundary import StepBoundary
from hpckit.runtime.rank.steps import StepLoop

ALONE = rank_info({})


class Attempts:
    """The attempts of a run of one rank that saves every fourth step of twenty."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.epoch = folder, 0
        self.opened: list[Checkpointer] = []

    def begin(self) -> StepLoop:
        """Begin the next attempt."""
        self.epoch += 1
        checkpointer = Checkpointer(self.folder, CheckpointSettings(epoch=self.epoch))
        self.opened.append(checkpointer)
        checkpoints = StepCheckpoints(
            checkpointer=checkpointer,
            objects={"model": torch.nn.Linear(2, 2)},
            save_interval=SaveInterval(settings=Checkpoint(interval_steps=4), clock=time.monotonic),
            logger=logging.getLogger("test"),
        )
        return StepLoop(
            total=20,
            samples_per_step=1,
            boundary=StepBoundary(info=ALONE, link=None),
            checkpoints=checkpoints,
            logger=logging.getLogger("test"),
            grace=timedelta(seconds=5),
        )

    def leave_at(self, steps: int) -> int:
        """Restore, do so many steps, be told to leave; returns where the attempt began."""
        loop = self.begin()
        todo = loop.restore()
        for step in todo[:steps]:
            assert loop.save_and_leave_as_agreed(step, veto=False) is None
        loop.boundary.told_by = ToldBy.signal
        farewell = loop.save_and_leave_as_agreed(todo[steps], veto=False)
        assert farewell is not None
        assert (farewell.reason, farewell.kept) == (ExitReason.left, StateKept.saved)
        return todo[0]


@pytest.fixture
def attempts(tmp_path: Path) -> Iterator[Attempts]:
    """Return the attempts of a run; what they opened is closed."""
    made = Attempts(tmp_path)
    yield made
    for one in made.opened:
        one.close()


def test_leaving_right_after_a_restore_does_not_cost_the_checkpoint(attempts: Attempts) -> None:
    """However often a run is preempted before its first step, it goes on where it was."""
    assert attempts.leave_at(9) == 0
    assert [attempts.leave_at(0) for _ in range(4)] == [9, 9, 9, 9]


def test_deaths_right_after_a_restore_still_count(attempts: Attempts) -> None:
    """A checkpoint that the run dies of twice is tried last, also between orderly leaves."""
    attempts.leave_at(5)
    attempts.leave_at(4)
    begun = []
    for _ in range(2):
        begun.append(attempts.begin().restore()[0])  # and dies
        attempts.leave_at(0)
    assert begun == [9, 9]
    assert attempts.leave_at(0) == 5
