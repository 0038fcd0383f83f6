"""The place of every rank on the axes of a layout, and what ranks report of it. Pure.

`planning/layout.py` makes layouts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import groupby, product

from hpckit.model.counted import format_first_ranges
from hpckit.values import dataclass, replace

MOST_RANKS = 1_000_000
"""A larger number is a slip of the keyboard, or damaged."""


class MeshAxis(StrEnum):
    """The axes of a layout, the outermost first: neighbouring ranks differ in the last ones."""

    replicate = "replicate"
    pipeline = "pipeline"
    shard = "shard"
    context = "context"
    tensor = "tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of all axes, 1 or more; their product is the number of ranks.

    Example: `Layout(replicate=2, tensor=4).coordinates(5)` is replica 1, tensor 1.
    """

    replicate: int = 1
    pipeline: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def sizes(self) -> dict[MeshAxis, int]:
        """Return the size of each axis, the outermost first."""
        return {axis: getattr(self, axis.value) for axis in MeshAxis}

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes.values())

    @property
    def replica_size(self) -> int:
        """Number of ranks that hold one copy of the model."""
        return self.world_size // self.replicate

    @property
    def data_size(self) -> int:
        """Number of parts that each batch is cut into."""
        return self.replicate * self.shard

    @property
    def is_data_parallel(self) -> bool:
        """Whether every rank has a whole copy of the model."""
        return self.replica_size == 1

    def coordinates(self, rank: int) -> dict[MeshAxis, int]:
        """Return the place of a rank on each axis; raises ValueError if there is no such rank."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} of {self.world_size}")
        found: dict[MeshAxis, int] = {}
        for axis, size in reversed(self.sizes.items()):
            rank, found[axis] = divmod(rank, size)
        return {axis: found[axis] for axis in MeshAxis}

    def rank_at(self, coordinates: Mapping[MeshAxis, int]) -> int:
        """Return the rank at a place; axes that are not named count as 0."""
        rank = 0
        for axis, size in self.sizes.items():
            place = coordinates.get(axis, 0)
            if not 0 <= place < size:
                raise ValueError(f"{axis} {place} of {size}")
            rank = rank * size + place
        return rank

    def data_rank(self, rank: int) -> int:
        """Return which part of each batch a rank gets, from 0 to `data_size` - 1."""
        at = self.coordinates(rank)
        return at[MeshAxis.replicate] * self.shard + at[MeshAxis.shard]

    def peers(self, rank: int, *axes: MeshAxis) -> tuple[int, ...]:
        """Return the ranks that differ from a rank on these axes only, in order, with itself."""
        at, sizes = self.coordinates(rank), self.sizes
        places = product(*(range(sizes[axis]) for axis in axes))
        found = (at | dict(zip(axes, place, strict=True)) for place in places)
        return tuple(sorted(map(self.rank_at, found)))

    def with_replicas(self, replicas: int) -> Layout:
        """Return the same layout with another number of replicas."""
        return replace(self, replicate=replicas)

    def describe_shared_coordinates(self, *ranks: int) -> str:
        """Return where ranks are: `replica 1 of 2, pipeline stage 2 of 4`; empty if one is alone.

        Several ranks have only what they share. Numbers count from 0, as ranks do.
        """
        words = {MeshAxis.replicate: "replica", MeshAxis.pipeline: "pipeline stage"}
        first, *others = (self.coordinates(rank) for rank in ranks)
        return ", ".join(
            f"{words.get(axis, axis.value)} {place} of {self.sizes[axis]}"
            for axis, place in first.items()
            if self.sizes[axis] > 1 and all(other[axis] == place for other in others)
        )

    def __str__(self) -> str:
        """Return the axes that are in use: `replicate 2 x tensor 4`."""
        used = [f"{axis} {size}" for axis, size in self.sizes.items() if size > 1]
        return " x ".join(used) or "replicate 1"


def describe_ranks_in_layout(ranks: Sequence[int], layout: Layout | None) -> str:
    """Return where these ranks are in a layout: `replica 1 of 2, pipeline stage 2 of 4`.

    Several ranks have only what they share. Empty in plain data parallelism, where all are alike,
    and for ranks that the layout does not have. Numbers count from 0, as ranks do.
    """
    if layout is None or min(layout.sizes.values()) < 1 or layout.is_data_parallel:
        return ""
    if not ranks or min(ranks) < 0 or max(ranks) >= layout.world_size:
        return ""
    return layout.describe_shared_coordinates(*ranks)


def format_rank(rank: int, place: str) -> str:
    """Return a rank with its place, if it has one: `rank 5 (replica 1 of 2, shard 1 of 4)`."""
    return f"rank {rank} ({place})" if place else f"rank {rank}"


def format_ranks(numbers: Sequence[int], layout: Layout | None, node: str = "") -> str:
    """Return ranks with the place that they share, and their node: `ranks 4-7 (replica 1 of 2)`.

    Of very many that are not next to each other, the first ones are named, and their number.
    """
    details = "; ".join(filter(None, (describe_ranks_in_layout(numbers, layout), node)))
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word} {format_first_ranges(numbers)}" + (f" ({details})" if details else "")


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
            raise ValueError(f"{self.layout} is not a valid layout")
        if any(count < 1 or held < 0 for count, held in self.parameters):
            raise ValueError(f"{self.parameters} are not valid counts of parameters")
        if sum(count for count, _ in self.parameters) != self.layout.world_size:
            raise ValueError(f"the parameters are not those of {self.layout.world_size} ranks")

    @property
    def per_rank(self) -> tuple[int, ...]:
        """Return how many elements each rank holds, by rank."""
        return tuple(held for count, held in self.parameters for _ in range(count))


def merge_rank_layouts(told: Mapping[int, RankLayout]) -> LayoutReport:
    """Return the report of all ranks; raises ValueError if they disagree or some are missing."""
    layout = told[0].layout
    for rank, one in sorted(told.items()):
        if one.layout != layout:
            raise ValueError(f"rank {rank} has the layout {one.layout}, rank 0 has {layout}")
    stages = [layout.rank_at({MeshAxis.pipeline: stage}) for stage in range(layout.pipeline)]
    return LayoutReport(
        layout=layout,
        parameters=encode_run_lengths([told[rank].held for rank in range(len(told))]),
        model_parameters=sum(told[rank].whole for rank in stages),
    )


def encode_run_lengths(values: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return equal neighbours as pairs of their number and their value.

    Example: `[7, 7, 5]` is `((2, 7), (1, 5))`.
    """
    return tuple((len(list(alike)), value) for value, alike in groupby(values))
