"""Writes docs/reference/gpus.md from the catalogue of `hpckit plan`.

    python scripts/gpu_reference.py           # writes the page
    python scripts/gpu_reference.py --print   # prints it

A test holds that the page is what this prints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from hpckit.features.capacity.gpus import GPUS
from hpckit.features.capacity.model_setup import GpuSpec

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "gpus.md"
HEAD = """\
<!-- Made by scripts/gpu_reference.py from hpckit/features/capacity/gpus.toml. -->

# GPUs of `hpckit plan`

What [`hpckit plan`](../guides/plan.md) knows of a GPU. To describe another one, or another network,
give what differs: `--gpu 'A100-80 network_gb_per_s=12.5'`, or `gpu:` in the file of [your
cluster](../guides/site.md).

- TFLOP/s are dense peaks in 16 and in 32 bits (without TF32).
- *Reachable* is the share of the 16-bit peak that the best matrix product reaches, *flash* the
  share that flash attention reaches, its mask counted.
- Memory is what the driver reports.
- Links are of one direction: NVLink or PCIe between the GPUs of a node (of a rack for GB200), and a
  GPU's part of the network between nodes.
- W is the power of the GPU, and with its part of the node: of NVIDIA's DGX or NVL72, or with *
  assumed.

"""
COLUMNS = (
    "GPU",
    "TFLOP/s",
    "reachable, flash",
    "GiB",
    "memory, GB/s",
    "link, GB/s (GPUs)",
    "network, GB/s",
    "W",
)
TAIL = """
Numbers are from the vendors' data sheets, which `gpus.toml` names one by one. Reachable is measured
for A100, H100-SXM, B200 and MI300X (Stas Bekman, "Machine Learning Engineering"; hpckit was never
run on AMD hardware). The others have that of their generation, or 0.8. Flash is from Dao 2023 for
A100, and from Shah et al. 2024 for H100 and H200; the others are assumed to reach 60 % of the best
product, as A100.
"""


def page() -> str:
    """Return the page."""
    rows = [COLUMNS, ["---"] * len(COLUMNS), *map(_cells, GPUS.values())]
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows) + TAIL


def _cells(gpu: GpuSpec) -> Iterator[str]:
    yield f"`{gpu.name}`"
    bf16 = "" if gpu.flops_bf16 is not None else " (fp16 alone)"
    yield f"{gpu.flops_fp16 / 1e12:g}{bf16}, {gpu.flops_fp32 / 1e12:g}"
    yield f"{gpu.reachable:.2f}, {gpu.flash:.2f}"
    yield f"{gpu.memory / 2**30:.1f}"
    yield f"{gpu.bandwidth / 1e9:g}"
    yield f"{gpu.link / 1e9:g} ({gpu.domain})"
    yield f"{gpu.network / 1e9:g}"
    assumed = "*" if gpu.node_source.startswith("assumed") else ""
    yield f"{gpu.power_w:g}, {gpu.node_w:g}{assumed}"


def main(arguments: list[str]) -> None:
    """Write the page, or print it."""
    if arguments == ["--print"]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main(sys.argv[1:])
