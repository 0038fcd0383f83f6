"""What one kind of GPU can do. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU: bytes, FLOP/s of dense matrix products, bytes per second in one direction, watts.

    `flops_bf16` of None: its tensor cores do not know bfloat16. `link` is the fabric within a
    domain of `domain` GPUs (NVLink, else PCIe), `network` this GPU's part of the network between
    nodes. `node_w` is `power_w` with this GPU's part of its node. `reachable` is the share of the
    peak that the best products reach, `flash` the share that flash attention reaches, `clock` what
    a power cap leaves. `source` says where the numbers come from, `node_source` where `node_w`
    does. `like` is the GPU of the catalogue that a site's own one was described by.
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
    reachable: float = 0.8
    flash: float = 0.48
    clock: float = 1.0
    source: str = ""
    node_source: str = ""
