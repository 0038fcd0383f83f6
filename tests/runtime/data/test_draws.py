"""What datasets draw follows from the sample, and from which `run.batches` asks for it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_worlds import start_ranks
from torch.utils.data import IterableDataset

from hpckit.errors import UsageError
from hpckit.model.parallel.sample_order import SampleOrder
from hpckit.runtime.data.batches import BatchOptions, RunBatches, make_batches

from .test_batches import Draws, Numbers, Place, took

LENGTH, BATCH = 20, 6
DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy": lambda: float(np.random.rand()),  # noqa: NPY002  # what user code draws from
    "torch": lambda: float(torch.rand(())),
}


class Shuffled(IterableDataset[Any]):
    """Shuffles an epoch as it begins; draws a number for each sample, and between two."""

    def __init__(self, source: str, where: str) -> None:
        self.draw, self.where = DRAWS[source], where
        self.order: list[int] = []

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[Any]:
        return self.begin(0)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        del epoch
        if self.where in {"set_epoch", "both"}:
            self.order = self.shuffled()

    def shuffled(self) -> list[int]:
        """Return an order that is drawn."""
        keys = [self.draw() for _ in range(LENGTH)]
        return sorted(range(LENGTH), key=keys.__getitem__)

    def begin(self, number: int) -> Iterator[Any]:
        """Return an iterator that begins at a sample, of the kind that is asked for."""
        match self.where:
            case "iterator":
                return map(self.sample, self.shuffled()[number:])
            case "chain":
                return chain(self.lazily(number), ())
            case "set_epoch":
                return map(self.sample, self.order[number:])
        return self.lazily(number)

    def lazily(self, number: int) -> Iterator[Any]:
        """Shuffle when the first sample is taken."""
        order = self.shuffled()
        for index in order[number:]:
            yield self.sample(index)
            self.draw()

    def sample(self, index: int) -> Any:
        """Return an index with a number that is drawn."""
        return torch.tensor([index, self.draw()], dtype=torch.float64)


class Jumping(Shuffled):
    """Can begin at a sample."""

    def iter_from(self, number: int) -> Iterator[Any]:
        """Begin at a sample."""
        return self.begin(number)


WHERE = ("generator", "iterator", "chain", "set_epoch", "both")


def read(dataset: Any, ranks: int, steps: range, workers: int = 0) -> list[Any]:
    """Return what all ranks read in some steps, in order, as a new process reads it."""
    parts = []
    for rank in range(ranks):
        place = Place(data_rank=rank, data_size=ranks)
        options = BatchOptions(batch_size=BATCH, workers=workers)
        parts.append(took(make_batches(dataset, options, place), place, steps))
    return [list(chain(*rows)) for rows in zip(*parts, strict=True)]


@settings(max_examples=60, deadline=None)
@given(
    source=st.sampled_from([*DRAWS]),
    where=st.sampled_from(WHERE),
    kind=st.sampled_from([Shuffled, Jumping]),
    ranks=st.integers(1, 4),
    begins=st.integers(0, 7),
)
def test_streams_that_draw_are_the_same_from_any_step_on_any_ranks(
    source: str, where: str, kind: type[Shuffled], ranks: int, begins: int
) -> None:
    """Order and numbers of each sample are those of one rank that reads from the beginning."""
    whole = read(kind(source, where), 1, range(8))
    assert read(kind(source, where), ranks, range(begins, 8)) == whole[begins:]
    rows = list(chain(*whole))
    for epoch in range(2):
        indices = [row[0] for row in rows[epoch * LENGTH : (epoch + 1) * LENGTH]]
        assert sorted(indices) == list(range(LENGTH))
        assert indices != list(range(LENGTH))
    assert len({row[1] for row in rows}) == len(rows)
    assert read(Jumping(source, where), 1, range(8)) == read(Shuffled(source, where), 1, range(8))


@pytest.mark.parametrize("where", WHERE)
def test_workers_change_nothing_of_a_stream_that_draws(where: str) -> None:
    """Each of two workers reads every second batch, by a jump."""
    whole = read(Jumping("random", where), 1, range(8))
    assert read(Jumping("random", where), 2, range(3, 8), workers=2) == whole[3:]


@pytest.mark.parametrize("dataset", [Draws(40), Shuffled("numpy", "generator")])
def test_second_batches_have_numbers_of_their_own(dataset: Any) -> None:
    """Another order and other draws, in each epoch; the first has those of the run's seed."""
    found: list[list[tuple[float, ...]]] = []
    for key in (0, 1, "replay", "1"):
        place = Place()
        made = make_batches(dataset, BatchOptions(batch_size=BATCH), place, key)
        rows: Any = chain(*took(made, place, range(12)))
        found.append([tuple(row) for row in rows])
    for one, other in ((0, 1), (0, 2), (1, 2), (1, 3), (0, 3)):
        same = [a[0] == b[0] for a, b in zip(found[one], found[other], strict=True)]
        assert sum(same) < len(same) / 3
        drawn = [{row[-1] for row in found[place]} for place in (one, other)]
        assert not drawn[0] & drawn[1]


def test_first_batches_keep_the_order_of_the_seed() -> None:
    """So a run's order does not change when a second dataset comes to it."""
    place = Place()
    order = SampleOrder(length=21, batch_size=8, seed=place.seed)
    made = make_batches(Numbers(21), BatchOptions(batch_size=8), place)
    wanted = [order.indices_of_samples(range(8 * step, 8 * step + 8)) for step in range(6)]
    assert took(made, place, range(6)) == wanted


def test_keys_follow_from_names_and_from_the_calls_without_one() -> None:
    """A named one between others changes no number, and a name holds at any place."""
    assert _keys(None, None, None) == [0, 1, 2]
    assert _keys(None, "replay", None) == [0, "replay", 1]
    assert _keys("1", None, "0") == ["1", 0, "0"]


def _keys(*names: str | None) -> list[int | str]:
    keys = RunBatches()
    return [keys.choose_batches_key(name, None) for name in names]


@given(
    before=st.lists(st.sampled_from([None, "a", "b"]), max_size=3, unique_by=lambda one: one or id),
    calls=st.lists(st.lists(st.just(None), max_size=3), min_size=1, max_size=5),
    begins=st.integers(0, 4),
)
def test_keys_of_a_step_are_the_same_after_a_restart(
    before: list[str | None], calls: list[list[None]], begins: int
) -> None:
    """Whatever was called in the steps before: a restart does not make those calls again."""

    def run(first: int) -> list[tuple[int, int | str]]:
        keys = RunBatches()
        for name in before:
            keys.choose_batches_key(name, None)
        steps = list(enumerate(calls))[first:]
        return [(step, keys.choose_batches_key(name, step)) for step, names in steps for name in names]

    assert run(begins) == [one for one in run(0) if one[0] >= begins]
    for step in range(len(calls)):
        own = [key for at, key in run(0) if at == step]
        assert len(set(own)) == len(own)


def test_a_name_is_given_once() -> None:
    """In a step, too; in the next one it may come again, and a loop's names are no others."""
    keys = RunBatches()
    keys.choose_batches_key("replay", None)
    for step in (None, 3):
        with pytest.raises(UsageError, match=r"name='replay'\) was already called") as error:
            keys.choose_batches_key("replay", step)
        assert error.value.hint
    assert [keys.choose_batches_key("test", step) for step in (3, 4)] == ["test", "test"]
    with pytest.raises(UsageError, match="name='test'"):
        keys.choose_batches_key("test", 4)


UNEVEN = """
import sys
from torch.utils.data import TensorDataset
import torch, hpckit

run = hpckit.attach()
data = TensorDataset(torch.arange(12))
if run.is_main:
    run.batches(data, batch_size=4, name=sys.argv[1] or None)
batches = run.batches(data, batch_size=4)
for step in run.steps(3):
    rows = next(batches)[0].tolist()
    print("rows", step, *rows)
    own = run.batches(data, batch_size=4)
    print("in step", step, *next(own)[0].tolist())
"""


@pytest.mark.training
@pytest.mark.parametrize("name", ["", "preview"])
def test_ranks_that_number_batches_differently_are_refused(tmp_path: Path, name: str) -> None:
    """They would train on samples twice and never; what only some ranks read gets a name."""
    script = tmp_path / "train.py"
    script.write_text(UNEVEN)
    ends = start_ranks(script, 2, name)
    if not name:
        assert all(end.code for end in ends)
        assert "called run.batches() 2 times without a name, others did not" in ends[0].output
        return
    assert [end.code for end in ends] == [0, 0], ends[0].output
    for kind in ("rows", "in step"):
        lines = [re.findall(rf"{kind} \d (\d+) (\d+)", end.output) for end in ends]
        seen = sorted(int(row) for rank in lines for pair in rank for row in pair)
        assert seen == list(range(12))


@pytest.mark.parametrize("name", ["", 3, b"x"])
def test_what_is_no_name_is_refused(name: Any) -> None:
    """With what to write."""
    with pytest.raises(UsageError, match="name=") as error:
        BatchOptions(batch_size=1, name=name)
    assert "replay" in str(error.value.hint)
