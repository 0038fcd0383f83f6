"""Promises of `recovery.nan_patience` about what counts as a loss that is not finite."""

from __future__ import annotations

import math

import pytest

from hpckit.errors import NonFiniteLossError
from hpckit.runtime.rank.metric_reports import LossWatch


@pytest.mark.parametrize("loss", [0.5, 2, True, "0.5000", "1e-3", "n/a", "", None, [1.0]])
def test_loss_that_is_a_number_or_words_is_fine(loss: object) -> None:
    """A loss that was written as a text is a number, too."""
    watch = LossWatch(patience=1)
    watch.judge(loss, 3)
    assert watch.bad == 0


@pytest.mark.parametrize("loss", [math.nan, math.inf, "nan", "inf", "-inf", "NaN", "Infinity"])
def test_loss_that_is_not_finite_is_counted_until_one_is(loss: object) -> None:
    """With a patience of two the second one in a row ends the run."""
    watch = LossWatch(patience=2)
    watch.judge(loss, 1)
    watch.judge(1.0, 2)
    watch.judge(loss, 3)
    with pytest.raises(NonFiniteLossError, match="2 times in a row, last at step 4"):
        watch.judge(loss, 4)
