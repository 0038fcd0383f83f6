"""Sharing a batch out over ranks."""

import pytest

from hpckit.errors import ConfigError
from hpckit.experiments.digits import samples_per_rank


def test_share_of_is_the_same_for_every_rank() -> None:
    """A batch of 96 over 4 ranks is 24 for each."""
    assert samples_per_rank(96, 4) == 24


@pytest.mark.parametrize("batch_size", [0, -4, 10])
def test_share_of_refuses_what_cannot_be_shared_evenly(batch_size: int) -> None:
    """The error names the batch and the ranks, and the hint a way out."""
    with pytest.raises(ConfigError, match=f"batch_size={batch_size} .* 4 ranks") as caught:
        samples_per_rank(batch_size, 4)
    assert "multiple of 4" in caught.value.hint
