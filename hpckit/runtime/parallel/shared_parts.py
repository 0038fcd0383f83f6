"""What ranks with the same part of a model have to share in a step.

Buffers that a forward pass changes, such as running means: each rank would change them by its own
rows, while a checkpoint keeps those of one rank. DistributedDataParallel hands out those of the
first rank; FSDP does not.

And gradients of the same parameters. DDP waits for the gradient of each parameter that learns. FSDP
adds up those that there are: if ranks differ in which, gradients of different parameters.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from hpckit.errors import RunError
from hpckit.model.counted import format_short_list
from hpckit.model.parallel.layout import MeshAxis
from hpckit.runtime.parallel.batch_checks import SHOWN, UNEVEN_HINT
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.runtime.tensor_parts import local_shard_of_tensor
from hpckit.values import dataclass, field


@dataclass(slots=True, kw_only=True)
class SharedBuffers:
    """The buffers of a rank's part of a model; does nothing for one that FSDP does not shard.

    In the first step it looks which of them change; then `broadcast_buffers` gives ranks those of
    the first rank that has this part.
    """

    module: nn.Module
    mesh: RankMesh
    _may_differ: bool = field(init=False)
    """The same on all ranks: of a pipeline, some stages may have no buffers."""
    _seen: dict[str, Tensor] = field(default_factory=dict)
    _names: Sequence[str] = ()

    def __post_init__(self) -> None:
        sharded = any(isinstance(module, FSDPModule) for module in self.module.modules())
        self._may_differ = sharded and self.mesh.averages_gradients

    def copy_buffers_to_find_changes(self) -> None:
        """Begin to look which buffers change."""
        if self._may_differ:
            self._seen = {name: one.detach().clone() for name, one in self.module.named_buffers()}

    def agree_on_changed_buffers(self) -> None:
        """Remember which buffers have changed on some rank; collective.

        By their values: batch normalisation changes them without torch's counter of changes.
        """
        if not self._may_differ:
            return
        changed = [
            name
            for name, one in self.module.named_buffers()
            if name not in self._seen or not torch.equal(one, self._seen[name])
        ]
        self._names = sorted({name for names in self.mesh.gather_from_all_ranks(changed) for name in names})
        self._seen = {}

    def broadcast_buffers(self) -> None:
        """Take over the changing buffers of the first rank with this part; collective.

        They are sent as bytes: not every backend sends every type.
        """
        if not self._names:
            return
        known = dict(self.module.named_buffers())
        held = [known[name] for name in self._names if name in known]
        for dtype in dict.fromkeys(buffer.dtype for buffer in held):
            alike = [buffer for buffer in held if buffer.dtype == dtype]
            flat = torch.cat([buffer.detach().reshape(-1) for buffer in alike]).view(torch.uint8)
            for axis in range(self.mesh.data_mesh.ndim):
                dist.broadcast(flat, group=self.mesh.data_mesh.get_group(axis), group_src=0)
            with torch.no_grad():
                whole = flat.view(dtype)
                sizes = [buffer.numel() for buffer in alike]
                for one, new in zip(alike, torch.split(whole, sizes), strict=True):
                    one.copy_(new.view_as(one))


_DIGESTS = 2**16 - 1
"""Numbers that stand for what is missing: sums of their squares over many ranks stay exact."""


@dataclass(slots=True, kw_only=True)
class GradientSets:
    """Compares what the ranks of one pipeline stage got; what it exchanges goes with the loss.

    On a GPU ranks hear of it in the next step: the host would else have to wait for the device.
    """

    module: nn.Module
    mesh: RankMesh
    _named: Sequence[tuple[str, nn.Parameter]] = field(init=False)
    _before: list[tuple[str, nn.Parameter, object]] = field(default_factory=list, init=False)
    _sums: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Take the parameters as they are: what learns may change."""
        named = self.module.named_parameters()
        self._named = [(name.removeprefix("module."), one) for name, one in named]

    def remember_gradients_before_backward(self) -> None:
        """Look at what is there before a backward pass."""
        if self.mesh.averages_gradients:
            self._before = [
                (name, one, _gradient_version_key(one)) for name, one in self._named if one.requires_grad
            ]

    def refuse_missing_gradients(self) -> None:
        """Look at what the backward pass has left out; raises RunError with DDP."""
        if not isinstance(self.module, DistributedDataParallel):
            return
        missing = self._list_missing_gradients()
        if missing:
            raise RunError(
                f"in this step {format_short_list(missing, SHOWN)} got no gradient, and DDP waits "
                "for that of each parameter that learns",
                hint=f"{UNEVEN_HINT}; give those that never learn requires_grad=False; or choose "
                "parallel=fsdp for layers that a step leaves out on all ranks",
            )

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Return the sums of some numbers over all ranks, float64; collective."""
        values = values.to(self.mesh.device)
        if not self.mesh.averages_gradients or isinstance(self.module, DistributedDataParallel):
            return self.mesh.begin_sum_over_ranks(values)()
        stages, place = self.mesh.layout.pipeline, self.mesh.rank_index_on_axis(MeshAxis.pipeline)
        missing = self._list_missing_gradients()
        own = zlib.crc32(repr(missing).encode()) % _DIGESTS + 1 if missing else 0
        more = [0.0] * (2 * stages)
        more[place], more[stages + place] = own, own**2
        sets = torch.tensor(more, dtype=torch.float64, device=values.device)
        sums = self.mesh.begin_sum_over_ranks(torch.cat([values.detach().double(), sets]))()
        self._sums = sums[len(values) :]
        return sums[: len(values)]

    def _list_missing_gradients(self) -> list[str]:
        return [
            name
            for name, one, mark in self._before
            if (one.grad is None if mark is None else _gradient_version_key(one) == mark)
        ]

    def refuse_unequal_gradient_sets(self, *, may_wait: bool) -> None:
        """Raise RunError on all ranks if those of one stage differ in what they got.

        `may_wait`: also if the sums are still being computed on a device.
        """
        if self._sums is None or not (may_wait or self.mesh.device.type == "cpu"):
            return
        numbers, self._sums = [int(number) for number in self._sums.tolist()], None
        stages = self.mesh.layout.pipeline
        ranks = self.mesh.layout.world_size // stages
        pairs = zip(numbers[:stages], numbers[stages:], strict=True)
        if all(total**2 == squares * ranks for total, squares in pairs):
            return
        raise RunError(
            f"in this step ranks got gradients of different parameters, and with "
            f"{self.mesh.layout} gradients of different parameters were added up",
            hint=f"{UNEVEN_HINT}, or call model.set_reduce_scatter_unused_params(True) after "
            "run.parallelize (torch 2.13): a gradient of zero takes part then",
        )


def _gradient_version_key(parameter: nn.Parameter) -> object:
    """Return what changes when a gradient is added to, or takes another one's place."""
    gradient = parameter.grad
    if gradient is None:
        return None
    return id(gradient), local_shard_of_tensor(gradient)._version  # noqa: SLF001  # in torch's documentation
