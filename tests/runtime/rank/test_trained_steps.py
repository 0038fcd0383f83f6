"""A step counts as done once it is trained, however a loop takes its steps.

Each loop is killed at some of its trainings, and continues from what was saved.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn

from hpckit.model.launch import Checkpoint
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.environ import rank_info
from hpckit.runtime.rank.checkpointing import SaveInterval, StepCheckpoints
from hpckit.runtime.rank.step_boundary import StepBoundary
from hpckit.runtime.rank.steps import StepLoop
from hpckit.runtime.rank.trained_steps import TrainedSteps

STEPS, ALONE = 9, rank_info({})


class Killed(BaseException):
    """What ends a rank in the midst of a step."""


@dataclass
class Attempt:
    """A training from what was saved last, which is killed at its training number `kill_at`."""

    folder: Path
    number: int
    kill_at: int | None = None
    total: int = STEPS
    said: list[str] = field(default_factory=list)
    trainings: int = 0

    def __post_init__(self) -> None:
        self.model = nn.Linear(2, 2)
        self.model.register_buffer("trained", torch.zeros(self.total))
        self.optimizer = torch.optim.SGD([self.model.weight], lr=0.1)
        self.slow = torch.optim.SGD([self.model.bias], lr=0.1)
        self.checkpointer = Checkpointer(self.folder, CheckpointSettings(epoch=self.number))
        objects = {"model": self.model, "optimizer": self.optimizer, "slow": self.slow}
        trained = TrainedSteps(warn=self.said.append)
        trained.watch_optimizers(objects.values())
        self.loop = StepLoop(
            total=self.total,
            samples_per_step=1,
            boundary=StepBoundary(info=ALONE, link=None),
            checkpoints=StepCheckpoints(
                checkpointer=self.checkpointer,
                objects=objects,
                save_interval=SaveInterval(settings=Checkpoint(interval_steps=1), clock=time.monotonic),
                logger=logging.getLogger("test"),
            ),
            logger=logging.getLogger("test"),
            grace=timedelta(seconds=5),
            trained=trained,
        )

    def steps(self) -> Iterator[int]:
        """Do what `run.steps` does."""
        for step in self.loop.restore():
            assert self.loop.save_and_leave_as_agreed(step, veto=False) is None
            self.loop.checkpoints.wait_for_save()  # type: ignore[union-attr]
            self.loop.trained.record_step_taken()  # as if that had taken no time
            yield step
        self.loop.end_after_all_steps(veto=False)

    def add(self, step: int) -> None:
        """Add the gradients of a step."""
        if self.trainings == self.kill_at:
            raise Killed
        self.trainings += 1
        self.model(torch.ones(1, 2)).sum().backward()
        self.model.trained[step] += 1  # type: ignore[operator,index]

    def train(self, *steps: int) -> None:
        """Train some steps by one update."""
        time.sleep(0.011)
        self.optimizer.zero_grad()
        for step in steps:
            self.add(step)
        self.update()

    def update(self) -> None:
        """Use the gradients."""
        self.optimizer.step()
        self.slow.step()


def usual(attempt: Attempt) -> None:
    """Train each step."""
    for step in attempt.steps():
        attempt.train(step)


def ahead(attempt: Attempt, count: int, pause_s: float) -> Iterator[int]:
    """Yield steps, of which some more have been taken already."""
    held: list[int] = []
    for step in attempt.steps():
        held.append(step)
        time.sleep(pause_s)
        if len(held) > count:
            yield held.pop(0)
    yield from held


def prefetched(attempt: Attempt) -> None:
    """Take a step while the batch of the next one is fetched."""
    for step in ahead(attempt, 1, 0.011):
        attempt.train(step)


def far_ahead(attempt: Attempt) -> None:
    """Take two more."""
    for step in ahead(attempt, 2, 0.0):
        attempt.train(step)


def in_groups(attempt: Attempt) -> None:
    """Train three steps by one update."""
    steps = attempt.steps()
    for group in iter(lambda: list(itertools.islice(steps, 3)), []):
        attempt.train(*group)


def listed(attempt: Attempt) -> None:
    """Take all steps at once."""
    for step in list(attempt.steps()):
        attempt.train(step)


def added_up(attempt: Attempt) -> None:
    """Add up the gradients of three steps."""
    for step in attempt.steps():
        time.sleep(0.011)
        attempt.add(step)
        if step % 3 == 2:
            attempt.update()
            attempt.model.zero_grad()


def added_up_and_kept(attempt: Attempt) -> None:
    """Keep gradients until the next ones are needed."""
    for step in attempt.steps():
        time.sleep(0.011)
        if step % 3 == 0:
            attempt.model.zero_grad(set_to_none=False)
        attempt.add(step)
        if step % 3 == 2:
            attempt.update()


def added_up_for_one(attempt: Attempt) -> None:
    """Let one optimizer wait, and the other not."""
    for step in attempt.steps():
        attempt.add(step)
        attempt.optimizer.step()
        attempt.optimizer.zero_grad()
        if step % 3 == 2:
            attempt.slow.step()
            attempt.slow.zero_grad()


def added_up_beside_averages(attempt: Attempt) -> None:
    """Put other weights in and out while gradients wait."""
    for step in attempt.steps():
        attempt.add(step)
        if step % 3 == 2:
            attempt.update()
            attempt.model.zero_grad()
        with torch.no_grad():
            own = attempt.model.weight.clone()
            attempt.model.weight.zero_().copy_(own)


def overflown(attempt: Attempt) -> None:
    """Skip the first updates, as torch.amp.GradScaler does."""
    for step in attempt.steps():
        attempt.add(step)
        if step > 1:
            attempt.update()
        attempt.model.zero_grad()


def evaluating(attempt: Attempt) -> None:
    """Begin with steps that train nothing, behind a generator that takes none ahead."""
    for step in (step for step in attempt.steps()):
        if step > 2:
            attempt.train(step)
        else:
            time.sleep(0.011)
            attempt.model.trained[step] += 1  # type: ignore[operator,index]


def filling(attempt: Attempt) -> None:
    """Begin with steps that take no time."""
    for step in attempt.steps():
        if step > 2:
            attempt.train(step)
        else:
            attempt.model.trained[step] += 1  # type: ignore[operator,index]


def in_own_groups(attempt: Attempt) -> None:
    """Collect three steps in the body of the loop."""
    held = []
    for step in attempt.steps():
        held.append(step)
        if len(held) == 3:
            attempt.train(*held)
            held.clear()


def kept_for_one_step(attempt: Attempt) -> None:
    """Train each step after the next one has come."""
    last = None
    for step in attempt.steps():
        if last is not None:
            attempt.train(last)
        last = step
    if last is not None:
        attempt.train(last)


def carried_over(attempt: Attempt) -> None:
    """Use gradients of two batches, of which a step has three: at times one is left."""
    for step in attempt.steps():
        time.sleep(0.011)
        attempt.add(step)
        for batch in range(3):
            if batch > 0:
                attempt.model(torch.ones(1, 2)).sum().backward()
            if (3 * step + batch) % 2 == 1:
                attempt.update()
                attempt.model.zero_grad(set_to_none=step % 4 == 0)


def updating_first(attempt: Attempt) -> None:
    """Use gradients in the step after theirs."""
    for step in attempt.steps():
        time.sleep(0.011)
        attempt.update()
        attempt.model.zero_grad()
        attempt.add(step)
    attempt.update()


LOOPS = [
    *(usual, prefetched, far_ahead, in_groups, listed, added_up, added_up_and_kept),
    *(added_up_for_one, added_up_beside_averages, overflown, evaluating, filling),
    *(in_own_groups, kept_for_one_step, carried_over, updating_first),
]


@pytest.mark.parametrize("loop", LOOPS)
def test_each_step_is_trained_once(tmp_path: Path, loop: Callable[[Attempt], None]) -> None:
    """Also if the rank is killed in a training, and the weights are those of no kill."""
    weights = []
    for kill_at in (None, 0, 1, 4, 6, 8):
        folder = tmp_path / str(kill_at)
        torch.manual_seed(1)
        first = Attempt(folder, 1, kill_at)
        last = first
        try:
            loop(first)
        except Killed:
            first.checkpointer.close()
            torch.manual_seed(1)
            last = Attempt(folder, 2)
            loop(last)
        last.loop.end_within_last_step(veto=False)
        assert last.loop.ended_at == STEPS
        assert last.model.trained.tolist() == [1.0] * STEPS, kill_at  # type: ignore[operator]
        weights.append(last.model.weight.detach().clone())
    assert all(torch.equal(weight, weights[0]) for weight in weights)


def test_loop_that_takes_steps_ahead_is_told_so_once(tmp_path: Path) -> None:
    """And one that does not is told nothing."""
    untold = [one for one in LOOPS if one not in {prefetched, far_ahead, kept_for_one_step}]
    for loop, told in (*((one, 0) for one in untold), (far_ahead, 1)):
        attempt = Attempt(tmp_path / loop.__name__, 1)
        loop(attempt)
        attempt.loop.end_within_last_step(veto=False)
        assert len(attempt.said) == told, loop
    assert "runs 2 steps ahead" in attempt.said[0]


def test_loop_whose_optimizer_rests_is_saved(tmp_path: Path) -> None:
    """Steps that only collect data are done when the loop comes round."""
    attempt = Attempt(tmp_path, 1, total=12)
    held = []
    for step in attempt.steps():
        time.sleep(0.011)
        held.append(attempt.loop.checkpoints.has_saved_step(step))  # type: ignore[union-attr]
        if step > 10:
            attempt.train(step)
    assert held[1:] == [True] * 11


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_nobody_uses_keep_no_step_from_being_saved(tmp_path: Path, *, to_none: bool) -> None:
    """As a discriminator gets from the loss of its generator, which are zeroed before its next."""
    attempt = Attempt(tmp_path, 1)
    held = []
    for step in attempt.steps():
        held.append(attempt.loop.checkpoints.has_saved_step(step))  # type: ignore[union-attr]
        attempt.slow.zero_grad(set_to_none=to_none)
        attempt.train(step)
        attempt.optimizer.zero_grad()
        attempt.model(torch.ones(1, 2)).sum().backward()
        attempt.optimizer.step()
    assert held[2:] == [True] * (STEPS - 2)
    assert attempt.said == []


def test_gradients_that_always_wait_are_told_once(tmp_path: Path) -> None:
    """After 256 steps the state is saved as it is: better than nothing."""
    attempt = Attempt(tmp_path, 1, total=300)
    held = []
    for step in attempt.steps():
        held.append(attempt.loop.checkpoints.has_saved_step(step))  # type: ignore[union-attr]
        attempt.update()
        attempt.model.zero_grad()
        attempt.add(step)
    assert held[1:257] == [False] * 256
    assert held[258:] == [True] * 42
    (told,) = attempt.said
    assert "end a step after optimizer.step()" in told


def test_break_does_not_count_what_was_taken_ahead(tmp_path: Path) -> None:
    """Steps that a generator held when the loop was left were not trained."""
    attempt = Attempt(tmp_path, 1)
    for step in ahead(attempt, 2, 0.0):
        attempt.train(step)
        if step == 4:
            break
    attempt.loop.end_within_last_step(veto=False)
    assert attempt.loop.ended_at == 4


def test_loop_in_which_nothing_is_done_may_be_left(tmp_path: Path) -> None:
    """After 64 steps without any work the state is taken as it is."""
    attempt = Attempt(tmp_path, 1, total=70)
    for _ in attempt.steps():
        pass
    assert attempt.loop.ended_at == 70
