"""Ranks that die or stand still, on a real Slurm: restarted in place, with the same losses."""

from __future__ import annotations

import pytest
from integration.training import STEPS, Training, first
from tiers import thorough

pytestmark = [pytest.mark.slurm, pytest.mark.faults]
pytest_plugins = ["integration.training_fixtures"]

HANGS_EARLY = ("runtime.hang_min_s=4", "runtime.hang_first_s=12")


def restarted(training: Training, calm: dict[int, float], fault: str, cause: str) -> None:
    """Assert that one new round in the same attempt made up for the fault."""
    training.completed()
    assert training.causes() == [cause, None]
    ended, _ = training.rounds()
    assert ended.action == "new_round"
    assert training.losses == first(calm, STEPS)
    assert [fault["fault"] for fault in training.faults()] == [fault]
    again = training.steps[training.steps.index(ended.failure["step"] - 1) + 1]
    assert 0 <= ended.failure["step"] - again <= 10


@thorough
@pytest.mark.main
def test_killed_rank_costs_a_round_and_an_interval(training: Training, calm: dict[int, float]) -> None:
    """SIGKILL of a rank on the second node: restored in the same allocation, same losses."""
    training.launch("chaos=['kill rank=1 step=17']")
    restarted(training, calm, "kill rank=1 step=17", "signal")
    ended, _ = training.rounds()
    assert (ended.failure["rank"], ended.failure["step"]) == (1, 17)


def test_crashed_rank_costs_a_round(training: Training, calm: dict[int, float]) -> None:
    """A segfault of rank 0, which writes and serves the others, is survived alike."""
    training.launch("chaos=['segfault rank=0 step=17']")
    restarted(training, calm, "segfault rank=0 step=17", "crash")
    ended, _ = training.rounds()
    assert "SIGSEGV" in ended.failure["message"]


@pytest.mark.parametrize("fault", ["stop", "hang", "hang_gil"])
def test_rank_that_stands_still_is_named_and_restarted(
    training: Training, calm: dict[int, float], fault: str
) -> None:
    """Frozen, waiting, or holding the GIL: found by its silence, with the stacks of all ranks.

    Of all that can answer: one that the kernel has stopped cannot, and its state tells enough.
    """
    words = f"{fault} rank=1 step=27"
    training.launch(f"chaos=['{words}']", *HANGS_EARLY)
    restarted(training, calm, words, "hang")
    ended, _ = training.rounds()
    _, node = training.nodes_by_round()[0]
    assert (ended.failure["rank"], ended.failure["node"]) == (1, node), ended.failure
    stacks = list((training.folder / "attempts/001/rounds/000").glob("*stack*"))
    assert len(stacks) == (1 if fault == "stop" else 2), stacks
    assert ("stopped" in ended.failure["message"]) == (fault == "stop"), ended.failure


LOOP = ("chaos=['kill rank=1 step=12 times=always']", "recovery.node_failures=9")


def test_crash_loop_is_stopped_with_its_reason(training: Training) -> None:
    """A rank that dies at the same step whenever it gets there ends the run at the third time."""
    training.launch(*LOOP)
    run = training.over()
    assert (run["state"], run["attempt"]) == ("failed", 1), run
    assert training.causes() == ["signal"] * 3
    reason = training.rounds()[-1].failure["message"]
    assert "the same failure 3 times without getting further" in reason


def test_crash_loop_is_stopped_across_requeues(training: Training) -> None:
    """A requeue in between does not make a crash loop new: it is the run's third failure."""
    training.launch(*LOOP)
    training.wait(lambda: len(training.events("round_started")) == 2, "the second round begins")
    training.strike("requeue")
    run = training.over()
    assert (run["state"], run["attempt"]) == ("failed", 2), run
    causes = training.causes()
    assert set(causes) == {"notice", "signal"}
    assert causes.count("signal") == 3
    reason = training.rounds()[-1].failure["message"]
    assert "the same failure 3 times without getting further" in reason
