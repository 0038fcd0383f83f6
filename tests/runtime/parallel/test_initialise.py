"""A model built on meta has the same values in every layout, and no host holds all of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from byte_world import LAYOUTS
from tiers import in_tiers
from torch import nn

import hpckit
from hpckit.errors import UsageError
from hpckit.runtime.parallel.build import build_model_on_meta
from hpckit.runtime.parallel.initialise import Init, PartInitialiser

CASES: dict[str, dict[str, Any]] = {name: {"layout": one} for name, one in LAYOUTS.items()} | {
    "interleaved": {"layout": {"pipeline": 2, "shard": 2}, "parallel": {"schedule": "Interleaved1F1B"}},
    "recompute": {"layout": {"shard": 4}, "parallel": {"recompute": "blocks"}},
    "offloaded": {"layout": {"shard": 4}, "parallel": {"offload": True}},
}
NEEDED = ("ddp", "pipeline")
PROGRAM = "initial_program.py"
USUAL = (*("ddp", "fsdp x tensor", "pipeline", "pipeline x fsdp"),)
RANKS = 4
BIGGEST = 128 * 32 + 128
"""The elements of the largest module: `up` with its bias."""


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(CASES, USUAL))
def test_initial_values_are_the_same_bits_in_every_layout(found: list[dict[str, Any]], name: str) -> None:
    """Each parameter and buffer, on each rank that has it, also those that are tied."""
    expected = found[0]["ddp"]["values"]
    seen: set[str] = set()
    for one in found:
        values = one[name]["values"]
        assert {key: expected[key] for key in values} == values
        assert one[name]["untouched"]
        seen |= values.keys()
    assert seen == expected.keys()
    assert len(set(expected.values())) > 1
    assert expected["head.weight"] == expected["embed.weight"]


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(CASES, USUAL))
def test_no_more_than_one_module_is_ever_whole(found: list[dict[str, Any]], name: str) -> None:
    """And what a rank keeps of a module holds none of the rest of it in memory."""
    for one in found:
        assert one[name]["most"] <= BIGGEST
        assert len(one[name]["called"]) == len(set(one[name]["called"]))
        if "shard" in CASES[name]["layout"] or "tensor" in CASES[name]["layout"]:
            assert one[name]["spare_bytes"] == 0


@pytest.mark.training
def test_modules_of_other_stages_are_never_made(found: list[dict[str, Any]]) -> None:
    """But for the weight that the last stage shares with the first."""
    for rank, one in enumerate(found):
        blocks = {name.split(".")[1] for name in one["pipeline"]["called"] if "blocks" in name}
        assert blocks == {str(2 * rank), str(2 * rank + 1)}
        assert ("embed" in one["pipeline"]["called"]) == (rank in {0, RANKS - 1})
        assert ("place" in one["pipeline"]["called"]) == (rank == 0)


@pytest.mark.training
@pytest.mark.parametrize("name", in_tiers(CASES, USUAL))
def test_training_goes_the_same_way_from_there(found: list[dict[str, Any]], name: str) -> None:
    """Gradients find the parameters that were put in place of those without memory.

    Numbers of this size are 2e-6 apart in float32.
    """
    expected = found[0]["ddp"]["losses"]
    assert expected[1] != expected[0]
    for one in found:
        assert one[name]["losses"] == pytest.approx(expected, rel=5e-7)


class Scale(nn.Module):
    """A parameter of one's own, and no reset_parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))


def fill(model: nn.Module, init: Init) -> nn.Module:
    """Initialise a model that was built on meta, for a rank that has all of it."""
    whole = build_model_on_meta(lambda: model, 1)
    first = PartInitialiser(whole=whole, init=init, seed=1, device=torch.device("cpu"))
    first.initialise_own_tensors(whole)
    return whole


def on_meta() -> nn.Module:
    """Return a linear layer and a scale without memory."""
    return build_model_on_meta(lambda: nn.ModuleDict({"a": nn.Linear(2, 2), "scale": Scale()}), 1)


def test_a_module_without_reset_parameters_is_named() -> None:
    """With what it holds, and both ways out."""
    with pytest.raises(UsageError, match="scale, a Scale, has factor and no reset_parameters"):
        fill(on_meta(), hpckit.reset_parameters)


def test_what_init_leaves_out_is_named() -> None:
    """Else it would be whatever the memory held before."""

    def forgetful(name: str, module: nn.Module) -> None:
        if name == "scale":
            nn.init.ones_(module.factor)  # type: ignore[arg-type]
        elif isinstance(module, nn.Linear):
            nn.init.ones_(module.weight)

    with pytest.raises(UsageError, match="init left bias of a, a Linear, without a value"):
        fill(on_meta(), forgetful)


def test_equal_modules_of_other_names_differ() -> None:
    """Values follow from the name of a module, too."""
    model = build_model_on_meta(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 1)
    fill(model, hpckit.reset_parameters)
    one, other = model.state_dict()["0.weight"], model.state_dict()["1.weight"]
    assert not torch.equal(one, other)
