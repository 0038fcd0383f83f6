"""What hpckit calls once more than the training does leaves no trace in the state of Python."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hpckit.runtime.parallel.kept_state import preserve_module_state
from hpckit.runtime.parallel.loss.loss_check import LossCheck

CALLS = 0
NOTES: dict[str, list[int]] = {"of": []}


class Warm:
    """Counts its calls in an attribute."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Any:
        """Return how often it was called."""
        self.calls += 1
        return self.calls


@dataclass(slots=True)
class Slotted:
    """Counts without a dictionary of attributes, and makes an attribute when it is first called."""

    calls: int = 0
    held: Any = field(default=None)

    def __call__(self) -> Any:
        """Return what it has counted."""
        self.calls += 1
        self.held = (self.held or 0) + 1
        return self.calls, self.held


def of_file() -> Any:
    """Count in the file."""
    global CALLS  # noqa: PLW0603
    CALLS += 1
    NOTES["of"].append(CALLS)
    return CALLS, list(NOTES["of"])


def of_function() -> Any:
    """Count in an attribute of the function."""
    vars(of_function)["calls"] = vars(of_function).get("calls", 0) + 1
    return vars(of_function)["calls"]


def of_cell() -> Callable[[], Any]:
    """Return what counts in its closure."""
    calls = None

    def count() -> Any:
        nonlocal calls
        calls = (calls or 0) + 1
        return calls

    return count


def of_held(held: Any, change: Callable[[Any], Any], read: Callable[[Any], Any]) -> Any:
    """Return what changes an object in its closure in place."""

    def count() -> Any:
        change(held)
        return read(held)

    return count


class Inner(nn.Module):
    """Remembers in a list, an object and an attribute that is made later."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.count = Warm()

    def forward(self) -> Any:
        """Return what it remembers."""
        self.seen.append(len(self.seen))
        vars(self)["late"] = vars(self).get("late", 0) + 1
        return list(self.seen), self.count(), vars(self)["late"]


KINDS: dict[str, Callable[[], Callable[[], Any]]] = {
    "attribute": Warm,
    "method": lambda: Warm().__call__,
    "slots": Slotted,
    "partial": lambda: partial(Warm()),
    "file": lambda: of_file,
    "function": lambda: of_function,
    "cell": of_cell,
    "namespace": lambda: of_held(SimpleNamespace(), lambda one: vars(one).update(n=len(vars(one)) + 1), vars),
    "deque": lambda: of_held(deque([1, 2], maxlen=2), lambda one: one.append(one[-1] + 1), list),
    "set": lambda: of_held({1}, lambda one: one.add(len(one) + 1), sorted),
    "counter": lambda: of_held(Counter(), lambda one: one.update("a"), dict),
    "array": lambda: of_held(np.zeros(2), lambda one: np.add(one, 1, out=one), list),
    "list of lists": lambda: of_held([[0]], lambda one: one[0].append(len(one[0])), repr),
    "module": Inner,
}


def after(make: Callable[[], Callable[[], Any]], *, looks: bool) -> Any:
    """Return what a loss that remembers returns after a step, with or without a look at it."""
    global CALLS  # noqa: PLW0603
    CALLS = 0
    NOTES["of"].clear()
    vars(of_function).clear()
    count = make()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        count()
        return (outputs - targets).square().mean()

    loss(torch.ones(4, 2), torch.zeros(4, 2))
    if looks:
        check = LossCheck()
        check.check_loss_on_part(loss, torch.ones(4, 2), torch.zeros(4, 2))
        assert not check.problem
    return str(count())


@pytest.mark.parametrize("kind", KINDS)
def test_losses_that_are_looked_at_remember_no_call_more(kind: str) -> None:
    """Counters, lists and means of a loss are as they would be without the look."""
    assert after(KINDS[kind], looks=True) == after(KINDS[kind], looks=False)


def test_modules_that_run_once_more_remember_no_call_more() -> None:
    """Also what lists and objects in their attributes hold."""
    one, other = Inner(), Inner()
    one()
    other()
    with preserve_module_state(one):
        one()
        one()
    assert one() == other()


def test_object_that_is_at_work_elsewhere_is_left_alone() -> None:
    """What an object of torch or hpckit counts meanwhile stays counted."""
    check = LossCheck()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        check.positions += 1
        return (outputs - targets).square().mean()

    LossCheck().check_loss_on_part(loss, torch.ones(4, 2), torch.zeros(4, 2))
    assert check.positions == 4


def test_loss_that_takes_from_an_iterator_is_not_looked_at() -> None:
    """What a look takes from a generator, or from a loader, could not be given back."""
    for numbers in (iter(range(9)), (one for one in range(9)), iter([1, 2, 3, 4, 5, 6, 7, 8, 9])):
        first = next(numbers)

        def loss(outputs: Tensor, targets: Tensor, numbers: Any = numbers) -> Tensor:
            return torch.mean((outputs - targets) ** 2) * float(next(numbers))

        LossCheck().check_loss_on_part(loss, torch.ones(4, 2), torch.zeros(4, 2))
        assert next(numbers) == first + 1
