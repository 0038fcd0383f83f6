"""Promises on how many parameters a model is said to have: tied ones count once in any layout."""

from __future__ import annotations

import copy

import pytest
from torch import nn
from torch.optim.swa_utils import AveragedModel

from hpckit.errors import UsageError
from hpckit.model.parallel.layout import Layout
from hpckit.runtime.rank.parameters import build_layout_message, check_state_object

TIED = (("embed.weight", "head.weight"),)


def stage(*names: str) -> nn.ModuleDict:
    """Return the part of a model that a stage of a pipeline has: each layer has 12 elements."""
    return nn.ModuleDict({name: nn.Linear(4, 3, bias=False) for name in names})


def test_copy_on_another_stage_is_no_further_part_of_the_model() -> None:
    """It is held, and counts for the memory; the model is as large as on one rank."""
    first, last = stage("embed", "a"), stage("b", "head")
    layout = Layout(pipeline=2)
    told = [build_layout_message(rank, layout, [one], TIED) for rank, one in enumerate((first, last))]
    assert [one.held for one in told] == [24, 24]
    assert sum(one.whole for one in told) == 36


def test_tied_parameter_that_a_rank_has_twice_counts_once() -> None:
    """As one rank alone has it, and also where the model is wrapped."""
    whole = stage("embed", "a", "b", "head")
    whole["head"].weight = whole["embed"].weight
    told = build_layout_message(0, Layout(), [nn.ModuleDict({"module": whole})], TIED)
    assert (told.held, told.whole) == (36, 36)


def test_module_of_an_average_is_refused() -> None:
    """Its number of updates would be 0 after a restart, and the average thrown away."""
    model = nn.Linear(2, 2)
    average = AveragedModel(model)
    with pytest.raises(UsageError, match="the module of an AveragedModel") as caught:
        check_state_object("ema", average.module, 1)
    assert "run.state(ema=average)" in (caught.value.hint or "")
    for one in (average, model, copy.deepcopy(average.module)):
        check_state_object("ema", one, 1)
