"""The digits experiment: what it promises of its data, its result and its repetition."""

from typing import Any

import pytest
import torch
from tiers import thorough

from hpckit.experiments import digits

pytestmark = pytest.mark.training

SMALL = {"epochs": 2, "width": 4}


def test_digits_two_ranks_reach_97_percent(trainer: Any) -> None:
    """Two ranks with the shipped settings name at least 97 % of the test images rightly."""
    metrics = trainer.train("digits", 2)
    assert metrics["test_accuracy"][-1][1] >= 0.97
    first, last = metrics["loss"][0][1], metrics["loss"][-1][1]
    assert last < first / 5


@thorough
def test_digits_same_seed_gives_the_same_metrics(trainer: Any) -> None:
    """The same seed on the same number of ranks logs the very same numbers."""
    again = trainer.train_again("digits", 2, **SMALL)
    assert again == trainer.train("digits", 2, **SMALL)


@thorough
def test_digits_other_seed_gives_other_metrics(trainer: Any) -> None:
    """The seed reaches the split, the order and the weights: another one logs other numbers."""
    assert trainer.train("digits", 1, **SMALL)["loss"] != trainer.train("digits", 1, seed=1, **SMALL)["loss"]


def test_digits_one_rank_sees_the_same_batches_as_two(trainer: Any) -> None:
    """The batch is that of all ranks: one rank and two log the same losses, up to rounding."""
    alone, together = (trainer.train("digits", ranks, **SMALL)["loss"] for ranks in (1, 2))
    assert [step for step, _ in alone] == [step for step, _ in together]
    torch.testing.assert_close(
        [loss for _, loss in alone], [loss for _, loss in together], rtol=1e-3, atol=1e-4
    )


def test_load_splits_all_images_without_overlap() -> None:
    """Training and test set together are the 1797 images, each once."""
    training, test = digits.load_digit_sets(3, torch.device("cpu"))
    images = torch.cat([training.images, test.images]).flatten(1)
    everything, _ = torch.sort(images.double() @ torch.arange(64).double().exp2().sqrt())
    whole = digits.load_digit_sets(4, torch.device("cpu"))
    other = torch.cat([whole[0].images, whole[1].images]).flatten(1)
    everything_else, _ = torch.sort(other.double() @ torch.arange(64).double().exp2().sqrt())
    assert len(test.labels) == digits.TEST_IMAGES
    assert len(images) == 1797
    torch.testing.assert_close(everything, everything_else)


def test_permutation_follows_from_the_seed_alone() -> None:
    """The order of images is the same on every rank, whatever was drawn before."""
    torch.manual_seed(1)
    first = digits.seeded_permutation(50, 7)
    torch.rand(3)
    assert torch.equal(first, digits.seeded_permutation(50, 7))
    assert sorted(first.tolist()) == list(range(50))
