"""Promises of `hpckit plan --from RUN`, which follows what was measured of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from report_launches import swept_launch, troubled_launch

from hpckit.errors import HpckitError

pytestmark = pytest.mark.whole

MODEL = ("--model", "gpt2")
WORDS = (*MODEL, "--gpu", "A100-80")
BATCH = ("--global-batch", "64")


def planned(desk: Any, *words: str) -> dict[str, Any]:
    """Return what `plan --json` says of this model."""
    found: dict[str, Any] = json.loads(desk.say("plan", *WORDS, *words, "--json").out)
    return found


def test_plan_from_a_run_says_what_it_measured(desk: Any) -> None:
    """It had four ranks, each with a GPU that used 61 GB, and steps of 1.95 s without saves.

    Its GPUs were H100s: a plan of other ones is as far off as it was for these.
    """
    troubled_launch(desk)
    found = planned(desk, "--from", "llm", *BATCH)
    by = found["calibration"]
    assert by["run"].startswith("llm-")
    assert by["run"].endswith(".0")
    assert found["gpus"] == 4
    assert (by["step_s"], by["memory_bytes"]) == (pytest.approx(1.95), 61_000_000_000)
    assert by["step_ratio"] == pytest.approx(1.95 / by["predicted_step_s"])
    larger = planned(desk, "--from", "llm", "--gpus", "64", *BATCH)
    plain = planned(desk, "--gpus", "64", *BATCH, "--precision", "fp32")
    assert plain["calibration"] is None
    assert larger["step_s"] == pytest.approx(plain["step_s"] * by["step_ratio"])
    like = (*MODEL, "--gpu", "H100-SXM", "--gpus", "4", *BATCH, "--precision", "fp32")
    own = json.loads(desk.say("plan", *like, "--json").out)
    assert own["step_s"] == pytest.approx(by["predicted_step_s"])


def test_text_names_the_run_and_both_numbers(desk: Any) -> None:
    """And says nothing of other people's runs then. So does the search."""
    troubled_launch(desk)
    for more in ((), ("--search",)):
        said = desk.say("plan", *WORDS, *BATCH, "--from", "llm", *more).out
        assert "calibrated by llm-" in said
        assert "a step took 1.95 s, predicted" in said
        assert "a GPU used 56.8 GiB, predicted" in said
        assert "published run" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from", "llm", "--step-s", "1"), "--step-s does not go with --from"),
        (("--from", "llm", "--zero", "3"), "--zero does not go with --from"),
        (("--from", "sweep"), "has 3 runs"),
        (("--from", "sweep.1"), "cannot calibrate a plan"),
        (("--from", "nothing"), "nothing"),
        (("--from", "llm"), "does not say how many samples"),
    ],
)
def test_run_that_cannot_calibrate_is_refused(desk: Any, words: tuple[str, ...], said: str) -> None:
    """With one error that says why, and what to do."""
    troubled_launch(desk)
    swept_launch(desk, 3)
    with pytest.raises(HpckitError, match=said) as caught:
        desk.say("plan", *WORDS, *words)
    assert caught.value.hint


def test_from_does_not_go_with_an_experiment(desk: Any) -> None:
    """Its model is counted, and its time is not predicted."""
    with pytest.raises(HpckitError, match="--from does not go with experiment=charlm"):
        desk.say("plan", "experiment=charlm", "--gpu", "H200", "--from", "llm")
