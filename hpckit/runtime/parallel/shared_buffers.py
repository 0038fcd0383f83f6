"""Buffers that a forward pass changes, such as running means: the same on all ranks of a part.

Each rank would change them by its own rows, while a checkpoint keeps those of one rank.
DistributedDataParallel hands out those of the first rank; FSDP does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.values import dataclass, field


@dataclass(slots=True, kw_only=True)
class SharedBuffers:
    """The buffers of a rank's part of a model that FSDP shards.

    In the first step it looks which of them change; from then on `share` gives all ranks those of
    the first rank that has this part.
    """

    module: nn.Module
    mesh: RankMesh
    _seen: dict[str, Tensor] = field(default_factory=dict)
    _names: Sequence[str] = ()

    @property
    def are_needed(self) -> bool:
        """Whether ranks could come to have different ones; the same on all ranks.

        Whether there are any does not count: of a pipeline, some stages may have none.
        """
        sharded = any(isinstance(module, FSDPModule) for module in self.module.modules())
        return sharded and self.mesh.sums_gradients

    def watch(self) -> None:
        """Begin to look which buffers change."""
        self._seen = {name: one.detach().clone() for name, one in self.module.named_buffers()}

    def settle(self) -> None:
        """Remember which buffers have changed on some rank; collective.

        By their values: batch normalisation changes them without torch's counter of changes.
        """
        changed = [
            name
            for name, one in self.module.named_buffers()
            if name not in self._seen or not torch.equal(one, self._seen[name])
        ]
        everyone = {name for names in self.mesh.gather_all(changed) for name in names}
        self._seen = {}
        self._names = sorted(everyone)

    def share(self) -> None:
        """Take over the changing buffers of the first rank with this part; collective.

        They are sent as bytes: not every backend sends every type.
        """
        if not self._names:
            return
        known = dict(self.module.named_buffers())
        held = [known[name] for name in self._names if name in known]
        for alike in _by_type(held):
            flat = torch.cat([buffer.detach().reshape(-1) for buffer in alike]).view(torch.uint8)
            for axis in range(self.mesh.data.ndim):
                dist.broadcast(flat, group=self.mesh.data.get_group(axis), group_src=0)
            with torch.no_grad():
                whole = flat.view(alike[0].dtype)
                sizes = [buffer.numel() for buffer in alike]
                for one, new in zip(alike, torch.split(whole, sizes), strict=True):
                    one.copy_(new.view_as(one))


def _by_type(buffers: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    types = dict.fromkeys(buffer.dtype for buffer in buffers)
    for dtype in types:
        yield [buffer for buffer in buffers if buffer.dtype == dtype]
