"""Whether a unit that is cut over ranks computes what the whole one does: once, in the first step.

Shapes do not tell of a fixed number of heads, of two projections in one matrix, or of attention
that sees a part of the sequence only. So the real input of one unit of each class is put together,
the whole unit runs on it on every rank, and what both put out is compared.

What `forward` does outside of units, by places counted from the beginning of what it gets, would be
of a rank's part of a sequence alone. So with a context the beginning of one row runs in parts, and
once more whole on each rank.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call

from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import Parallel, Precision
from hpckit.runtime.generators import preserve_generators
from hpckit.runtime.parallel.batch_checks import raise_problem_on_all_ranks
from hpckit.runtime.parallel.context.context_parallel import ContextShards
from hpckit.runtime.parallel.kept_state import preserve_module_state, use_evaluation_mode
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.runtime.parallel.step_errors import LostWrites
from hpckit.runtime.parallel.tensor_parallel import TensorCut
from hpckit.values import dataclass, field

_log = logging.getLogger("hpckit.rank")
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2}
"""The largest difference at a position, as a share of what a unit adds there."""
_COARSE = 0.1
"""The same for types with fewer digits."""
_ROUNDINGS = 8
_MOST_POSITIONS = 256
"""Positions that are compared: a whole sequence may need more memory than a rank has."""


@dataclass(slots=True, kw_only=True)
class UnitCheck:
    """Compares one unit, `name`, with its whole, which has shapes and no memory.

    The last forward pass that is watched counts. All ranks that share the unit make the same calls.
    """

    name: str
    whole: nn.Module
    unit: nn.Module
    context: ContextShards | None
    half: bool = False
    _seen: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def record_unit_inputs_and_outputs(self) -> Iterator[None]:
        """Keep what goes into the unit, and what comes out of it; leave nothing in the model."""
        before = self.unit.register_forward_pre_hook(self._record_inputs, with_kwargs=True)
        after = self.unit.register_forward_hook(self._record_output)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self._seen = {}

    def explain_difference_from_whole(self) -> str:
        """Return how the unit differs from its whole; empty if it does not, or if that is unknown.

        Collective on the ranks that have the unit.
        """
        seen, self._seen = self._seen, {}
        if "output" not in seen:
            return ""
        with torch.no_grad(), _silence_redistribute_log():
            device = seen["output"].device
            named = self.unit.named_parameters()
            tensors = {name: self._gather_parameter(one).to(device) for name, one in named}
            try:
                return self._compare_with_whole(seen, tensors)
            except Exception as error:  # noqa: BLE001  # the user's code, or not enough memory
                _log.debug("unit %s could not be compared with its whole: %s", self.name, error)
                return ""

    def _compare_with_whole(self, seen: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
        self.whole.train(self.unit.training)
        given, output = seen["args"], seen["output"]
        with preserve_generators():
            first, second = (
                functional_call(
                    self.whole,
                    {**tensors, **{name: one.clone() for name, one in seen["buffers"].items()}},
                    tuple(_clone_tensor(value) for value in given),
                    {name: _clone_tensor(one) for name, one in seen["kwargs"].items()},
                )
                for _ in range(2)
            )
        if not isinstance(first, Tensor) or first.shape != output.shape:
            _log.debug("unit %s returns something else than its whole", self.name)
            return ""
        if not torch.equal(first, second):
            _log.debug("unit %s draws numbers, so that it cannot be compared", self.name)
            return ""
        far = explain_output_difference(output, first, given[0] if given else None)
        return far and (
            f"{self.name} puts out something else than the whole unit does for the same row: {far} "
            "of what the unit adds"
        )

    def _gather_parameter(self, one: Tensor) -> Tensor:
        whole = one.full_tensor() if isinstance(one, DTensor) else one.detach()
        return whole.bfloat16() if self.half and whole.is_floating_point() else whole

    def _record_inputs(self, unit: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with torch.no_grad(), _silence_redistribute_log():
            self._seen = {
                "args": tuple(self._gather_first_row(arg) for arg in args),
                "kwargs": {name: self._gather_first_row(one) for name, one in kwargs.items()},
                "buffers": {name: one.detach().clone() for name, one in unit.named_buffers()},
            }

    def _record_output(self, _: nn.Module, __: Any, output: Any) -> None:
        with torch.no_grad(), _silence_redistribute_log():
            if isinstance(output, Tensor):
                self._seen["output"] = self._gather_first_row(output)

    def _gather_first_row(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < len(("rows", "length")):
            return value
        one = value.detach()[:1]
        one = one.full_tensor() if isinstance(one, DTensor) else one.clone()
        return one if self.context is None else self.context.gather_sequence(one)


def _format_unit_hint(layout: Layout) -> str:
    causes = {
        "a fixed number of heads (unflatten by the width of a head, -1 heads)": layout.tensor,
        "several projections in one matrix": layout.tensor,
        "attention that is not scaled_dot_product_attention": layout.context,
        "a shift or another mixture along the sequence": layout.context,
        "positions that the unit counts by itself": layout.context,
    }
    likely = "; ".join(cause for cause, size in causes.items() if size > 1)
    return f"likely: {likely}. parallel.self_check=false trains it unchecked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCheck:
    """Compares the outputs of a model for a sequence in parts with those for the whole one."""

    model: nn.Module
    shards: ContextShards

    hint: ClassVar[str] = (
        "likely, forward counts positions from 0 outside of the units (self.positions[:, :length], "
        "rotary tables cut by the length, a shift, a token put in front), and each rank has other "
        "ones: index by `positions`, which forward is given. parallel.self_check=false trains it "
        "unchecked"
    )

    def explain_difference_from_whole(self, row: Tensor, kwargs: Mapping[str, Any]) -> str:  # noqa: ARG002  # as for stages
        """Return how outputs differ for a row [1, …]; empty if they do not, or it is unknown.

        `row` and `kwargs` are of this rank's positions. Collective.
        """
        pieces = 2 * self.shards.size
        text = self.shards.gather_sequence(row)
        text = text[:, : min(text.shape[1], max(_MOST_POSITIONS, pieces)) // pieces * pieces]
        own = self.shards.find_own_positions(text.shape[1], text.device)
        with torch.no_grad(), use_evaluation_mode(self.model), preserve_module_state(self.model):
            try:
                return self._compare_with_whole(text, own)
            except Exception as error:  # noqa: BLE001  # the user's code, for another length
                _log.debug("parts of sequences could not be compared with whole ones: %s", error)
                return ""

    def _compare_with_whole(self, text: Tensor, own: Tensor) -> str:
        found = self._run_model_at_positions(text[:, own], own)
        everywhere = torch.arange(text.shape[1], device=text.device)
        with self.shards.disable_ring_attention():
            wanted, second = (self._run_model_at_positions(text, everywhere) for _ in range(2))
        if not isinstance(found, Tensor) or not isinstance(wanted, Tensor):
            return ""
        found = self.shards.gather_sequence(found)
        if found.shape != wanted.shape or wanted.dim() < len(("rows", "positions", "values")):
            return ""
        if not torch.equal(wanted, second):
            _log.debug("the model draws numbers, so that it cannot be compared")
            return ""
        far = explain_output_difference(found, wanted)
        return far and (
            "the model puts out something else for the parts of a sequence than for the whole one: "
            f"{far} of its outputs"
        )

    def _run_model_at_positions(self, text: Tensor, positions: Tensor) -> Any:
        return self.model(text, positions=positions.expand(len(text), -1))


def make_unit_checks(
    units: Mapping[str, nn.Module], context: ContextShards | None, settings: Parallel
) -> tuple[UnitCheck, ...]:
    """Return a check of one unit of each class, while units are whole; by their names."""
    found: dict[type[nn.Module], UnitCheck] = {}
    half = settings.params is Precision.bf16
    for name, unit in units.items():
        if type(unit) in found:
            continue
        shapes: dict[int, Any] = {id(buffer): buffer.detach().to("meta") for buffer in unit.buffers()}
        for parameter in unit.parameters():
            shapes[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        try:
            whole = copy.deepcopy(unit, shapes)
        except Exception as error:  # noqa: BLE001  # the user's module
            _log.debug("unit %s cannot be copied: %s", name, error)
        else:
            found[type(unit)] = UnitCheck(name=name, whole=whole, unit=unit, context=context, half=half)
    return tuple(found.values())


@contextmanager
def compare_cut_units_with_whole(
    checks: Sequence[UnitCheck], mesh: RankMesh, cut: TensorCut | None
) -> Iterator[None]:
    """Compare units that are cut with whole ones; raises RunError on all ranks; collective."""
    with ExitStack() as stack:
        for check in checks:
            stack.enter_context(check.record_unit_inputs_and_outputs())
        with nullcontext() if cut is None else LostWrites():  # type: ignore[no-untyped-call]
            yield
        problems = [check.explain_difference_from_whole() for check in checks]
        raise_problem_on_all_ranks(mesh, next(filter(None, problems), ""), _format_unit_hint(mesh.layout))


def _clone_tensor(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def explain_output_difference(found: Tensor, wanted: Tensor, given: Any = None) -> str:
    """Return how far outputs are apart; empty if they are the same but for rounding.

    It is a share of what a unit adds to what it is given.
    """
    coarse = found.dtype
    found, wanted = found.double(), wanted.double()
    added = wanted
    if isinstance(given, Tensor) and given.shape == wanted.shape:
        added = wanted - given.double()
    far = float(torch.linalg.vector_norm(found - wanted, dim=-1).max())
    adds = torch.linalg.vector_norm(added, dim=-1).mean()
    size = torch.linalg.vector_norm(wanted, dim=-1).max()
    allowed = _TOLERANCES.get(coarse, _COARSE) * adds
    rounding = _ROUNDINGS * torch.finfo(coarse).eps * size
    if far <= float(allowed + rounding):
        return ""
    return f"it is off by {far / float(adds) if adds else far:.2g}"


@contextmanager
def _silence_redistribute_log() -> Iterator[None]:
    """Keep back torch's remarks on gathering, which happens once here."""
    logger = logging.getLogger("torch.distributed.tensor._redistribute")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
