"""Recomputed units leave their buffers as one forward pass does, and begin with the same ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from hpckit.errors import RunError
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import Parallel, Recompute
from hpckit.runtime.parallel.recompute import recompute_and_compile_unit
from hpckit.runtime.parallel.step_errors import explain_torch_errors


class Normed(nn.Module):
    """Batch norm: its running statistics change without torch's counter of changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this unit."""
        moved: Tensor = hidden + self.norm(self.linear(hidden))
        return moved


def trained(unit: nn.Module) -> dict[str, Tensor]:
    """Return its buffers and gradients after passes in training, evaluating and training again."""
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    for scale in (0.0, 1.0, 3.0):
        unit(rows * scale).square().sum().backward()
    unit.eval()
    with torch.no_grad():
        unit(rows)
    unit(rows).sum().backward()
    unit.train()
    unit(rows - 1).square().sum().backward()
    gradients = {name: one.grad for name, one in unit.named_parameters() if one.grad is not None}
    return {**gradients, **dict(unit.named_buffers())}


@pytest.mark.parametrize("kind", [Recompute.blocks, Recompute.selective])
def test_running_statistics_are_measured_once(kind: Recompute) -> None:
    """Also when the first batch changes none of their values: all rows are zero in it."""
    torch.manual_seed(0)
    plain = Normed()
    nn.init.zeros_(plain.linear.bias)
    recomputed = copy.deepcopy(plain)
    recompute_and_compile_unit(recomputed, Parallel(recompute=kind))
    wanted, found = trained(plain), trained(recomputed)
    assert wanted.keys() == found.keys()
    for name, one in wanted.items():
        assert torch.equal(found[name], one), name


@pytest.mark.parametrize("kind", Recompute)
def test_copy_of_a_unit_computes_with_its_own_parameters(kind: Recompute) -> None:
    """An average of weights, made by `copy.deepcopy`: not with those that go on learning."""
    torch.manual_seed(0)
    unit = Normed()
    recompute_and_compile_unit(unit, Parallel(recompute=kind))
    average = copy.deepcopy(unit)
    rows = torch.randn(6, 4)
    before = average(rows)
    with torch.no_grad():
        unit.linear.weight.mul_(3)
    assert torch.equal(average(rows), before)
    before.sum().backward()
    assert unit.linear.weight.grad is None
    assert average.linear.weight.grad is not None


def test_what_the_compiler_cannot_do_is_an_error_with_what_helps() -> None:
    """Only with parallel.compile; the user's own errors stay what they are."""
    blocks = Parallel(compile=True, recompute=Recompute.blocks)
    words = "could not train a compiled unit: other metadata"
    with pytest.raises(RunError, match=words) as told, explain_torch_errors(blocks, Layout(context=2), None):
        raise CheckpointError("other\nmetadata")
    assert "parallel.compile=false" in str(told.value.hint)
    with pytest.raises(CheckpointError), explain_torch_errors(Parallel(), Layout(), None):
        raise CheckpointError("other metadata")
    with pytest.raises(ZeroDivisionError), explain_torch_errors(blocks, Layout(), None):
        raise ZeroDivisionError
