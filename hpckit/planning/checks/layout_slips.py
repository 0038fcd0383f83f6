"""Warnings about layouts that are not what their words say. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.model.finding import Finding, warning
from hpckit.model.launch import LaunchConfig
from hpckit.model.parallel.layout import MeshAxis
from hpckit.model.parallel.settings import SizeWord
from hpckit.planning.layout import layout_of, shape_of

_CHOICE = "parallel="


def layout_slips(settings: LaunchConfig, words: Sequence[str]) -> Iterator[Finding]:
    """Yield warnings about the layout of a run; `words` are the overrides that asked for it.

    Example: `parallel=fsdp parallel.tensor=2` on two ranks leaves nothing to shard.
    """
    layout, shape = layout_of(settings), shape_of(settings)
    if shape.ranks == 1:
        return
    choice = next((one for one in reversed(words) if one.startswith(_CHOICE)), "")
    if choice == "parallel=layout" and layout.is_data_parallel:
        yield warning(
            "parallel",
            "layout",
            f"parallel=layout comes with no sizes: it is plain data parallelism, {layout}",
            "add sizes, such as parallel.shard=2; parallel=none says the same without a question",
        )
    if choice == "parallel=none" and not layout.is_data_parallel:
        yield warning(
            "parallel",
            "none",
            f"parallel=none comes with sizes that make it {layout}",
            "write parallel=layout for sizes of your own, or leave the sizes out",
        )
    for axis in MeshAxis:
        word = getattr(settings.parallel, axis.value)
        idle = isinstance(word, SizeWord | str) and layout.sizes[axis] == 1
        if axis is not MeshAxis.replicate and idle:
            others = f"the {shape} are all in {layout}"
            yield warning(
                f"parallel.{axis}",
                word,
                f"parallel.{axis}={word} has no effect: {others}",
                "take more ranks, or smaller sizes of the other axes",
            )
