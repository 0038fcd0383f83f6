"""The loss of a step is that of the whole batch, whatever each rank, piece or microbatch has.

One world of four gloo ranks takes steps in one layout after the other, in float64.
"""

from __future__ import annotations

from typing import Any

import pytest
from tiers import in_tiers

RANKS = 4
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"layout": {"replicate": 4}},
    "fsdp": {"layout": {"shard": 4}},
    "tensor": {"layout": {"shard": 2, "tensor": 2}},
    "tensor alone": {"layout": {"tensor": 4}},
    "context x tensor": {"layout": {"context": 2, "tensor": 2}},
    "pipeline x tensor": {"layout": {"pipeline": 2, "tensor": 2}},
    "context": {"layout": {"context": 4}},
    "context x pipeline": {"layout": {"context": 2, "pipeline": 2}},
    "pipeline": {"layout": {"pipeline": 4}},
    "pipeline x fsdp": {"layout": {"pipeline": 2, "shard": 2}},
    "interleaved": {"layout": {"pipeline": 2, "shard": 2}, "parallel": {"schedule": "Interleaved1F1B"}},
}
PARTS: dict[str, dict[str, Any]] = {
    "microbatches, ddp": {"layout": {"replicate": 4}, "parallel": {"microbatches": 2}},
    "microbatches, fsdp": {"layout": {"shard": 4}, "parallel": {"microbatches": 2}},
    "fewer, ddp": {"layout": {"replicate": 4}, "full": {"replicate": 8}, "rows": 16},
    "fewer, ddp, empty piece": {"layout": {"replicate": 4}, "full": {"replicate": 6}, "rows": 6},
    "fewer, pipeline": {
        "layout": {"replicate": 2, "pipeline": 2},
        "full": {"replicate": 4, "pipeline": 2},
        "rows": 16,
    },
    "uneven shares, ddp": {"layout": {"replicate": 4}, "rows": 6},
    "uneven shares, fsdp": {"layout": {"shard": 4}, "rows": 10},
    "tree": {"layout": {"replicate": 4}, "parallel": {"reduce": "tree"}},
    "tree, microbatches": {"layout": {"replicate": 4}, "parallel": {"reduce": "tree", "microbatches": 2}},
}


def ignoring(cases: dict[str, dict[str, Any]], which: str) -> dict[str, dict[str, Any]]:
    """Return the same cases with ignored targets."""
    return {f"{name}, {which} ignored": {"rows": 8, **one, "ignored": which} for name, one in cases.items()}


DEFAULT = (
    ignoring(LAYOUTS, "more")
    | ignoring(PARTS, "more")
    | ignoring({name: LAYOUTS[name] for name in ("ddp", "fsdp", "pipeline x fsdp")}, "half")
    | ignoring({name: LAYOUTS[name] for name in LAYOUTS if name != "interleaved"}, "all")
    | ignoring({"tree": PARTS["tree"]}, "all")
)
FEW = {name: LAYOUTS[name] for name in ("ddp", "tensor", "context x pipeline", "pipeline x fsdp")}
PAIRS = {f"pair, {name}": {**one, "loss": "pair"} for name, one in DEFAULT.items()}
MEANS = {f"mean, {name}": {**one, "loss": "mean"} for name, one in ignoring(LAYOUTS, "more").items()}
REFUSED = {
    f"{loss}, {name}": {**one, "loss": loss}
    for loss in ("sum", "max", "no mean of a mask")
    for name, one in ignoring(FEW, "more").items()
} | ignoring({"one row": {"layout": {"replicate": 4}, "rows": 4, "loss": "sum"}}, "more")
OTHER = ignoring(
    {
        "vector": {"layout": {"replicate": 4}, "loss": "vector"},
        "drawn": {"layout": {"replicate": 4}, "loss": "drawn"},
    },
    "more",
)
FROZEN = {
    f"{part} frozen, {name}": {"rows": 8, "ignored": "more", **one, "frozen": part}
    for part in ("up", "embed")
    for name, one in LAYOUTS.items()
} | {
    f"tensor alone, {part} frozen": {"layout": {"tensor": 4}, "rows": 8, "ignored": "more", "frozen": part}
    for part in ("up", "embed", "query")
}
CASES = DEFAULT | PAIRS | MEANS | REFUSED | OTHER | FROZEN
USUAL = {
    "pipeline x tensor, more ignored",
    *("context x pipeline, more ignored", "interleaved, more ignored", "context, all ignored"),
    *("fewer, ddp, empty piece, more ignored", "tree, microbatches, more ignored"),
    *("pair, pipeline x fsdp, more ignored", "mean, pipeline x fsdp, more ignored"),
    "sum, pipeline x fsdp, more ignored",
    *("no mean of a mask, context x pipeline, more ignored", "one row, more ignored"),
    *("embed frozen, interleaved", "tensor alone, embed frozen"),
}
NEEDED = (*OTHER, *(one for one in DEFAULT if one.startswith("context") and "half" not in one))
PROGRAM = "loss_program.py"


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(DEFAULT, DEFAULT.keys() & USUAL))
def test_loss_is_the_mean_over_all_valid_targets(found: list[dict[str, Any]], name: str) -> None:
    """Also where rows and ranks have other numbers of them, or none; without any it is 0."""
    for one in found:
        assert "error" not in one[name], one[name]
        assert max(map(abs, one[name]["loss"])) <= 1e-12
        assert one[name]["gradient"] <= 1e-12
    if name.endswith("all ignored"):
        assert found[0][name]["wanted"] == 0.0


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers([*PAIRS, *MEANS], (PAIRS | MEANS).keys() & USUAL))
def test_sums_are_divided_by_the_weight_of_the_whole_batch(found: list[dict[str, Any]], name: str) -> None:
    """A loss that returns a sum and its weight is exact in every layout, as is a mean of rows."""
    for one in found:
        assert "error" not in one[name], one[name]
        assert max(map(abs, one[name]["loss"])) <= 1e-12
        assert one[name]["gradient"] <= 1e-12


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(FROZEN, FROZEN.keys() & USUAL))
def test_frozen_parameters_learn_nothing_in_any_layout(found: list[dict[str, Any]], name: str) -> None:
    """The others have the gradients of one process."""
    for one in found:
        assert "error" not in one[name], one[name]
        assert max(map(abs, one[name]["loss"])) <= 1e-12
        assert one[name]["gradient"] <= 1e-12
        assert all(FROZEN[name]["frozen"] in each for each in one[name]["frozen"])
    assert any(one[name]["frozen"] for one in found)


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(REFUSED, REFUSED.keys() & USUAL))
def test_loss_that_is_no_mean_over_rows_is_refused(found: list[dict[str, Any]], name: str) -> None:
    """On all ranks, also on those that have no loss; it would scale with the layout."""
    for one in found:
        assert "is no mean over rows: it is" in one[name]["message"], one[name]
        assert "return a pair" in one[name]["hint"]


@pytest.mark.training
def test_loss_that_is_no_number_is_refused(found: list[dict[str, Any]]) -> None:
    """The error says what was returned."""
    assert "returned [32]" in found[0]["vector, more ignored"]["message"]


@pytest.mark.training
def test_loss_that_draws_numbers_is_taken(found: list[dict[str, Any]]) -> None:
    """Nothing can be said of it."""
    assert "error" not in found[0]["drawn, more ignored"], found[0]["drawn, more ignored"]


@pytest.mark.training
def test_evaluation_is_the_mean_over_the_valid_targets_of_the_rows(found: list[dict[str, Any]]) -> None:
    """Of the whole batch, if a data rank has all; with context, each rank has some of them."""
    assert CASES.keys() >= USUAL
    for name in ("context, more ignored", "context x pipeline, more ignored"):
        for one in found:
            assert abs(one[name]["evaluated"] - one[name]["wanted"]) <= 1e-12
    assert found[0]["context, all ignored"]["evaluated"] == 0.0
