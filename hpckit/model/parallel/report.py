"""What the ranks of a round report of their layout, put together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from hpckit.model.parallel.layout import MOST_RANKS, Layout, MeshAxis
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """What one rank reports: its layout, and the elements of parameters that it holds.

    `whole` are those of the same parameters before they were cut.
    """

    layout: Layout
    held: int
    whole: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutReport:
    """The layout of a round as its ranks report it.

    `parameters` are pairs: a number of consecutive ranks, and the elements that each of them holds.
    `model_parameters` are those of the whole model: of one replica's pipeline stages together.
    Raises ValueError if they are not those of this layout.
    """

    layout: Layout
    parameters: tuple[tuple[int, int], ...]
    model_parameters: int

    def __post_init__(self) -> None:
        """Refuse what no ranks can have reported: folders of others are read, too."""
        sizes = self.layout.sizes.values()
        if min(sizes) < 1 or not 1 <= self.layout.world_size <= MOST_RANKS:
            raise ValueError(f"{self.layout} is no layout")
        if any(count < 1 or held < 0 for count, held in self.parameters):
            raise ValueError(f"{self.parameters} are no counts of parameters")
        if sum(count for count, _ in self.parameters) != self.layout.world_size:
            raise ValueError(f"the parameters are not those of {self.layout.world_size} ranks")

    @property
    def per_rank(self) -> tuple[int, ...]:
        """Return how many elements each rank holds, by rank."""
        return tuple(held for count, held in self.parameters for _ in range(count))


def layout_report(told: Mapping[int, RankLayout]) -> LayoutReport:
    """Return the report of all ranks; raises ValueError if they disagree or some are missing."""
    layout = told[0].layout
    for rank, one in sorted(told.items()):
        if one.layout != layout:
            raise ValueError(f"rank {rank} has the layout {one.layout}, rank 0 has {layout}")
    stages = [layout.rank_at({MeshAxis.pipeline: stage}) for stage in range(layout.pipeline)]
    return LayoutReport(
        layout=layout,
        parameters=run_lengths([told[rank].held for rank in range(len(told))]),
        model_parameters=sum(told[rank].whole for rank in stages),
    )


def run_lengths(values: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return equal neighbours as pairs of their number and their value.

    Example: `[7, 7, 5]` is `((2, 7), (1, 5))`.
    """
    return tuple((len(list(alike)), value) for value, alike in groupby(values))
