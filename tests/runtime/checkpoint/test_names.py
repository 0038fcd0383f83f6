"""States by the names of parameters, in one process: what moves, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.checkpoint.errors import StateError
from hpckit.runtime.checkpoint.storage import read_metadata


class Pair(nn.Module):
    """Two layers of one size, tied or not, and a state of its own that is no tensor."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        if tied:
            self.second.weight = self.first.weight
        self.note = "new"

    def get_extra_state(self) -> dict[str, str]:
        """Return the note."""
        return {"note": self.note}

    def set_extra_state(self, state: dict[str, str]) -> None:
        """Take the note."""
        self.note = state["note"]


def _trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number, one in enumerate(model.parameters()):
        one.grad = torch.full_like(one, number + 1.0)
    optimizer.step()


def _save(folder: Path, **objects: Any) -> frozenset[str]:
    """Save the objects; return the keys of the checkpoint."""
    checkpointer = Checkpointer(folder, CheckpointSettings(epoch=1))
    checkpointer.save(objects, 1, 1, wait=True)
    checkpointer.close()
    (checkpoint,) = folder.glob("step-*")
    return frozenset(read_metadata(checkpoint).state_dict_metadata)


def _restore(folder: Path, **objects: Any) -> None:
    checkpointer = Checkpointer(folder, CheckpointSettings(epoch=2))
    assert checkpointer.restore(objects) is not None
    checkpointer.close()


def _sgd(model: nn.Module, *groups: tuple[str, float]) -> torch.optim.SGD:
    """Return SGD with the parameters of each ending in a group with this rate."""
    named = dict(model.named_parameters())
    return torch.optim.SGD(
        [
            {"params": [one for name, one in named.items() if name.endswith(end)], "lr": rate}
            for end, rate in groups
        ],
        lr=1.0,
        momentum=0.9,
    )


def test_state_follows_the_name_of_its_parameter(folder: Path) -> None:
    """Groups in another order get the state and the options that their parameters had."""
    model = Pair()
    model.note = "kept"
    optimizer = _sgd(model, ("weight", 0.1), ("bias", 0.2))
    _trained(model, optimizer)
    keys = _save(folder, model=model, optimizer=optimizer)
    assert "optimizer/state/second.bias/momentum_buffer" in keys
    other = Pair()
    turned = _sgd(other, ("bias", 5.0), ("weight", 6.0))
    _restore(folder, model=other, optimizer=turned)
    assert other.note == "kept"
    assert [group["lr"] for group in turned.param_groups] == [0.2, 0.1]
    for name, one in other.named_parameters():
        before = model.get_parameter(name)
        assert torch.equal(one, before)
        moved = turned.state[one]["momentum_buffer"]
        assert torch.equal(moved, optimizer.state[before]["momentum_buffer"])


def test_options_of_a_mixed_group_are_refused(folder: Path) -> None:
    """A group of parameters that had different options has none that are right for all."""
    model = Pair()
    _save(folder, model=model, optimizer=_sgd(model, ("weight", 0.1), ("bias", 0.2)))
    with pytest.raises(StateError, match=r"holds first\.weight and first\.bias"):
        _restore(folder, model=model, optimizer=_sgd(model, ("", 0.3)))


def test_parameter_of_no_model_keeps_its_number(folder: Path) -> None:
    """An optimizer that is registered without its model is loaded as it was built."""
    model = Pair()
    optimizer = _sgd(model, ("weight", 0.1), ("bias", 0.2))
    _trained(model, optimizer)
    assert "optimizer/state/.3/momentum_buffer" in _save(folder, optimizer=optimizer)
    other = _sgd(model, ("weight", 1.0), ("bias", 1.0))
    _restore(folder, optimizer=other)
    for parameter in model.parameters():
        moments = [each.state[parameter]["momentum_buffer"] for each in (optimizer, other)]
        assert torch.equal(*moments)


def test_models_with_equal_names_are_told_apart(folder: Path) -> None:
    """With two models, an optimizer's state is stored by the model's name, too."""
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.AdamW([*one.parameters(), *other.parameters()])
    _trained(nn.ModuleList([one, other]), optimizer)
    before = optimizer.state[other.bias]["exp_avg"].clone()
    keys = _save(folder, one=one, other=other, optimizer=optimizer)
    assert {f"optimizer/state/{name}/bias/exp_avg" for name in ("one", "other")} <= keys
    again = torch.optim.AdamW([*other.parameters(), *one.parameters()])
    _restore(folder, one=one, other=other, optimizer=again)
    assert torch.equal(again.state[other.bias]["exp_avg"], before)


def test_tied_weight_comes_back_under_both_names(folder: Path) -> None:
    """A tied weight is stored once, and loads where the two are no longer one."""
    model = Pair(tied=True)
    keys = _save(folder, model=model)
    assert "model/first.weight" in keys
    assert "model/second.weight" not in keys
    apart = Pair()
    _restore(folder, model=apart)
    assert torch.equal(apart.first.weight, model.first.weight)
    assert torch.equal(apart.second.weight, model.first.weight)


def test_untied_weight_that_the_plan_ties_is_refused(folder: Path) -> None:
    """What is said to be one parameter, and is two, would lose one of them."""
    checkpointer = Checkpointer(folder, CheckpointSettings())
    model = Pair()
    checkpointer.tie({model: {"second.weight": "first.weight"}})
    with pytest.raises(StateError, match="but are two parameters here"):
        checkpointer.save({"model": model}, 1, 1, wait=True)
    checkpointer.save({"model": Pair(), "other": Pair()}, 1, 1, wait=True)  # of no other model


def test_layer_that_was_not_saved_is_named(folder: Path) -> None:
    """A model with more than was saved does not train on with what it was built with."""
    _save(folder, model=nn.Sequential(nn.Linear(2, 2)))
    wider = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(StateError, match=r"model has 1\.weight and 1 more here \(rank 0\)"):
        _restore(folder, model=wider)
