"""Errors of torch in a step of a model that is laid out, with what to do about them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointError

from hpckit.errors import HpckitError, RunError
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import Parallel, Recompute
from hpckit.runtime.parallel.tensor_parallel import TensorCut

_COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch")
_SHOWN = 300
_NAME_IT = (
    "name a layer in Plan(sequence=…) if it treats every position by itself, as norms and gates "
    "do, in columns or rows if it makes or takes parts as they do; put a parameter of the block's "
    "own into a module; what works on single heads needs another layout"
)
_HAVE_WHOLE = (
    "parallel.sequence=false has them whole outside of the plan's columns and rows, with buffers, "
    "masks and means as they are in one process"
)
_OF_PARTS = "/torch/distributed/tensor/"
_IS_COPY = "_hpckit_is_copy"


@contextmanager
def explain_torch_errors(settings: Parallel, layout: Layout, cut: TensorCut | None) -> Iterator[None]:
    """Raise RunError for what torch says without naming a layer or a setting of hpckit.

    That is what its compiler, or recomputing compiled units, could not do; what a unit that is
    cut over ranks could not compute with the layers that its plan leaves out; and what torch does
    not compute from parts of a sequence, such as with a plain tensor.

    ```python
    with explain_torch_errors(settings, layout, cut):
        loss.backward()
    ```
    """
    in_parts = cut is not None and settings.sequence
    try:
        yield
    except Exception as error:
        blamed = cut.explain_unit_error(error) if cut is not None else ""
        if blamed:
            raise RunError(blamed, hint=_NAME_IT) from error
        told = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
        frames = traceback.extract_tb(error.__traceback__)
        # Where torch computes with tensors that are cut over ranks.
        is_of_parts = any(_OF_PARTS in frame.filename for frame in frames) or "DTensor" in str(error)
        if in_parts and not isinstance(error, HpckitError) and is_of_parts:
            raise RunError(
                f"torch cannot compute with activations that are cut along the sequence: {told}",
                hint=_HAVE_WHOLE,
            ) from error
        hint = _compile_error_hint(error, settings, layout) if settings.compile else None
        if hint is None:
            raise
        raise RunError(f"torch could not train a compiled unit: {told}", hint=hint) from error


def _compile_error_hint(error: Exception, settings: Parallel, layout: Layout) -> str | None:
    if isinstance(error, CheckpointError) and settings.recompute is Recompute.blocks:
        return (
            "its second pass took other compiled code than the first one: keep what differs from "
            "unit to unit in tensors, not in floats of Python, or take parallel.recompute="
            "selective or none, or parallel.compile=false"
        )
    if type(error).__module__.startswith(_COMPILER):
        lengths = layout.tensor > 1 or layout.context > 1
        same = "give all batches one shape, or " if lengths else ""
        return f"{same}set parallel.compile=false"
    return None


class LostWrites(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, writing in place into some positions of a cut sequence is refused.

    What torch gives for these positions is a copy, so that the write would be lost silently.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; raises RunError if it would change such a copy."""
        del types
        first = args[0] if args else None
        is_copy = isinstance(first, DTensor) and getattr(first, _IS_COPY, False)
        if is_copy and func._schema.is_mutable:  # noqa: SLF001  # torch has no other name
            raise RunError(
                f"the model writes in place into some positions of a sequence ({func}), and each "
                "rank has a part of these: torch would write into a copy",
                hint=f"write x = torch.cat(…) instead; or {_HAVE_WHOLE}",
            )
        found = func(*args, **kwargs or {})
        returned = func._schema.returns  # noqa: SLF001
        is_view = bool(returned) and returned[0].alias_info is not None
        if is_view and isinstance(first, DTensor) and isinstance(found, DTensor):
            setattr(found, _IS_COPY, is_copy or (_has_shards(first) and not _has_shards(found)))
        return found


def _has_shards(tensor: DTensor) -> bool:
    return any(placement.is_shard() for placement in tensor.placements)
