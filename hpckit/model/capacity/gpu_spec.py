"""What one kind of GPU can do. Pure."""

from __future__ import annotations

from hpckit.values import dataclass

_MOST_PER_NODE = 8
"""A fast fabric that joins more GPUs joins nodes; how many each has, the catalogue does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU: bytes, FLOP/s of dense matrix products, bytes per second in one direction, watts.

    `flops_bf16` of None: its tensor cores do not know bfloat16. `link` is the fabric within a
    domain of `domain` GPUs (NVLink, else PCIe), `network` this GPU's part of the network between
    nodes. `per_node` is how many GPUs a node has, 0 where only `domain` says it. `node_w` is
    `power_w` with this GPU's part of its node. `reachable` is the share of the peak that the best
    products reach, `flash` the share that flash attention reaches, `clock` what a power cap leaves.
    `source` says where the numbers come from, `node_source` where `node_w` does. `like` is the GPU
    of the catalogue that a site's own one was described by.
    """

    name: str
    like: str = ""
    memory: float
    flops_fp16: float
    flops_bf16: float | None
    flops_fp32: float
    bandwidth: float
    link: float
    network: float
    power_w: float
    node_w: float
    domain: int = 8
    per_node: int = 0
    reachable: float = 0.8
    flash: float = 0.48
    clock: float = 1.0
    source: str = ""
    node_source: str = ""

    @property
    def node_gpus(self) -> int | None:
        """How many GPUs a node has; None where a fabric joins those of several nodes."""
        return self.per_node or (self.domain if self.domain <= _MOST_PER_NODE else None)
