"""Errors of torch's compiler in a training step, with what to do about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.checkpoint import CheckpointError

from hpckit.errors import RunError
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import Parallel, Recompute

_COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch")
_SHOWN = 300


@contextmanager
def explain_compiling(settings: Parallel, layout: Layout) -> Iterator[None]:
    """Raise RunError for what torch's compiler, or recomputing compiled units, could not do.

    Nothing is changed without `parallel.compile`.

    ```python
    with explain_compiling(settings, layout):
        loss.backward()
    ```
    """
    try:
        yield
    except Exception as error:
        hint = _hint(error, settings, layout) if settings.compile else None
        if hint is None:
            raise
        told = " ".join(str(error).split())[:_SHOWN]
        raise RunError(f"torch could not train a compiled unit: {told}", hint=hint) from error


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
