"""The ranks of a run as torch's DeviceMesh, and the groups along its axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.values import dataclass

_SHARDS = "shard_context"
"""The axes over which parameters are sharded, as one."""


@dataclass(frozen=True)
class RankMesh:
    """The mesh of all ranks, and this rank's groups in it. All ranks make it at the same time.

    If it is not for training, no gradients are summed, and so nothing is sharded.
    """

    layout: Layout
    device: torch.device
    rank: int
    for_training: bool = True

    @cached_property
    def full_mesh(self) -> DeviceMesh:
        """The mesh with all axes, also those of size 1: replicate, pipeline, shard, …."""
        sizes = self.layout.sizes
        names = tuple(axis.value for axis in sizes)
        return init_device_mesh(self.device.type, tuple(sizes.values()), mesh_dim_names=names)

    @cached_property
    def data_mesh(self) -> DeviceMesh:
        """The mesh for sharding: (replicas, shards), or shards alone if there is one replica.

        Ranks that differ in `context` hold the same part of the model otherwise, so that they
        share parameters and sum gradients as data ranks do.
        """
        several = self.layout.replicate > 1
        if self.layout.context == 1:
            return self.full_mesh["replicate", "shard"] if several else self.full_mesh["shard"]
        shards = self.full_mesh["shard", "context"]._flatten(_SHARDS)  # noqa: SLF001  # the only way
        return self.full_mesh["replicate", _SHARDS] if several else shards

    @property
    def averages_gradients(self) -> bool:
        """Whether gradients of several ranks are averaged."""
        layout = self.layout
        return self.for_training and layout.replicate * layout.shard * layout.context > 1

    def axis_mesh(self, axis: MeshAxis) -> DeviceMesh:
        """Return the mesh of the ranks that differ from this one on one axis only."""
        return self.full_mesh[axis.value]

    def axis_group(self, axis: MeshAxis) -> dist.ProcessGroup:
        """Return the process group of the ranks that differ from this one on one axis only."""
        return self.full_mesh.get_group(axis.value)

    def rank_index_on_axis(self, axis: MeshAxis) -> int:
        """Return where this rank is on an axis."""
        return self.layout.coordinates(self.rank)[axis]

    def begin_sum_over_ranks(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin the sum of a number over all ranks, in float64; collective.

        Return what waits for the ranks that have not begun it, and returns the sum. A rank alone
        sends nothing: its first collective would cost NCCL's memory, 0.55 GiB.
        """
        total = value.detach().double().clone()
        if self.layout.world_size == 1:
            return lambda: total
        work = dist.all_reduce(total, async_op=True)
        if work is None:  # torch says so to a process that is in no group
            raise RuntimeError("this rank has no process group")

        def wait_for_sum() -> torch.Tensor:
            work.wait()
            return total

        return wait_for_sum

    def gather_from_all_ranks(self, value: Any) -> list[Any]:
        """Return a small value of each rank; collective."""
        values = [value] * self.layout.world_size
        if len(values) > 1:
            dist.all_gather_object(values, value)
        return values
