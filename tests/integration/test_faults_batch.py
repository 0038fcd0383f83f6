"""What becomes of batches on a real Slurm when a node dies and the run continues with fewer."""

from __future__ import annotations

import json
from itertools import chain

import pytest
from integration.training import Training

pytestmark = [pytest.mark.slurm, pytest.mark.faults]
pytest_plugins = ["integration.training_fixtures"]

NUMBERS = '''
"""Learns nothing; prints which samples each step had on this rank, and in which pieces."""
import json, time, torch
from torch import nn


def main(config, run):
    torch.set_num_threads(1)
    model = run.parallelize(lambda: nn.Linear(1, 1))
    run.state(model=model)
    data = torch.utils.data.TensorDataset(torch.arange(100.0).unsqueeze(1))
    batches = run.batches(data, batch_size=8, shuffle=False)
    waiting, go = run.folder / "waiting", run.folder / "go"
    for step in run.steps(40):
        if step == 30 and run.rank == 1 and not go.exists():
            waiting.touch()
            while not go.exists():
                time.sleep(0.05)
        (rows,) = next(batches)
        pieces = []

        def loss(outputs, targets):
            pieces.append(len(outputs))
            return nn.functional.mse_loss(outputs, targets)

        run.log(loss=run.train_step(model, rows, rows, loss=loss, share=batches.share))
        told = {"step": step, "numbers": list(batches.numbers(step)), "pieces": pieces}
        print("told", json.dumps(told), flush=True)
        time.sleep(0.2)
'''


def told(training: Training, round_: int, rank: int = 0) -> dict[int, dict[str, list[int]]]:
    """Return by step what a rank told."""
    lines = training.log(1, round_, rank).splitlines()
    found = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("told")]
    return {one["step"]: one for one in found}


@pytest.mark.parametrize(("rule", "each"), [("keep", [4, 4]), ("scale", [4])])
def test_lost_node_costs_no_sample(training: Training, rule: str, each: list[int]) -> None:
    """One rank of two is left: it computes the whole batch in pieces, or has half of it.

    No rank ever computes more rows at once than before, and no sample is lost or repeated.
    """
    training.project.write("keep.py", NUMBERS)
    training.launch("resources.min_nodes=1", f"parallel.batch={rule}")
    training.wait_for_step(12)
    _, lost = training.nodes()
    training.strike(f"kill_node node={lost}")
    training.go()
    training.completed()
    assert training.causes() == ["node_lost", None]
    first, again = [told(training, 0, rank) for rank in (0, 1)], told(training, 1)
    begun = min(again)
    assert begun % 5 == 0
    assert all(one["pieces"] == [4] for rank in first for one in rank.values())
    assert all(one["pieces"] == each for one in again.values())
    before = [[*first[0][step]["numbers"], *first[1][step]["numbers"]] for step in range(begun)]
    after = [again[step]["numbers"] for step in range(begun, 40)]
    seen = list(chain(*before, *after))
    assert seen == list(range(8 * begun + sum(each) * (40 - begun)))
