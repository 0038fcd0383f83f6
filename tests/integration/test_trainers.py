"""Lightning, the Hugging Face Trainer and Accelerate on a real Slurm, with hpckit's line."""

import os
import shutil
import signal

import pytest
from integration.training import Training
from tiers import thorough
from trained_batches import LIBRARIES, STEPS, TRAINED, list_effective_batches, read_rows

pytestmark = [pytest.mark.slurm, pytest.mark.faults, thorough]
pytest_plugins = ["integration.training_fixtures"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_trainer_loses_no_batch_by_a_kill_and_a_preemption(library: str, training: Training) -> None:
    """Over two nodes: each batch is trained once, with the losses of a plain script, to the bit."""
    pytest.importorskip(library)
    shutil.copy(TRAINED / "recorded.py", training.project.folder)
    shutil.copy(TRAINED / f"with_{library}.py", training.project.folder / "train.py")
    words = ("experiment=command", "command=python train.py", "cluster=sandbox", "resources.nodes=2")
    training.project.json("launch", *words, "checkpoint.interval_steps=3")
    work = training.folder / "work"

    def reached(start: str, step: int) -> bool:
        rows = read_rows(work, "broken", 1)
        return bool(rows) and rows[-1]["start"] == start and rows[-1]["step"] >= step

    training.wait(lambda: reached("1.0", 4), "the first round has trained 4 steps")
    os.kill(read_rows(work, "broken", 1)[-1]["pid"], signal.SIGKILL)
    training.wait(lambda: reached("1.1", 8), "the second round has trained 8 steps")
    training.strike("preempt partition=urgent")
    training.completed(attempts=2)
    assert training.causes() == ["signal", "preempted", None]
    for rank in range(2):
        rows = read_rows(work, "broken", rank)
        whole = list_effective_batches(read_rows(work, "whole", rank))
        assert len(whole) == 2 * STEPS
        assert list_effective_batches(rows) == whole
        last = max(row["step"] for row in rows if row["start"] == "1.1")
        assert next(row["step"] for row in rows if row["start"] == "2.0") == last + 1
