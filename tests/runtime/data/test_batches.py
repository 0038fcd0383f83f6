"""Promises of `run.batches` within one process, with real loaders and real workers."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from waiting import until

from hpckit.errors import UsageError
from hpckit.model.parallel.sample_order import SampleOrder
from hpckit.model.parallel.share import BatchShare, compute_batch_share
from hpckit.runtime.data.batches import Batches, BatchOptions, make_batches


@dataclass(slots=True)
class Place:
    """A data rank at a step."""

    step: int | None = None
    data_rank: int = 0
    data_size: int = 1
    seed: int = 5
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    timed_phases: list[str] = field(default_factory=list)

    def share(self, batch_size: int) -> BatchShare:
        """Return its share."""
        return compute_batch_share(batch_size, self.data_rank, self.data_size)

    def batches_before(self, step: int) -> Fraction:
        """Return as many batches as steps."""
        return Fraction(step)

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Note the phase."""

        @contextmanager
        def noted() -> Iterator[None]:
            self.timed_phases.append(name)
            yield

        return noted()


class Numbers(Dataset[int]):
    """Samples that are their own index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """A stream of numbers; `length` is what it says to have, `yields` what it has."""

    def __init__(self, yields: int, length: int | None = None) -> None:
        self.yields, self.length, self.epoch, self.read = yields, length, 0, 0

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError
        return self.length

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for number in range(self.yields):
            self.read += 1
            yield 1000 * self.epoch + number


class Jumping(Stream):
    """A stream that can begin at a sample."""

    def iter_from(self, number: int) -> Iterator[int]:
        """Begin at a sample."""
        for at in range(number, self.yields):
            self.read += 1
            yield 1000 * self.epoch + at


class Draws(Numbers):
    """Samples with a random number from each generator."""

    def __getitem__(self, index: int) -> Any:
        drawn = (random.random(), np.random.rand(), torch.rand(()).item())  # noqa: NPY002, S311
        return torch.tensor([index, *drawn], dtype=torch.float64)


def batches(dataset: Any, place: Place, **options: Any) -> Batches:
    """Return batches of 8."""
    return make_batches(dataset, BatchOptions(**{"batch_size": 8, **options}), place)


def took(made: Batches, place: Place, steps: Any) -> list[list[int]]:
    """Return the batches of these steps."""
    found = []
    for place.step in steps:
        found.append(next(made).tolist())
    made.close()
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_follow_the_order_of_samples(workers: int) -> None:
    """They are those of SampleOrder, step after step, over the border of an epoch."""
    place = Place()
    order = SampleOrder(length=21, batch_size=8, seed=5)
    wanted = [order.indices_of_samples(range(8 * step, 8 * step + 8)) for step in range(6)]
    assert took(batches(Numbers(21), place, workers=workers), place, range(6)) == wanted
    assert set(place.timed_phases) == {"data"}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_can_be_taken_from_any_step(workers: int) -> None:
    """After a restart, a skipped step or a second loop, a step has the batch that it always has."""
    place = Place()
    whole = took(batches(Numbers(21), place, workers=workers), place, range(8))
    made = batches(Numbers(21), place, workers=workers)
    jumps = [5, 6, 2, 3, 7]
    assert took(made, place, jumps) == [whole[step] for step in jumps]


@pytest.mark.parametrize("made", [Numbers(50), Stream(50, 50), Jumping(50, 50)])
def test_rows_of_data_ranks_make_up_the_batch_of_one(made: Any) -> None:
    """Uneven shares of three ranks are, in order, the batch of a rank that is alone."""
    alone = Place()
    whole = took(batches(made, alone, batch_size=8), alone, range(9))
    parts = []
    for rank in range(3):
        place = Place(data_rank=rank, data_size=3)
        parts.append(took(batches(made, place), place, range(9)))
    assert [list(chain(*rows)) for rows in zip(*parts, strict=True)] == whole


@pytest.mark.parametrize("workers", [0, 1])
def test_stream_with_a_length_has_epochs(workers: int) -> None:
    """Each epoch begins after `set_epoch`, and the last batch continues in the next one."""
    place = Place()
    found = took(batches(Stream(10, 10), place, workers=workers), place, range(4))
    wanted = [*range(10), *range(1000, 1010), *range(2000, 2010), 3000, 3001]
    assert list(chain(*found)) == wanted


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_that_jumps_reads_only_its_rows(workers: int) -> None:
    """With `iter_from` several workers may read, each its steps; of others a sample each time."""
    place = Place(data_rank=1, data_size=2)
    stream = Jumping(100, 100)
    found = took(batches(stream, place, workers=workers), place, range(20, 24))
    wanted = [range(1064, 1068), range(1072, 1076), range(1080, 1084), range(1088, 1092)]
    assert found == [list(one) for one in wanted]
    assert workers or stream.read == 4 * (1 + 4)


def test_stream_without_jumps_reads_up_to_its_position() -> None:
    """Beginning at step 5 costs reading what comes before, of the same epoch only."""
    place = Place()
    stream = Stream(30, 30)
    assert took(batches(stream, place), place, [5]) == [[1010 + at for at in range(8)]]
    assert stream.read == 18


@pytest.mark.parametrize(
    ("stream", "steps", "words"),
    [
        (Stream(20), 4, "Stream ended after 20 samples, and this step needs more"),
        (Stream(20, 22), 4, "has a length of 22, and ended after 20 samples of an epoch"),
        (Stream(20, 16), 4, "has a length of 16, and yields more samples"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_stream_that_breaks_its_word_is_an_error(
    stream: Stream, steps: int, words: str, workers: int
) -> None:
    """Too short, or not as long as it says: the step that needs the samples fails, no earlier."""
    place = Place()
    made = batches(stream, place, workers=workers)
    place.step = 0
    assert next(made).tolist() == list(range(8))
    with pytest.raises(UsageError, match=words) as error:
        took(made, place, range(1, steps))
    assert error.value.hint
    assert "Traceback" not in error.value.message


@pytest.mark.parametrize("workers", [0, 2])
def test_random_transforms_follow_from_the_sample(workers: int) -> None:
    """Draws are the same from step 3 on, with workers, on one of two ranks; no two are alike."""
    place = Place()
    whole = torch.tensor(took(batches(Draws(24), place), place, range(6)))
    again = torch.tensor(took(batches(Draws(24), place, workers=workers), place, range(3, 6)))
    assert torch.equal(whole[3:], again)
    half = Place(data_rank=1, data_size=2)
    assert torch.equal(whole[:, 4:], torch.tensor(took(batches(Draws(24), half), half, range(6))))
    assert all(len(set(whole[..., column].flatten().tolist())) == 48 for column in (1, 2, 3))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_leave_the_generators_of_the_run_alone(workers: int) -> None:
    """A run's dropout draws what it would draw without them: restored generators stay restored."""
    place = Place()
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    took(batches(Draws(24), place, workers=workers), place, range(3))
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert np.random.get_state()[1].tolist() == states[2]  # type: ignore[index]  # noqa: NPY002


class AtOnce(Numbers):
    """Reads many samples at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [index + 100 for index in indices]


def test_batches_use_collate_and_reading_at_once() -> None:
    """`__getitems__` is used as torch does, and `collate` gets the list of samples."""
    place = Place()
    made = batches(AtOnce(8), place, collate=sorted, shuffle=False)
    place.step = 0
    assert next(made) == list(range(100, 108))


def test_batches_count_epochs() -> None:
    """`len` is the whole batches of an epoch, and `epoch` that in which a step begins."""
    made = batches(Numbers(21), Place())
    assert len(made) == 2
    assert [made.epoch(step) for step in range(4)] == [0, 0, 0, 1]
    dropping = batches(Numbers(21), Place(), drop_last=True)
    assert [dropping.epoch(step) for step in range(4)] == [0, 0, 1, 1]
    endless = batches(Stream(21), Place())
    assert endless.epoch(7) == 0
    with pytest.raises(TypeError, match="without a length"):
        len(endless)


def test_batch_belongs_to_a_step() -> None:
    """Before the first step there is none, and a step has one."""
    place = Place()
    made = batches(Numbers(21), place)
    with pytest.raises(UsageError, match="before the first step"):
        next(made)
    place.step = 3
    next(made)
    with pytest.raises(UsageError, match="twice in step 3"):
        next(made)


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (Numbers(9), {"batch_size": 0}, r"batch_size=0\) is not a whole number of 1 or more"),
        (Numbers(9), {"batch_size": 8.0}, "batch_size=8.0"),
        (Numbers(9), {"workers": -1}, "workers=-1"),
        (Numbers(0), {}, "a dataset of 0 samples has no whole batch of 8"),
        (Numbers(7), {"drop_last": True}, "7 samples has no whole batch of 8"),
        (iter([1]), {}, "which is not a dataset"),
        (7, {}, "got a int, which is not a dataset"),
        (Stream(9, 0), {}, "a length of 0"),
        (Stream(9), {"shuffle": True}, "an order of its own"),
        (Stream(9), {"drop_last": True}, "drop_last=True is not possible"),
        (Stream(9), {"workers": 2}, "each of 2 workers would read the whole stream"),
    ],
)
def test_batches_refuse_what_cannot_be_exact(dataset: Any, options: dict[str, Any], words: str) -> None:
    """The error names the value, and has a hint."""
    with pytest.raises(UsageError, match=words) as error:
        batches(dataset, Place(), **options)
    assert error.value.hint


class Deadly(Numbers):
    """Kills the process that reads its sample 17."""

    def __getitem__(self, index: int) -> int:
        if index == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_killed_worker_is_an_error() -> None:
    """Not a hang: the step whose batch it was to read raises torch's error."""
    place = Place()
    made = batches(Deadly(24), place, workers=2, shuffle=False)
    with pytest.raises(RuntimeError, match=r"worker .*(exited unexpectedly|Killed)"):
        took(made, place, range(3))
    made.close()


def test_worker_that_dies_while_it_sends_is_the_same_error() -> None:
    """The pipe's own error names no worker, and would leave its signal to hit other code."""
    place = Place()
    made = batches(TensorDataset(torch.arange(24)), place)

    def torn() -> Iterator[Any]:
        yield from ()
        raise ConnectionResetError("reset by peer")

    place.step = 0
    made._ahead, made._expected = torn(), 0  # noqa: SLF001  # no dataset can tear its pipe in time
    with pytest.raises(RuntimeError, match="exited unexpectedly") as raised:
        next(made)
    assert isinstance(raised.value.__cause__, ConnectionResetError)


def test_closed_batches_leave_no_worker() -> None:
    """`close()` ends the workers in order, and a later `next` starts others."""
    place = Place()
    made = batches(TensorDataset(torch.arange(24)), place, workers=2)
    others = {process.pid for process in multiprocessing.active_children()}

    def workers() -> set[int | None]:
        return {process.pid for process in multiprocessing.active_children()} - others

    for place.step in (0, 1):
        next(made)
        assert len(workers()) == 2
        made.close()
        until(lambda: not workers())


@pytest.mark.parametrize("dataset", [Numbers(30), Stream(30, 30), Jumping(30)])
def test_reader_can_be_sent_to_a_worker_that_is_not_forked(dataset: Any) -> None:
    """In the middle of its work, too: the copy has the same batches."""
    reader = batches(dataset, Place()).reader
    reader[1]
    copy = pickle.loads(pickle.dumps(reader))  # noqa: S301  # our own
    assert copy[2].tolist() == reader[2].tolist()
