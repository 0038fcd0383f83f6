"""Whether the layout would change what a user's loss trains.

It has to add up over rows and positions. A function is looked at in some of its first steps, as the
first batch may have no padding: it is called for some rows and for their halves, and with
`parallel.context` for the positions of this rank and for their halves.

And it must take parameters of the model through its outputs only: `run.train_step` sees to their
gradients. What a loss has or takes besides would be trained otherwise in each layout, silently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from hpckit.model.parallel.layout import Layout
from hpckit.runtime.parallel.kept_state import preserve_function_state
from hpckit.values import dataclass, field

_REACHED = (
    "return such terms from forward, among the outputs, and add them up there; or choose a layout "
    "with parallel.pipeline=1. parallel.self_check=false trains it unchecked"
)
_OWN = (
    "put them into the model that run.parallelize lays out, and let forward return what they make. "
    "parallel.self_check=false trains it unchecked"
)


@dataclass(slots=True, kw_only=True)
class LossGraph:
    """Finds the parameters that a loss takes by itself, not through the outputs of the model.

    With pipeline stages, those of other ranks would be missed. What is no part of the model gets
    neither the mean over ranks nor the weight of a sum.

    `run.train_step` knows the parameters of the model, and of other laid out ones (`of_others`).
    """

    model: nn.Module
    of_others: Callable[[Tensor], bool]
    layout: Layout
    _of_model: frozenset[int] = field(init=False)
    _direct: list[Tensor] = field(default_factory=list)
    _through: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._of_model = frozenset(map(id, self.model.parameters()))

    def find_parameters_bypassing_outputs(self, value: Tensor, outputs: Any, targets: Any) -> None:
        """Look at the graph of a loss of these, before its backward pass."""
        given = [leaf for leaf in list_tree_leaves((outputs, targets)) if isinstance(leaf, Tensor)]
        ends = {tensor.grad_fn for tensor in given} - {None}
        known = {id(tensor) for tensor in given}
        below = _find_graph_leaves_below(value.grad_fn, ends)
        self._direct = [node for node in below if id(node) not in known]
        if self._direct:
            every = (_find_graph_leaves_below(end, set()) for end in ends)
            self._through = {id(one) for found in every for one in found}

    def explain_stray_parameters(self, *, pair: bool) -> tuple[str, str]:
        """Return what is wrong, and what to do, after the backward pass; empty if nothing is."""
        direct, self._direct = self._direct, []
        sizes = self.layout
        if sizes.pipeline > 1:
            reached = [
                node
                for node in direct
                if id(node) in self._through or (_is_dtensor(node) and id(node) in self._of_model)
            ]
            if reached:
                problem = (
                    f"loss(outputs, targets) takes {_describe_parameters(reached)} of the model by "
                    "itself, and only the last pipeline stage calls it: what other stages have "
                    "would be missed"
                )
                return problem, _REACHED
        own = [node for node in direct if self._is_parameter_of_loss(node)]
        others = [node for node in own if not self.of_others(node)]
        if pair and own:
            problem = (
                "loss(outputs, targets) returns a sum with its weight, and has "
                f"{_describe_parameters(own)} that the model does not have: their gradients would "
                "not be divided by the weight"
            )
            return problem, f"return a mean over rows; or {_OWN}"
        if others and sizes.data_size * sizes.context * sizes.pipeline > 1:
            problem = (
                f"loss(outputs, targets) has {_describe_parameters(others)} that the model does "
                "not have: each rank would train its own"
            )
            return problem, _OWN
        return "", ""

    def _is_parameter_of_loss(self, one: Tensor) -> bool:
        if id(one) in self._through or id(one) in self._of_model:
            return False
        # FSDP gathers parameters into others, which have no memory after the backward pass.
        return _is_dtensor(one) or one.untyped_storage().size() > 0


def _is_dtensor(one: Tensor) -> bool:
    """Return whether this is a DTensor; to import that would take each rank half a second."""
    return hasattr(one, "full_tensor")


def _find_graph_leaves_below(node: Any, ends: Collection[Any]) -> Iterator[Tensor]:
    seen, waiting = set(ends), [node]
    while waiting:
        one = waiting.pop()
        if one is None or one in seen:
            continue
        seen.add(one)
        found = getattr(one, "variable", None)
        if isinstance(found, Tensor):
            yield found
        waiting += [below for below, _ in one.next_functions]


def _describe_parameters(parameters: Sequence[Tensor]) -> str:
    first = f"a parameter {list(parameters[0].shape)}"
    return first if len(parameters) == 1 else f"{len(parameters)} parameters, such as {first}"


def list_tree_leaves(value: Any) -> list[Any]:
    """Return all that is in tuples, lists and dictionaries."""
    found: list[Any] = torch.utils._pytree.tree_leaves(value)  # noqa: SLF001  # torch has no other
    return found


_log = logging.getLogger("hpckit.rank")
_LEAST = 2


_HALVES = 2
_MOST = 8
"""Functions that are remembered, and so looked at; a new one in each step would cost each step."""
LOOKS = frozenset({1, 2, 4, 8, 16, 32, 64})
"""The steps of a function that are looked at; later ones would end a run that took hours."""
_PAIR = (
    "return a pair: the sum of what counts, and its weight, such as the number of targets that "
    "count: (losses.sum(), counted.sum())"
)
_POSITIONS = (
    "have the loss treat each position by itself: shift targets before run.train_step, and give a "
    "target of -100 to positions that do not count"
)
_POOLED = "choose a layout with parallel.context=1 for a model that puts out something else"


@dataclass(slots=True, kw_only=True)
class LossCheck:
    """Compares the loss of some rows with those of their halves; looks at the first two or more.

    `positions` is how many of each sequence this rank has; 0 if it has all. Then halves of these
    are compared, too. `problem` says what was found, and `hint` what to do. It is empty if the loss
    adds up, or if nothing can be said: its value is drawn, or what it takes cannot be cut.
    """

    positions: int = 0
    graph: LossGraph | None = None
    problem: str = ""
    hint: str = ""
    _kept: list[tuple[Tensor, Any]] = field(default_factory=list)
    _done: bool = False
    _traced: bool = False

    def trace_loss_graph_once(self, value: Tensor, outputs: Any, targets: Any) -> None:
        """Look at the graph of the loss of the first part of a batch."""
        if self.graph is not None and not self._traced:
            self._traced = True
            self.graph.find_parameters_bypassing_outputs(value, outputs, targets)

    def check_loss_on_part(self, function: Callable[[Any, Any], Any], outputs: Any, targets: Any) -> None:
        """Look at a part of a batch; a single row is kept until the next one comes."""
        if self._done:
            return
        self._detect_pooled_outputs(outputs)
        if self._done or not isinstance(outputs, Tensor) or not outputs.dim():
            self._done = True
            return
        self._kept.append((outputs.detach(), targets))
        if sum(len(one) for one, _ in self._kept) >= _HALVES:
            self._compare_kept_rows(function)

    def finish_check(self, function: Callable[[Any, Any], Any], *, pair: bool) -> None:
        """Look at a single row, if there was no more: twice the row has to have its loss, too."""
        if self.graph is not None and not self.problem:
            self.problem, self.hint = self.graph.explain_stray_parameters(pair=pair)
            self._done |= bool(self.problem)
        if self._kept and not self._done:
            self._kept *= 2
            self._compare_kept_rows(function)

    def _detect_pooled_outputs(self, outputs: Any) -> None:
        if not self.positions:
            return
        shapes = [list(leaf.shape) for leaf in list_tree_leaves(outputs) if isinstance(leaf, Tensor)]
        if shapes and all(shape[1:2] != [self.positions] for shape in shapes):
            self._done = True
            self.problem = (
                f"parallel.context gives this rank {self.positions} positions of each sequence, "
                f"and the model returned {shapes[0]}: it would compute from these what it "
                "should compute from all of them"
            )
            self.hint = _POOLED

    def _compare_kept_rows(self, function: Callable[[Any, Any], Any]) -> None:
        kept, self._kept, self._done = self._kept, [], True
        outputs, targets = kept[0]
        if len(kept) > 1:
            if not isinstance(targets, Tensor):
                return
            outputs, targets = (torch.cat(ones) for ones in zip(*kept, strict=True))
        rows = len(outputs)
        self._compare_loss_with_halves(function, (outputs, targets), rows, 0, "rows")
        if self.positions >= _HALVES and not self.problem:
            self._compare_loss_with_halves(function, (outputs, targets), self.positions, 1, "positions")

    def _compare_loss_with_halves(
        self, function: Callable[[Any, Any], Any], given: tuple[Tensor, Any], count: int, axis: int, what: str
    ) -> None:
        outputs, half = given[0], count // 2
        cuts = [slice(0, count), slice(0, count), slice(0, half), slice(half, count)]
        try:
            with preserve_function_state(function), torch.no_grad():
                values = [
                    function(*(slice_tensors_in_value(value, cut, axis=axis, size=count) for value in given))
                    for cut in cuts
                ]
            numbers = [
                _to_loss_sum_and_weight(one, cut.stop - cut.start)
                for one, cut in zip(values, cuts, strict=True)
            ]
        except Exception as error:  # noqa: BLE001  # the user's code, in a way it was not made for
            _log.debug("the loss could not be compared with that of its %s: %s", what, error)
            return
        tensors = [leaf for leaf in list_tree_leaves((outputs, values)) if isinstance(leaf, Tensor)]
        roundings = [torch.finfo(tensor.dtype).eps for tensor in tensors if tensor.is_floating_point()]
        if not roundings or numbers[0] != numbers[1]:
            return
        # Rounding may make a difference of half of the digits.
        self.problem = _explain_loss_is_no_mean(count, what, numbers, max(roundings) ** 0.5)
        self.hint = _PAIR if axis == 0 else _POSITIONS


def _to_loss_sum_and_weight(value: Any, count: int) -> tuple[float, float]:
    if isinstance(value, tuple):
        return float(value[0]), float(value[1])
    return float(value) * count, float(count)


def _explain_loss_is_no_mean(
    count: int, what: str, numbers: Sequence[tuple[float, float]], tolerance: float
) -> str:
    (total, weight), _, first, second = numbers
    both = first[1] + second[1]
    if not weight or not both:
        return ""
    whole, mean = total / weight, (first[0] + second[0]) / both
    sizes = [abs(one) / other for one, other in (numbers[0], first, second) if other]
    is_far = abs(whole - mean) > tolerance * max(sizes)
    if not is_far and (isfinite(mean) or not isfinite(whole)):
        return ""
    return (
        f"loss(outputs, targets) is no mean over {what}: it is {whole:.6g} for {count} {what}, and "
        f"the mean of its values for their halves is {mean:.6g}; the layout would change what is "
        "trained"
    )


def slice_tensors_in_value(value: Any, part: Any, *, axis: int, size: int) -> Any:
    """Return a part, along an axis, of the tensors in a value that have this size there.

    What is no tensor is left as it is, unless it is an object of its own that can be cut into rows.
    """

    def slice_leaf(one: Any) -> Any:
        if isinstance(one, Tensor):
            fits = one.dim() > axis and one.shape[axis] == size
            return one[(slice(None),) * axis + (part,)] if fits else one
        is_own = axis == 0 and hasattr(one, "__getitem__") and not isinstance(one, str | bytes)
        return one[part] if is_own else one

    return torch.utils._pytree.tree_map(slice_leaf, value)  # noqa: SLF001


@dataclass(slots=True, kw_only=True)
class KnownLoss:
    """What is known of a loss function: whether it returns a sum and its weight, once called."""

    marks: tuple[Any, ...]
    pair: bool | None = None
    steps: int = 0

    @property
    def is_checked_step(self) -> bool:
        """Whether this step of the function is looked at, on all ranks alike."""
        return self.steps in LOOKS


@dataclass(slots=True)
class KnownLosses:
    """The loss functions of one model; functions that are made again in each step are one."""

    _known: list[KnownLoss] = field(default_factory=list)

    def find_loss_and_count_step(self, function: Callable[[Any, Any], Any]) -> KnownLoss:
        """Return what is known of a function of a step that begins.

        It is the same on all ranks, which call the same functions.
        """
        marks = _function_identity_parts(function)
        for one in self._known:
            same = len(one.marks) == len(marks)
            if same and all(a is b for a, b in zip(one.marks, marks, strict=True)):
                one.steps += 1
                return one
        made = KnownLoss(marks=marks)
        if len(self._known) < _MOST:
            made.steps = 1
            self._known.append(made)
        return made


def _function_identity_parts(function: Any) -> tuple[Any, ...]:
    """Return what makes a function itself; kept, so that nothing else gets its identity."""
    if isinstance(function, partial):
        return (*_function_identity_parts(function.func), *function.args, *function.keywords.values())
    code = getattr(function, "__code__", None)
    if code is None:
        return (function,)
    owner = getattr(function, "__self__", None)
    return (code, owner, *(getattr(function, "__closure__", None) or ()))
