"""Numbers that JSON lacks: `--json` is JSON in any case."""

from __future__ import annotations

import json
from typing import Any

import pytest

VERBS = {
    "results": ("results",),
    "status": ("status",),
    "diff": ("diff", ".0", ".1"),
    "results --over": ("results", "--over", "seed"),
    "show --config": ("show", ".0", "--config"),
    "report": ("report",),
}


def _refused(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


@pytest.mark.parametrize("verb", VERBS)
def test_json_has_null_for_numbers_that_json_lacks(desk: Any, writer: Any, verb: str) -> None:
    """NaN and infinite metrics are null, for any reader of JSON; the other values stay."""
    launch = desk.freeze(sweep=(("seed=1",), ("seed=2",)), params={"x": float("inf")})
    for index, loss in enumerate((float("nan"), 0.5)):
        attempt = writer(launch=launch, index=index)
        attempt.start(job="")
        attempt.metrics(10, loss=loss, bound=float("-inf"))
        attempt.complete()
    said = desk.say(*VERBS[verb], "--json")
    document = json.loads(said.out, parse_constant=_refused)
    if verb == "results":
        found = [run["metrics"] for run in document["runs"]]
        assert found == [{"loss": None, "bound": None}, {"loss": 0.5, "bound": None}]
    if verb == "report":
        assert document["best"]["run"] == launch.runs[1].id


def test_csv_keeps_numbers_that_json_lacks(desk: Any, writer: Any) -> None:
    """`results --csv` has `nan` and `-inf`, as programs that read CSV know them."""
    launch = desk.freeze()
    attempt = writer(launch=launch)
    attempt.start()
    attempt.metrics(10, loss=float("nan"), bound=float("-inf"))
    attempt.complete()
    assert ",nan,-inf," in desk.say("results", "--csv").out
