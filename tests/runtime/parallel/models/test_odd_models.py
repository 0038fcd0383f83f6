"""Layouts compute what one process does, or refuse: with the models that people bring.

One world of two gloo ranks.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.parallel.models.odd_models import LOSSES, OddModel, batch
from tiers import in_tiers

PIPELINE, SHARD, TENSOR = {"pipeline": 2}, {"shard": 2}, {"tensor": 2}
SAME: dict[str, dict[str, Any]] = {
    f"{model}, {layout}, {settings}": {"model": model, "layout": layout, "parallel": settings}
    for model, layout, settings in (
        ("three names", PIPELINE, {}),
        ("three names", SHARD, {}),
        ("shared layer", PIPELINE, {}),
        ("shared layer", TENSOR, {}),
        ("measuring", PIPELINE, {"microbatches": 2}),
        ("counting", PIPELINE, {"microbatches": 2, "recompute": "blocks"}),
        ("counting", PIPELINE, {"microbatches": 2, "recompute": "selective"}),
        ("measuring", PIPELINE, {"microbatches": 2, "recompute": "blocks", "compile": True}),
    )
}
STAGED = ("numbered", "long skip", "twice through", "normalized")
REFUSED: dict[str, dict[str, Any]] = {
    f"{model}, {PIPELINE}": {"way": "one step", "model": model, "layout": PIPELINE} for model in STAGED
}
TRAINED: dict[str, dict[str, Any]] = {
    "asking": {"way": "one step", "model": "asking", "layout": PIPELINE},
    "unchecked": {
        "way": "one step",
        "model": "numbered",
        "layout": PIPELINE,
        "parallel": {"self_check": False},
    },
    "numbered, sharded": {"way": "one step", "model": "numbered", "layout": SHARD},
}
TWO: dict[str, dict[str, Any]] = {
    f"two models, {layout}": {"way": "two models", "layout": layout, "folder": folder}
    for layout, folder in ((PIPELINE, "staged"), (SHARD, "sharded"), ({"replicate": 2}, "copied"))
}
COPIES: dict[str, dict[str, Any]] = {
    f"own copies, {wrapped}": {
        "way": "own copies",
        "layout": {"replicate": 2},
        "wrapped": wrapped,
        "folder": f"copies-{wrapped}",
    }
    for wrapped in (True, False)
}
EARLY: dict[str, dict[str, Any]] = {
    f"early optimizer, {layout}": {"way": "early optimizer", "layout": layout}
    for layout in (SHARD, TENSOR, PIPELINE, {"replicate": 2})
}
CONTEXT = {"context": 2}
WRONG_LOSSES: dict[str, dict[str, Any]] = {
    "shift": {"layout": CONTEXT, "losses": ["shift"]},
    "shifted pair": {"layout": CONTEXT, "losses": ["shifted pair"]},
    "last position": {"layout": CONTEXT, "losses": ["last position"]},
    "labels": {"layout": CONTEXT, "losses": ["mean"], "targets": "labels"},
    "pooling": {"layout": CONTEXT, "model": "pooling", "losses": ["of the first"], "targets": "dictionary"},
    "labels in a dictionary": {
        "layout": CONTEXT,
        "losses": ["of the first"],
        "targets": "labels in a dictionary",
    },
    "second loss": {"layout": {"replicate": 2}, "losses": ["mean", "sum"]},
    "later loss, pipeline": {"layout": PIPELINE, "losses": ["mean", "shifted pair", "sum"]},
}
TOLD = {
    "shift": "is no mean over positions: it is",
    "shifted pair": "is no mean over positions: it is",
    "last position": "is no mean over positions: it is",
    "labels": "targets are [8], and parallel.context cuts them",
    "pooling": "the model returned [8, 8]",
    "labels in a dictionary": "targets are [8], and parallel.context cuts them",
    "second loss": "is no mean over rows: it is",
    "later loss, pipeline": "is no mean over rows: it is",
}
RIGHT_LOSSES: dict[str, dict[str, Any]] = {
    f"{losses} of {targets}, {layout}, {parts}": {
        "layout": layout,
        "losses": losses,
        "targets": targets,
        "parallel": {"microbatches": parts},
    }
    for losses, targets in ((["mean", "of nothing", "shifted pair"], "tokens"), (["pair of parts"], "parts"))
    for layout in ({"replicate": 2}, SHARD)
    for parts in (1, 2)
} | {
    "parts, context": {"layout": CONTEXT, "losses": ["pair of parts"], "targets": "parts"},
    "nothing, context": {"layout": CONTEXT, "losses": ["of nothing"], "targets": "nothing"},
    "mean, context": {"layout": CONTEXT, "losses": ["mean", "of nothing"]},
}
LOSS_CASES = {
    f"loss: {name}": {"way": "losses", **one} for name, one in (WRONG_LOSSES | RIGHT_LOSSES).items()
}
FROZEN: dict[str, dict[str, Any]] = {
    f"frozen, {layout}": {"way": "evaluated", "model": "frozen", "layout": layout}
    for layout in ({"replicate": 2}, SHARD, TENSOR, PIPELINE)
}
OTHER: dict[str, dict[str, Any]] = {
    "many shapes": {"way": "many shapes", "layout": PIPELINE},
    "tempered": {"way": "tempered", "layout": PIPELINE},
    "unused": {"model": "unused", "layout": {"replicate": 2}},
    "unused, sharded": {"model": "unused", "layout": SHARD},
}
COMPILED = {name for name in SAME if "compile" in name}
CASES = SAME | REFUSED | TRAINED | TWO | COPIES | EARLY | LOSS_CASES | FROZEN | OTHER
NEEDED = CASES.keys() - COMPILED
PROGRAM = "odd_model_program.py"


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(SAME, SAME.keys() - COMPILED))
def test_model_trains_as_in_one_process(found: list[dict[str, Any]], name: str) -> None:
    """Losses, parameters and buffers."""
    for one in found:
        assert "error" not in one[name], one[name]
        assert one[name]["loss"] < 1e-5
        assert one[name]["state"] < 1e-5


@pytest.mark.training
def test_rehearsal_of_shapes_leaves_nothing_in_the_model(found: list[dict[str, Any]]) -> None:
    """Each unit has seen two microbatches of three steps, and nothing else."""
    for one in found:
        measured = one[f"measuring, {PIPELINE}, {{'microbatches': 2}}"]
        assert measured["seen"] == [6]


@pytest.mark.training
@pytest.mark.parametrize("name", REFUSED)
def test_stages_that_compute_something_else_are_refused(found: list[dict[str, Any]], name: str) -> None:
    """On every rank, in the first step, with the likely causes."""
    for one in found:
        assert one[name].get("error") == "RunError", one[name]
        assert "with pipeline 2 the stages, one after the other" in one[name]["message"]
        assert "off by" in one[name]["message"]
        assert "numbers its units" in one[name]["hint"]


@pytest.mark.training
@pytest.mark.parametrize("name", TRAINED)
def test_check_of_stages_lets_the_others_train(found: list[dict[str, Any]], name: str) -> None:
    """It leaves nothing behind: no mode, no numbers that were drawn, no calls."""
    for one in found:
        assert "error" not in one[name], one[name]
        assert one[name]["told"] == []
        assert one[name]["undrawn"]
        assert one[name]["modes"][0]
        assert not any(one[name]["modes"][1:])
    assert found[0]["asking"]["calls"] == [5.0]  # four microbatches, and the evaluation


@pytest.mark.training
@pytest.mark.parametrize("name", TWO)
def test_tied_names_are_those_of_one_model(found: list[dict[str, Any]], name: str) -> None:
    """Another model's parameters of the same names are saved, and come back."""
    for one in found:
        assert "error" not in one[name], one[name]
        assert one[name]["changed"] == []


@pytest.mark.training
def test_optimizer_of_a_model_before_it_was_laid_out_is_refused(found: list[dict[str, Any]]) -> None:
    """Where it would train nothing; elsewhere its parameters are those of the model."""
    for one in found:
        for layout in (SHARD, TENSOR):
            case = one[f"early optimizer, {layout}"]
            assert case.get("error") == "UsageError", case
            assert "SGD updates tokens.weight as OddModel had it before" in case["message"]
            assert "make the optimizer after it" in case["hint"]
        for layout in (PIPELINE, {"replicate": 2}):
            assert one[f"early optimizer, {layout}"]["moved"] > 0.0


@pytest.mark.training
def test_models_that_each_rank_trains_by_itself_are_told_of_once(found: list[dict[str, Any]]) -> None:
    """At the first save after they differ; it has those of rank 0."""
    for one in found:
        assert one["own copies, True"]["warnings"] == ["", "", ""]
        first, second, third = one["own copies, False"]["warnings"]
        assert not first
        assert not third
        assert "model has other parameters on rank 1 than on rank 0" in second


@pytest.mark.training
@pytest.mark.parametrize("name", WRONG_LOSSES)
def test_loss_that_follows_from_the_layout_is_refused(found: list[dict[str, Any]], name: str) -> None:
    """On all ranks; each function once, whenever it comes."""
    for one in found:
        case = one[f"loss: {name}"]
        assert case.get("error") == "UsageError", case
        assert TOLD[name] in case["message"]
        assert case["hint"]


@pytest.mark.training
@pytest.mark.parametrize("name", RIGHT_LOSSES)
def test_loss_that_adds_up_is_the_same_in_every_layout(found: list[dict[str, Any]], name: str) -> None:
    """Also with targets of several parts, and with none."""
    values = [one[f"loss: {name}"].get("values") for one in found]
    torch.manual_seed(7)
    model = OddModel()
    inputs, targets = batch(0)
    wanted: Any = {"tokens": targets, "parts": (targets, (targets > 2).float())}
    for value, loss in zip(values[0], RIGHT_LOSSES[name]["losses"], strict=True):
        whole = LOSSES[loss](model(inputs), wanted.get(RIGHT_LOSSES[name].get("targets", "tokens")))
        expected = whole[0] / whole[1] if isinstance(whole, tuple) else whole
        assert value == pytest.approx(float(expected.detach()), abs=1e-5)
    assert values[0] == values[1]


@pytest.mark.training
def test_model_that_learns_nothing_is_evaluated_in_every_layout(found: list[dict[str, Any]]) -> None:
    """Such as a teacher; DDP would refuse it."""
    values = {str(one[name].get("values")) for one in found for name in FROZEN}
    losses = {round(one[name]["values"][0], 5) for one in found for name in FROZEN}
    assert len(losses) == 1, values
    assert {one[name]["values"][1] for one in found for name in FROZEN} == {0.0}


@pytest.mark.training
def test_parameter_that_gets_no_gradient_is_named_at_the_first_step(found: list[dict[str, Any]]) -> None:
    """DDP would say so in the second one, by its number; FSDP does without."""
    for one in found:
        assert one["unused"].get("error") == "RunError", one["unused"]
        assert "spare.weight, spare.bias got no gradient" in one["unused"]["message"]
        assert "requires_grad=False" in one["unused"]["hint"]
        assert "error" not in one["unused, sharded"]


@pytest.mark.training
def test_stages_follow_what_is_set_on_the_model(found: list[dict[str, Any]]) -> None:
    """The training loop has this rank's part, and stages run copies of its outer modules."""
    for one in found:
        cool, evaluated, warm, again = one["tempered"]["values"]
        assert cool == pytest.approx(evaluated)
        assert warm == pytest.approx(again)
        assert abs(cool - warm) > 1e-3
        first, second = one["tempered"]["drawn"]
        assert first != second


@pytest.mark.training
def test_batches_of_many_shapes_keep_little(found: list[dict[str, Any]]) -> None:
    """Torch's schedules have memory for what they receive."""
    assert [one["many shapes"]["kept"] for one in found] == [8, 8]
