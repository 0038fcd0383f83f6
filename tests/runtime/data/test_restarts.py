"""Promises of `run.batches` over restarts at other numbers of ranks: real ranks, real kills."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from rank_worlds import start_ranks

from hpckit.model.parallel.sample_order import SampleOrder
from hpckit.runtime.generators import derive_seed

pytestmark = pytest.mark.training

STEPS, BATCH, LENGTH = 24, 10, 37
SIZES = ((4, 7), (3, 12), (2, 18), (4, STEPS))
"""Numbers of ranks, each with the step in which a rank is killed."""

TRAIN = f"""
import faulthandler, json, os, signal, sys, time

faulthandler.dump_traceback_later(150, exit=True)
from dataclasses import replace

import torch
from torch.utils.data import IterableDataset, TensorDataset

import hpckit


class Stream(IterableDataset):
    epoch = 0

    def __len__(self):
        return {LENGTH}

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return ({LENGTH} * self.epoch + number for number in range({LENGTH}))


class Jumping(Stream):
    def iter_from(self, number):
        return ({LENGTH} * self.epoch + at for at in range(number, {LENGTH}))


run = hpckit.attach(checkpoint_dir="kept")
run.checkpoint = replace(run.checkpoint, interval_steps=2)
run.seed = 11
numbers = TensorDataset(torch.arange({LENGTH}))
options = {{"batch_size": {BATCH}}}
made = {{
    "indexed": run.batches(numbers, **options),
    "indexed_workers": run.batches(numbers, workers=2, **options),
    "stream": run.batches(Stream(), **options),
    "stream_worker": run.batches(Stream(), workers=1, **options),
    "jumping_workers": run.batches(Jumping(), workers=2, **options),
}}
run.state(model=torch.nn.Linear(2, 1))
phase, dies = sys.argv[1], int(sys.argv[2])
with open(f"rows-{{phase}}-{{run.rank}}.jsonl", "w") as file:
    for step in run.steps({STEPS}):
        if step == dies and run.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        rows = {{}}
        for name, batches in made.items():
            batch = next(batches)
            rows[name] = (batch[0] if name.startswith("indexed") else batch).tolist()
        line = {{"step": step, "samples": run.samples, "rows": rows}}
        print(json.dumps(line), file=file, flush=True)
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with 4 ranks, 3, 2 and 4 again; a rank of all but the last is killed."""
    folder = tmp_path_factory.mktemp("trained")
    script = folder / "train.py"
    script.write_text(TRAIN)
    for phase, (world_size, dies) in enumerate(SIZES):
        ends = start_ranks(script, world_size, str(phase), str(dies))
        wanted = -9 if dies < STEPS else 0
        assert ends[1].code == wanted, ends[1].output
        assert (ends[0].code == 0) is (dies == STEPS), ends[0].output
    return folder


def lines(folder: Path, phase: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the lines of all ranks for each step that all of them did."""
    files = [folder / f"rows-{phase}-{rank}.jsonl" for rank in range(SIZES[phase][0])]
    every = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    yield from map(list, zip(*every, strict=False))


def batches_of(folder: Path, phase: int) -> dict[int, dict[str, list[int]]]:
    """Return by step and name the rows of all ranks, in the order of the ranks."""
    found: dict[int, dict[str, list[int]]] = defaultdict(dict)
    for ranks in lines(folder, phase):
        (step,) = {rank["step"] for rank in ranks}
        for name in ranks[0]["rows"]:
            found[step][name] = list(chain(*(rank["rows"][name] for rank in ranks)))
    return found


def test_every_size_continues_in_the_middle(trained: Path) -> None:
    """Each start goes on from a checkpoint, at another number of ranks, to its kill or the end."""
    for phase, (_, dies) in enumerate(SIZES):
        steps = sorted(batches_of(trained, phase))
        assert steps == list(range(steps[0], dies))
        assert (steps[0] > 0) is (phase > 0)


def test_every_step_has_the_samples_of_one_undisturbed_rank(trained: Path) -> None:
    """Indexed and streamed, with workers and without: the ranks' rows together are the batch."""
    order = SampleOrder(length=LENGTH, batch_size=BATCH, seed=11)
    second = SampleOrder(length=LENGTH, batch_size=BATCH, seed=derive_seed(11, "batches 1"))
    for phase in range(len(SIZES)):
        for step, found in batches_of(trained, phase).items():
            numbers = range(step * BATCH, (step + 1) * BATCH)
            assert found["indexed"] == order.indices_of_samples(numbers)
            assert found["indexed_workers"] == second.indices_of_samples(numbers)
            assert found["stream"] == found["stream_worker"] == list(numbers)
            assert found["jumping_workers"] == list(numbers)


def test_every_epoch_has_each_sample_once(trained: Path) -> None:
    """What was done last of each step: no sample is lost and none is used twice."""
    last: dict[int, dict[str, list[int]]] = {}
    for phase in range(len(SIZES)):
        last |= batches_of(trained, phase)
    for name in ("indexed", "indexed_workers"):
        seen = list(chain(*(last[step][name] for step in range(STEPS))))
        for epoch in range(len(seen) // LENGTH):
            assert sorted(seen[epoch * LENGTH : (epoch + 1) * LENGTH]) == list(range(LENGTH))


def test_samples_are_counted_by_themselves(trained: Path) -> None:
    """`run.samples` is that of all batches before the step, without samples_per_step."""
    for phase in range(len(SIZES)):
        for ranks in lines(trained, phase):
            for rank in ranks:
                assert rank["samples"] == 5 * BATCH * rank["step"]
