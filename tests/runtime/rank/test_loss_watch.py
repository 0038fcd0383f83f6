"""Promises of `recovery.nan_patience` about what counts as a loss that is not finite."""

from __future__ import annotations

import math
from typing import Any

import pytest
from runtime.conftest import Workshop, ranks
from tiers import thorough

from hpckit.errors import NonFiniteLossError
from hpckit.model.failure import Cause
from hpckit.model.launch import Recovery
from hpckit.model.states import RunState
from hpckit.runtime.rank.live_run import LoggedMetrics


@pytest.mark.parametrize("loss", [0.5, 2, True, "0.5000", "1e-3", "n/a", "", None, [1.0]])
def test_loss_that_is_a_number_or_words_is_fine(loss: object) -> None:
    """A loss that was written as a text is a number, too."""
    watch = LoggedMetrics(patience=1)
    watch.refuse_non_finite_losses(loss, 3)
    assert watch.bad_losses == 0


@pytest.mark.parametrize("loss", [math.nan, math.inf, "nan", "inf", "-inf", "NaN", "Infinity"])
def test_loss_that_is_not_finite_is_counted_until_one_is(loss: object) -> None:
    """With a patience of two the second one in a row ends the run."""
    watch = LoggedMetrics(patience=2)
    watch.refuse_non_finite_losses(loss, 1)
    watch.refuse_non_finite_losses(1.0, 2)
    watch.refuse_non_finite_losses(loss, 3)
    with pytest.raises(NonFiniteLossError, match="2 times in a row, last at step 4"):
        watch.refuse_non_finite_losses(loss, 4)


LOSSES = """
import hpckit
def main(config, run):
    {loop}
        run.log(loss={losses}[step])
        {leave}
if __name__ == "__main__":
    main({{}}, hpckit.attach())
"""
LAST = "[1.0, float('nan')]"
STEPS = "for step in run.steps(2):"
ATTACHED = {"entry_point": None, "command": "python task.py"}


@pytest.mark.training
@pytest.mark.parametrize(
    ("settings", "loop", "leave"),
    [
        ({}, STEPS, ""),
        (ATTACHED, STEPS, ""),
        pytest.param(ATTACHED, STEPS, "if step == 1: break", marks=thorough),
        (ATTACHED, "for step in range(2):", ""),
    ],
    ids=["function", "script", "break", "no steps"],
)
def test_run_without_state_fails_if_its_last_loss_is_not_finite(
    workshop: Workshop, settings: dict[str, Any], loop: str, leave: str
) -> None:
    """However it ends, and whether or not it keeps anything: the cause is `nan`."""
    code = LOSSES.format(loop=loop, losses=LAST, leave=leave)
    ended = workshop.attempt(code, **ranks(2, **settings))
    assert ended.record.state is RunState.failed, ended.output
    assert ended.record.failure is not None
    assert ended.record.failure.cause is Cause.nan, ended.record.failure
    assert "the last loss was not finite" in ended.record.failure.message


@pytest.mark.training
@pytest.mark.parametrize(
    ("losses", "patience"), [("[float('nan'), 1.0]", 100), (LAST, 0)], ids=["early", "allowed"]
)
def test_run_completes_if_its_last_loss_is_finite_or_any_is_allowed(
    workshop: Workshop, losses: str, patience: int
) -> None:
    """A loss that became finite again counts; so does every one with `nan_patience=0`."""
    code = LOSSES.format(loop=STEPS, losses=losses, leave="")
    ended = workshop.attempt(code, **ranks(1, recovery=Recovery(nan_patience=patience)))
    assert ended.record.state is RunState.completed, ended.output
    assert not [words for words in ended.record.warnings if "finite" in words]
