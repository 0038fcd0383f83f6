"""Promises of `parallel.batch=scale` with real ranks: 4, 3, 1 and 4 of 4 that were asked for."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from rank_worlds import start_ranks
from tiers import thorough

from hpckit.model.parallel.sample_order import SampleOrder

pytestmark = pytest.mark.training

FULL, BATCH, LENGTH = 4, 12, 31
SIZES = ((4, 5), (3, 9), (1, 14), (4, 18))
"""Numbers of ranks, each with the step before which it ends."""

TRAIN = f"""
import json, sys
from dataclasses import replace

import torch
from torch.utils.data import IterableDataset, TensorDataset

import hpckit
from hpckit.errors import UsageError
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import BatchRule, Parallel


class Stream(IterableDataset):
    def __len__(self):
        return {LENGTH}

    def __iter__(self):
        return iter(range({LENGTH}))


phase, ends, batch, rule = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
run = hpckit.attach(checkpoint_dir="kept")
run.seed = 11
run.full_layout = Layout(replicate={FULL})
run.parallel = Parallel(batch=BatchRule(rule))
found = {{}}
try:
    made = run.batches(TensorDataset(torch.arange({LENGTH})), batch_size=batch, workers=1)
    stream = run.batches(Stream(), batch_size=batch)
    model = run.parallelize(lambda: torch.nn.Linear(1, 1))
    run.state(model=model)
    for step in run.steps(ends):
        rows = {{"indexed": next(made)[0].tolist(), "stream": next(stream).tolist()}}
        numbers, pieces = list(made.numbers(step)), []

        def loss(outputs, targets):
            if outputs.requires_grad:  # not the check of the first step
                pieces.append(len(outputs))
            return torch.nn.functional.mse_loss(outputs, targets)

        inputs = torch.tensor(rows["indexed"]).unsqueeze(1).float()
        run.train_step(model, inputs, inputs, loss=loss, share=made.share)
        found[step] = {{
            "rows": rows, "numbers": numbers, "samples": run.samples, "pieces": pieces
        }}
except UsageError as error:
    found["error"] = [error.message, error.hint]
with open(f"rows-{{phase}}-{{run.rank}}.json", "w") as file:
    json.dump(found, file)
"""


def train(folder: Path, phase: str, size: int, *options: object) -> list[dict[str, Any]]:
    """Train with so many ranks; return what each found."""
    ends = start_ranks(folder / "train.py", size, phase, *map(str, options))
    assert [end.code for end in ends] == [0] * size, ends[0].output
    return [json.loads((folder / f"rows-{phase}-{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module", name="folder")
def folder_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the script."""
    folder = tmp_path_factory.mktemp("scaled")
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture(scope="module", name="trained")
def trained_fixture(folder: Path) -> list[list[dict[str, Any]]]:
    """Return what the ranks of each start found."""
    return [train(folder, str(phase), size, ends, BATCH, "scale") for phase, (size, ends) in enumerate(SIZES)]


@thorough
def test_steps_have_fewer_samples_and_each_comes_once(trained: list[list[dict[str, Any]]]) -> None:
    """Three rows a rank and step, whatever the size; together all samples in order."""
    order = SampleOrder(length=LENGTH, batch_size=BATCH, seed=11)
    numbers: list[int] = []
    indexed: list[int] = []
    stream: list[int] = []
    for ranks in trained:
        for step in ranks[0]:
            assert all(len(rank[step]["numbers"]) == BATCH // FULL for rank in ranks)
            assert all(rank[step]["pieces"] == [BATCH // FULL] for rank in ranks), "at once"
            assert ranks[0][step]["samples"] == 2 * len(numbers)
            numbers += chain(*(rank[step]["numbers"] for rank in ranks))
            indexed += chain(*(rank[step]["rows"]["indexed"] for rank in ranks))
            stream += chain(*(rank[step]["rows"]["stream"] for rank in ranks))
    wanted = BATCH // FULL * (5 * 4 + 4 * 3 + 5 * 1 + 4 * 4)
    assert numbers == list(range(wanted))
    assert indexed == order.indices_of_samples(range(wanted))
    assert stream == [number % LENGTH for number in range(wanted)]


def test_batch_kept_afterwards_goes_on_where_it_was(
    folder: Path, trained: list[list[dict[str, Any]]]
) -> None:
    """The position is that of samples, so that `keep` continues what `scale` began."""
    before = trained[-1][-1]["17"]["numbers"][-1]
    found = train(folder, "kept", 2, 20, BATCH, "keep")
    assert list(chain(*(one["18"]["numbers"] for one in found))) == [*range(before + 1, before + 1 + BATCH)]


def test_batch_that_cannot_be_scaled_is_refused(folder: Path) -> None:
    """A batch that is not whole rows for each data rank, with what would be."""
    (one,) = train(folder, "odd", 1, 2, 10, "scale")
    message, hint = one["error"]
    assert "10 rows cannot be divided evenly over 4 data ranks" in message
    assert "multiple of 4" in hint
