"""Promises of the one place that keeps and seeds random generators."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tiers import thorough
from torch import Tensor, nn

from hpckit.model.parallel.settings import Parallel, Recompute
from hpckit.runtime.checkpoint.state import encode_objects
from hpckit.runtime.generators import preserve_generators, seed_all_generators
from hpckit.runtime.parallel.build import build_model_on_meta, build_seeded_model
from hpckit.runtime.parallel.kept_state import preserve_module_state
from hpckit.runtime.parallel.loss.loss_check import LossCheck
from hpckit.runtime.parallel.recompute import recompute_and_compile_unit

OF_FILE = random.Random(3)  # noqa: S311  # as user code has them
GLOBAL: dict[str, Callable[[], float]] = {
    "random": random.random,
    "normal of random": partial(random.gauss, 0, 1),
    "numpy": lambda: float(np.random.rand()),  # noqa: NPY002  # what user code draws from
    "normal of numpy": lambda: float(np.random.randn()),  # noqa: NPY002
    "torch": lambda: float(torch.rand((), device="cpu")),
}


class Own:
    """Generators of a module's own, one of them inside of another object."""

    def __init__(self) -> None:
        self.python, self.of_torch = random.Random(1), torch.Generator().manual_seed(1)  # noqa: S311
        self.held: dict[str, Any] = {"new": np.random.default_rng(1), "old": np.random.RandomState(1)}


OWN: dict[str, Callable[[Own], float]] = {
    "own random": lambda own: own.python.random(),
    "own torch": lambda own: float(torch.rand((), generator=own.of_torch)),
    "own numpy": lambda own: float(own.held["new"].random()),
    "own old numpy": lambda own: float(own.held["old"].rand()),
    "of the file": lambda own: OF_FILE.random(),  # noqa: ARG005
}
SOURCES = [*GLOBAL, *OWN]


class Drawing(nn.Module):
    """A unit that adds a part times a number that is drawn."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source, self.own = source, Own()
        self.linear = nn.Linear(3, 3)

    def draw(self) -> float:
        """Return a number."""
        return GLOBAL[self.source]() if self.source in GLOBAL else OWN[self.source](self.own)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this unit, [rows, 3]."""
        assert OF_FILE is not None  # at hand in forward, as a user's is
        moved: Tensor = hidden + torch.tanh(self.linear(self.draw() * hidden))
        return moved


@pytest.mark.parametrize("source", GLOBAL)
def test_seeded_blocks_draw_alike_and_leave_no_trace(source: str) -> None:
    """Also a block within another, and one that ends in an error."""
    draw = GLOBAL[source]
    seed_all_generators(5)
    wanted = [draw() for _ in range(4)]
    seed_all_generators(5)
    found = [draw()]
    with preserve_generators(seed=9):
        inside = [draw(), draw()]
        with pytest.raises(ZeroDivisionError), preserve_generators(seed=1):
            raise ZeroDivisionError(draw())
        inside.append(draw())
    found += [draw() for _ in range(3)]
    assert found == wanted
    with preserve_generators(seed=9):
        assert [draw() for _ in range(3)] == inside


def test_devices_are_kept_once_they_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """All visible ones; one that a block was the first to use begins after it as it would have."""
    devices = [torch.Generator().manual_seed(number) for number in (4, 5)]
    before = [device.get_state() for device in devices]

    def use() -> None:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "default_generators", tuple(devices))

    for _ in range(2):
        with preserve_generators():
            use()
            for device in devices:
                torch.rand(3, generator=device)
        assert all(torch.equal(one.get_state(), at) for one, at in zip(devices, before, strict=True))
    with preserve_generators(seed=1):
        assert [device.initial_seed() for device in devices] == [1, 1]


FIRST_NUMPY = """
import sys
from hpckit.runtime.generators import preserve_generators, seed_all_generators
assert ("numpy.random" in sys.modules) is {there}
seed_all_generators(3)
with preserve_generators(seed=4):
    try:
        import numpy.random as user
        print(user.rand())
    except ImportError:
        print("none")
if {there}:
    print(user.rand())
"""


@pytest.mark.parametrize("there", [True, pytest.param(False, marks=thorough)])
def test_blocks_that_import_numpy_first_draw_as_promised(*, there: bool) -> None:
    """Its state comes from the system when it is imported; without numpy all else works."""
    hide = "" if there else "import sys, torch; sys.modules['numpy.random'] = None\n"
    check = "" if there else FIRST_NUMPY.replace("assert", "#")
    text = hide + (check or FIRST_NUMPY).format(there=there)
    printed = {subprocess.check_output([sys.executable, "-c", text], text=True) for _ in range(2)}
    seeds = [np.random.RandomState(one).rand() for one in (4, 3)]
    assert printed == {"".join(f"{one}\n" for one in (seeds if there else ["none"]))}


@pytest.mark.parametrize("source", GLOBAL)
@pytest.mark.parametrize("kind", [build_seeded_model, build_model_on_meta])
def test_models_are_built_from_the_seed_alone(
    kind: Callable[[Callable[[], nn.Module], int], nn.Module], source: str
) -> None:
    """Whatever was drawn before, with memory or without; nothing is left of it after."""

    def build() -> nn.Module:
        made = Drawing(source)
        vars(made)["drawn"] = made.draw()
        return made

    drawn = []
    for number in range(2):
        seed_all_generators(number)
        following = GLOBAL[source]()
        seed_all_generators(number)
        drawn.append(vars(kind(build, 7))["drawn"])
        assert GLOBAL[source]() == following
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("source", SOURCES)
def test_modules_that_run_once_more_draw_as_if_they_had_not(source: str) -> None:
    """Global generators, those in attributes, in what these hold, and in the module's file."""
    one, other = Drawing(source), Drawing(source)
    seed_all_generators(1)
    with preserve_module_state(one):
        one(torch.ones(1, 3))
    first = one.draw()
    seed_all_generators(1)
    OF_FILE.seed(3)
    with preserve_module_state(other):
        pass
    OF_FILE.seed(3)
    expected = other.draw()
    OF_FILE.seed(3)
    assert first == expected


@pytest.mark.parametrize("source", SOURCES)
def test_losses_that_are_looked_at_draw_as_if_they_were_not(source: str) -> None:
    """A function that reaches its generator, by its object or its file, is called four times."""
    own = Own()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        assert OF_FILE is not None
        factor = GLOBAL[source]() if source in GLOBAL else OWN[source](own)
        return (outputs - factor * targets).square().mean()

    draws = []
    for looks in (False, True):
        seed_all_generators(1)
        OF_FILE.seed(3)
        own.__init__()  # type: ignore[misc]
        if looks:
            check = LossCheck()
            check.check_loss_on_part(loss, torch.ones(4, 2), torch.ones(4, 2))
            assert not check.problem
        draws.append(GLOBAL[source]() if source in GLOBAL else OWN[source](own))
    assert draws[0] == draws[1]


@pytest.mark.parametrize("kind", [Recompute.blocks, Recompute.selective])
@pytest.mark.parametrize("source", SOURCES)
def test_units_are_recomputed_with_what_they_drew(source: str, kind: Recompute) -> None:
    """Gradients, and what is drawn after, are those of a unit that is not recomputed."""
    found = []
    for recompute in (Recompute.none, kind):
        seed_all_generators(2)
        OF_FILE.seed(3)
        units = [Drawing(source) for _ in range(2)]
        for one in units:
            recompute_and_compile_unit(one, Parallel(recompute=recompute))
        torch.autograd.backward(units[1](units[0](torch.ones(2, 3))).square().sum())
        gradients = [parameter.grad for unit in units for parameter in unit.parameters()]
        drawn = [unit.draw() for unit in units]
        found.append([*(gradient.tolist() for gradient in gradients if gradient is not None), drawn])
    assert found[0] == found[1]


class Loader:
    """State that draws a seed when it is asked for, as torchdata's loader does."""

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        return {name: draw() for name, draw in GLOBAL.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""


def test_saving_changes_nothing_of_what_is_drawn() -> None:
    """When a run saves depends on the time it takes."""
    seed_all_generators(1)
    wanted = [draw() for draw in GLOBAL.values()]
    seed_all_generators(1)
    encode_objects({"loader": Loader()}, {}, staged=False)
    assert [draw() for draw in GLOBAL.values()] == wanted
