"""Steps in each layout whose bytes are counted, and what `hpckit plan` says of the same steps."""

from __future__ import annotations

from typing import Any

from hpckit.features.capacity.activations import count_logits
from hpckit.features.capacity.gpus import GPUS
from hpckit.features.capacity.memory import list_peak_memory_candidates
from hpckit.features.capacity.model_plan import MemoryParts
from hpckit.features.capacity.model_setup import AttentionKind, NumberType, Recomputation, TrainingSetup
from hpckit.features.capacity.model_transformer import TransformerShape
from hpckit.model.parallel.layout import Layout

MIB = 2**20
_LLAMA = {"positions": 0, "swiglu": True, "biases": False, "dropout": False, "tied": False}
_GPT = {"positions": 1024, "swiglu": False, "biases": True, "dropout": False, "tied": True}
SIZES: dict[str, dict[str, Any]] = {
    "activations": {
        "shape": {"hidden": 64, "layers": 12, "heads": 2, "vocab": 256, "ffn": 128},
        "rows": 8,
        "sequence": 512,
    },
    "words": {
        "shape": {"hidden": 32, "layers": 2, "heads": 2, "vocab": 65536, "ffn": 64},
        "rows": 1,
        "sequence": 256,
    },
    "weights": {
        "shape": {"hidden": 512, "layers": 8, "heads": 8, "vocab": 8192, "ffn": 1536},
        "rows": 1,
        "sequence": 128,
    },
}
"""By what takes the most memory; a rank of the smallest layout has more than 200 MiB."""
LAYOUTS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "ddp": ({"replicate": 2}, {}),
    "fsdp": ({"shard": 2}, {}),
    "fsdp bf16": ({"shard": 2}, {"params": "bf16"}),
    "fsdp selective": ({"shard": 2}, {"recompute": "selective"}),
    "fsdp full": ({"shard": 2}, {"recompute": "blocks"}),
    "tensor": ({"tensor": 2}, {}),
    "tensor whole": ({"tensor": 2}, {"sequence": False}),
    "pipeline": ({"pipeline": 2}, {"microbatches": 4}),
    "context": ({"context": 2}, {}),
    "hsdp": ({"replicate": 2, "shard": 2}, {}),
    "fsdp x tensor": ({"shard": 2, "tensor": 2}, {}),
    "pipeline x fsdp": ({"pipeline": 2, "shard": 2}, {"microbatches": 4}),
    "context x tensor": ({"context": 2, "tensor": 2}, {}),
}
"""Sizes of each layout, and its other settings."""

LENGTHS = (512, 2048, 16384)
"""Of sequences that are cut over two ranks."""


def length_case(length: int) -> dict[str, Any]:
    """Return a case of one sequence of so many tokens, cut over two ranks."""
    shape = {"hidden": 64, "layers": 2, "heads": 2, "vocab": 256, "ffn": 128}
    return case_of("context", "activations", shape=shape, rows=1, sequence=length)


def case_of(layout: str, size: str, **changes: Any) -> dict[str, Any]:
    """Return what `memory_program.py` is told; `changes` take the place of what the size has."""
    sizes, settings = LAYOUTS[layout]
    one = {**SIZES[size], **changes}
    kind = _GPT if size == "words" and layout in {"ddp", "fsdp"} else _LLAMA
    return {
        "layout": sizes,
        "parallel": settings,
        "shape": {**kind, **one["shape"]},
        "rows": one["rows"] * settings.get("microbatches", 1),
        "sequence": one["sequence"],
    }


def setup_of_case(case: dict[str, Any]) -> TrainingSetup:
    """Return the setup of a case as `hpckit plan` has it, without torch.compile."""
    layout, settings = Layout(**case["layout"]), case["parallel"]
    recompute = {"blocks": "full"}.get(one := settings.get("recompute", "none"), one)
    return TrainingSetup(
        shape=TransformerShape(**case["shape"]),
        gpu=GPUS["H100-SXM"],
        layout=layout,
        sequence=case["sequence"],
        micro_batch=case["rows"] // settings.get("microbatches", 1),
        global_batch=case["rows"] * layout.data_size,
        sequence_parallel=settings.get("sequence", True),
        precision=NumberType(settings.get("params", "fp32")),
        recompute=Recomputation(recompute),
        attention=AttentionKind.flash,
        fused=False,
    )


def planned_bytes(case: dict[str, Any]) -> dict[str, float]:
    """Return what is planned for a case, by the names that `memory_program.py` measures it by.

    `kept` is 0 for a pipeline, whose micro batches are at different places.
    """
    setup = setup_of_case(case)
    stages = sorted({0, setup.layout.pipeline - 1})
    moments = [moment for stage in stages for moment in list_peak_memory_candidates(setup, stage)]
    loss = next(one for name, one in moments if name == "loss")
    return {
        "kept": kept_until_backward(setup, loss) if setup.layout.pipeline == 1 else 0.0,
        "step": max(one.tensor_bytes for name, one in moments if name != "optimizer"),
        "update": max(one.tensor_bytes for name, one in moments if name == "optimizer"),
    }


def kept_until_backward(setup: TrainingSetup, loss: MemoryParts) -> float:
    """Return what is there as the backward pass begins, besides what always is.

    Of scores it is what the loss made of them in 32 bits, or themselves if they are cut over ranks;
    of parameters what FSDP gathered.
    """
    copied = setup.layout.is_data_parallel and setup.precision is NumberType.fp32
    score = setup.bytes_per_number if setup.layout.tensor > 1 else 4
    return loss.activations + score * count_logits(setup) + (0.0 if copied else loss.buffers)
