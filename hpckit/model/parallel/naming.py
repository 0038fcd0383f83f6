"""How ranks are named to people: with their place in the layout, if they differ in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.model.parallel.layout import Layout
from hpckit.model.ranges import few_ranges


def rank_place(ranks: Sequence[int], layout: Layout | None) -> str:
    """Return where these ranks are in a layout: `replica 1 of 2, pipeline stage 2 of 4`.

    Several ranks have only what they share. Empty in plain data parallelism, where all are alike,
    and for ranks that the layout does not have. Numbers count from 0, as ranks do.
    """
    if layout is None or min(layout.sizes.values()) < 1 or layout.is_data_parallel:
        return ""
    if not ranks or min(ranks) < 0 or max(ranks) >= layout.world_size:
        return ""
    return layout.describe(*ranks)


def name_rank(rank: int, place: str) -> str:
    """Return a rank with its place, if it has one: `rank 5 (replica 1 of 2, shard 1 of 4)`."""
    return f"rank {rank} ({place})" if place else f"rank {rank}"


def name_ranks(numbers: Sequence[int], layout: Layout | None, node: str = "") -> str:
    """Return ranks with the place that they share, and their node: `ranks 4-7 (replica 1 of 2)`.

    Of very many that are not next to each other, the first ones are named, and their number.
    """
    details = "; ".join(filter(None, (rank_place(numbers, layout), node)))
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word} {few_ranges(numbers)}" + (f" ({details})" if details else "")
