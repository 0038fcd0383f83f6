"""Promises of runs that train on `run.batches`: real attempts, real kills of ranks and workers."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from runtime.conftest import Workshop
from runtime.conftest import ranks as ranks_of
from tiers import thorough
from waiting import LIMIT_S, until

from hpckit.model.failure import Cause
from hpckit.model.launch import Checkpoint, Recovery
from hpckit.model.parallel.sample_order import SampleOrder
from hpckit.model.parallel.settings import Parallel
from hpckit.record.launches import Launch

pytestmark = pytest.mark.training

STEPS, BATCH, LENGTH = 12, 6, 20

TRAIN = f"""
import os, signal, time, torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, get_worker_info

class Noisy(Dataset):
    def __init__(self, dies):
        self.dies = dies
        self.numbers = torch.randn({LENGTH}, 4, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return {LENGTH}

    def __getitem__(self, index):
        if index == self.dies and get_worker_info().id >= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.numbers[index] + torch.randn(4)

def main(config, run):
    batches = run.batches(
        Noisy(config.params.get("dies")), batch_size={BATCH}, workers=config.params["workers"]
    )
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout()))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    run.state(model=model, optimizer=optimizer)
    for step in run.steps({STEPS}):
        mark = run.folder / "killed"
        if config.params.get("kill") == step and run.rank == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (run.folder / f"at-{{step}}").touch()
        loss = model(next(batches)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(config.params.get("slow", 0))
        run.log(loss=loss, samples=run.samples)
"""


def losses(launch: Launch) -> dict[int, float]:
    """Return the last loss that was logged for each step."""
    files = sorted(launch.paths.run(0).attempts.glob("*/metrics.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert all(row["samples"] == BATCH * row["step"] for row in rows)
    return {row["step"]: row["loss"] for row in rows}


def settings(ranks: Any, **params: Any) -> dict[str, Any]:
    """Return settings for two ranks that save every third step."""
    kept: dict[str, Any] = ranks(
        2, recovery=Recovery(restarts={"signal": 1}), checkpoint=Checkpoint(interval_steps=3), params=params
    )
    return kept


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Return the losses of a run without workers that nothing happened to."""
    workshop = Workshop(tmp_path_factory.mktemp("calm") / "project")
    ended = workshop.attempt(TRAIN, **settings(ranks_of, workers=0))
    assert ended.code == 0, ended.log(0)
    found = losses(ended.launch)
    assert len(found) == STEPS
    return found


@thorough
def test_killed_rank_changes_no_loss(workshop: Any, ranks: Any, calm: dict[int, float]) -> None:
    """With dropout, random transforms and workers: losses are those of a calm run, bit for bit."""
    killed = workshop.attempt(TRAIN, **settings(ranks, workers=2, kill=8, slow=0.1))
    assert killed.code == 0, killed.log(0, round_=1)
    assert killed.record.round == 1
    assert "restored step=" in killed.log(0, round_=1)
    assert losses(killed.launch) == calm


@thorough
def test_notice_changes_no_loss(workshop: Any, ranks: Any, calm: dict[int, float]) -> None:
    """Told to stop, the ranks leave with their workers; the next attempt has the next batch."""
    launch = workshop.freeze(TRAIN, **settings(ranks, workers=2, slow=0.15))
    process = workshop.start(launch)
    until((launch.paths.run(0).folder / "at-4").exists)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143, output
    assert 4 <= max(losses(launch)) < STEPS - 1
    process = workshop.start(launch)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert losses(launch) == calm


def test_killed_worker_fails_the_run(workshop: Any, ranks: Any) -> None:
    """Not a hang: the run fails by an exception that names the worker."""
    ended = workshop.attempt(TRAIN, **settings(ranks, workers=2, dies=3))
    assert ended.code != 0
    assert ended.record.failure.cause is Cause.signal
    assert "DataLoader worker (pid" in ended.record.failure.message


ROWS = f"""
import json, multiprocessing
from torch.utils.data import Dataset

class Numbers(Dataset):
    def __len__(self):
        return {LENGTH}

    def __getitem__(self, index):
        return index

def main(config, run):
    assert run.mesh["tensor"].size() == 2
    batches = run.batches(Numbers(), batch_size={BATCH}, workers=1)
    rows = [next(batches).tolist() for _ in run.steps(8)]
    assert not multiprocessing.active_children(), "workers outlived the loop"
    (run.folder / f"rows-{{run.rank}}").write_text(json.dumps(rows))
"""


def test_ranks_of_one_model_have_the_same_rows(workshop: Any, ranks: Any) -> None:
    """With two ranks to each replica: both have its rows, and the replicas together the batch."""
    ended = workshop.attempt(ROWS, **ranks(4, parallel=Parallel(tensor=2)), seed=3)
    assert ended.code == 0, ended.log(0)
    folder = ended.launch.paths.run(0).folder
    rows = [json.loads((folder / f"rows-{rank}").read_text()) for rank in range(4)]
    assert rows[0] == rows[1]
    assert rows[2] == rows[3]
    order = SampleOrder(length=LENGTH, batch_size=BATCH, seed=3)
    for step, (one, other) in enumerate(zip(rows[0], rows[2], strict=True)):
        assert one + other == order.indices_of_samples(range(BATCH * step, BATCH * (step + 1)))
