"""What `hpckit plan --search` answers, and the line that plans its fastest layout again."""

from __future__ import annotations

import shlex

import pytest
from features.capacity.planned import SEARCH, flat, planned, said

pytestmark = pytest.mark.whole


@pytest.mark.parametrize(("axis", "size"), [("tensor", 8), ("shard", 4)])
def test_search_keeps_what_is_given(axis: str, size: int) -> None:
    """Layouts that fit, the fastest first, also with a size that it would not try itself."""
    words = (*SEARCH, "--global-batch", "64", "--parallel", f"{axis}={size}")
    found = planned(*words, "--tokens", "1T")
    times = [one["step_s"] for one in found["fastest"]]
    assert times == sorted(times)
    assert len(times) > 1
    assert {one["layout"][axis] for one in found["fastest"]} == {size}
    text = said(*words, "--tokens", "1T")
    assert "layouts fit, with batches of 64 sequences of 8192 tokens" in text
    assert " days " in text
    longer = planned(*words, "--tokens", "2T")["fastest"][0]["days"]
    assert longer == pytest.approx(2 * found["fastest"][0]["days"])


def test_search_gives_the_whole_plan_of_the_fastest_layout() -> None:
    """With money, energy and power, and with the options that plan that layout again."""
    found = planned(*SEARCH, "--price-per-gpu-hour", "2")
    best = found["best"]
    assert found["fits"] is True
    assert best["cost"] == pytest.approx(2 * best["gpu_hours"])
    assert best["energy_j"] > 0
    assert best["facility_w"] > best["power_w"] > 0
    assert best["layout"] == found["fastest"][0]["layout"]
    again = planned(*SEARCH[:-1], *found["fastest"][0]["options"])
    assert again["layout"] == best["layout"]
    assert again["step_s"] == pytest.approx(best["step_s"])
    text = flat(*SEARCH, "--price-per-gpu-hour", "2")
    for word in (
        "cost ",
        "energy ",
        "GPU hours",
        "power ",
        "the fastest one is planned again by hpckit plan --model",
    ):
        assert word in text


@pytest.mark.parametrize(
    "words",
    [
        SEARCH[:-1],
        ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "16", "--zero", "3"),
        ("--model", "hidden=2048 layers=16 heads=16", "--gpu", "A100-80", "--gpus", "8"),
        ("--model", "gpt2", "--gpu", "A100-80 gpus_per_link=4", "--gpus", "8", "--pue", "1.3"),
        (*SEARCH[:-1], "--price-per-gpu-hour", "2", "--carbon-g-per-kwh", "300", "--loss", "plain"),
        (*SEARCH[:-1], "--node-w-per-gpu", "900", "--power-cap-w", "500", "--tokens", "1e12"),
    ],
)
def test_plan_that_is_planned_again_by_the_printed_words_is_the_same(words: tuple[str, ...]) -> None:
    """With every option of the search, quoted once."""
    text = flat(*words, "--search")
    line = text.partition("the fastest one is planned again by hpckit plan ")[2]
    again, found = planned(*shlex.split(line)), planned(*words, "--search")["best"]
    assert {**again, "defaults": None} == {**found, "defaults": None}


def test_search_without_a_result_says_how_far_off_it_is() -> None:
    """And what would help; it is an answer, not an error."""
    words = ("--model", "llama3-405b", "--gpu", "H100-SXM", "--gpus", "8", "--search")
    found = planned(*words)
    assert (found["found"], found["fits"], found["fastest"], found["best"]) == (0, False, [], None)
    assert found["smallest"]["memory"]["total"]["expected"] > 80 * 2**30
    enough = int(found["help"][0].removeprefix("--gpus ").partition(":")[0])
    fitting = planned(*words[:5], str(enough), "--search", "--recompute", "full")
    assert fitting["fits"] is True
    half = planned(*words[:5], str(enough // 2), "--search", "--recompute", "full")
    assert half["fits"] is False
    text = flat(*words)
    assert "the smallest needs" in text
    assert "--optimizer adam8bit" in text
