"""Errors of torch in a step of a model that is laid out, with what to do about them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch.distributed.tensor.experimental import implicit_replication
from torch.utils.checkpoint import CheckpointError

from hpckit.errors import RunError
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
_OF_PARTS = "/torch/distributed/tensor/"


@contextmanager
def explain_errors(settings: Parallel, layout: Layout, cut: TensorCut | None) -> Iterator[None]:
    """Raise RunError for what torch says without naming a layer or a setting of hpckit.

    That is what its compiler, or recomputing compiled units, could not do; what a unit that is
    cut over ranks could not compute with the layers that its plan leaves out; and what torch does
    not compute from parts of a sequence. A plain tensor beside such parts, like a buffer or a mask,
    is taken as the whole one that it is.

    ```python
    with explain_errors(settings, layout, cut):
        loss.backward()
    ```
    """
    in_parts = cut is not None and settings.sequence
    try:
        with implicit_replication() if in_parts and not settings.compile else nullcontext():
            yield
    except Exception as error:
        blamed = cut.blamed_for(error) if cut is not None else ""
        if blamed:
            raise RunError(blamed, hint=_NAME_IT) from error
        told = " ".join(str(error).split())[:_SHOWN]
        if in_parts and _is_of_parts(error):
            raise RunError(
                f"torch cannot compute with activations that are cut along the sequence: {told}",
                hint="parallel.sequence=false has them whole outside of the plan's columns and "
                "rows; or do it in a module of a unit that the plan names",
            ) from error
        hint = _hint(error, settings, layout) if settings.compile else None
        if hint is None:
            raise
        raise RunError(f"torch could not train a compiled unit: {told}", hint=hint) from error


def _is_of_parts(error: Exception) -> bool:
    """Return whether torch raised it where it computes with tensors that are cut over ranks."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(_OF_PARTS in one.filename for one in frames) or "DTensor" in str(error)


def _hint(error: Exception, settings: Parallel, layout: Layout) -> str | None:
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
