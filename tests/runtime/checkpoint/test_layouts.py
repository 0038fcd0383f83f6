"""A checkpoint of any layout loads into any other, bit for bit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tiers import thorough
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from hpckit.runtime.checkpoint import weights
from hpckit.runtime.checkpoint.manifest import read_manifest
from hpckit.runtime.checkpoint.storage import read_metadata

pytestmark = pytest.mark.training

LAYOUTS = {4: 8, 3: 3, 2: 4, 1: 1}
"""How many layouts a world of so many ranks goes through."""


def _check_written_once(checkpoint: Path) -> None:
    """Check that every byte of all files is in use, and every element of all tensors there once."""
    metadata = read_metadata(checkpoint)
    used: Counter[str] = Counter()
    for one in metadata.storage_data.values():
        used[one.relative_path] += one.length
    sizes = {path.name: path.stat().st_size for path in checkpoint.glob("*.distcp")}
    assert {name: size for name, size in sizes.items() if size} == used, checkpoint
    for key, one in metadata.state_dict_metadata.items():
        assert isinstance(one, TensorStorageMetadata)
        assert sum(part.sizes.numel() for part in one.chunks) == one.size.numel(), key


def _check_keys(checkpoint: Path) -> None:
    """Check that state is stored by the names of parameters, and the tied weight once."""
    keys = read_metadata(checkpoint).state_dict_metadata.keys()
    assert {"model/embed.weight", "model/blocks.2.up.bias"} <= keys
    assert {"optimizer/state/embed.weight/exp_avg", "optimizer/state/norm.bias/step"} <= keys
    assert not [key for key in keys if "head.weight" in key]


def _check_exports(checkpoints: list[Path]) -> None:
    """Check that the model is the same in a file of its own, whatever layout saved it."""
    exported = [_exported(checkpoint) for checkpoint in checkpoints]
    assert {"head.weight", "embed.weight", "blocks.1.seen"} <= exported[0].keys()
    for state in exported:
        assert state.keys() == exported[0].keys()
        assert all(torch.equal(one, exported[0][name]) for name, one in state.items())
        assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()


def _exported(checkpoint: Path) -> dict[str, torch.Tensor]:
    target = checkpoint / "model.pt"
    with target.open("w+b") as file:
        weights.write_torch_file(weights.find_model_weights(checkpoint, read_manifest(checkpoint)), file)
    state: dict[str, torch.Tensor] = torch.load(target, weights_only=True)
    return state


@pytest.mark.parametrize(
    ("four", "fewer", "counts"),
    [
        pytest.param("pipeline-fsdp-of-4", "p*-of-2", (1, 1), id="stages"),
        pytest.param("*-of-4", "*-of-[123]", (8, 8), id="all", marks=thorough),
    ],
)
def test_pairs_of_layouts_are_bitwise(
    world: Any, folder: Path, four: str, fewer: str, counts: tuple[int, int]
) -> None:
    """What 4 ranks save in any layout, 4, 3, 2 and 1 ranks load in any layout, and back.

    Model, buffers and AdamW's state come back bit for bit, and no element is written twice.
    """
    rounds = [
        (4, "reference", True, 1),
        (4, four, False, counts[0]),
        (3, four, True, counts[0]),
        (2, four, True, counts[0]),
        (1, four, True, counts[0]),
        (4, fewer, False, counts[1]),
    ]
    for ranks, sources, save, expected in rounds:
        orders = {"program": "layouts", "do": "go_through_all", "sources": sources, "save": save}
        for rank, seen in enumerate(world(ranks, **orders)):
            assert "error" not in seen, seen
            wrong = {pair: names for pair, names in seen["wrong"].items() if names}
            assert not wrong, rank
            assert len(seen["wrong"]) == expected * LAYOUTS[ranks]
    checkpoints = list(folder.glob("*-of-*/step-*"))
    assert len(checkpoints) == sum(LAYOUTS.values())
    for checkpoint in checkpoints:
        _check_written_once(checkpoint)
        _check_keys(checkpoint)
    _check_exports(checkpoints)
    (one,) = folder.glob("pipeline-fsdp-of-4/step-*")
    assert str(read_manifest(one).layout) == "pipeline 2 x shard 2"


@pytest.mark.parametrize(
    ("do", "error", "words"),
    [
        (
            "load_more_blocks",
            "StateError",
            ("blocks.7.seen and 4 more", "pipeline stage 1 of 2", "step 3 (pipeline 2) lacks"),
        ),
        ("load_fewer_blocks", "StateError", ("state of blocks.2.", "no rank has")),
        ("save_unlike_stages", "StateError", ("model/blocks.0.", "not on rank 0")),
        ("save_optimizer_alone", "StateError", ("parameter 0 of optimizer", "no registered model")),
        ("save_unlike_tallies", "StateError", ("tally on rank 1", "not those of rank 0")),
    ],
)
def test_stages_that_do_not_fit_are_refused(world: Any, do: str, error: str, words: tuple[str, ...]) -> None:
    """What cannot be put together, or is not there, is named on every rank."""
    for seen in world(2, program="layouts", do=do):
        assert seen["error"] == error
        for word in words:
            assert word in seen["message"]


def test_recomputed_layers_are_spread_over_ranks(world: Any, folder: Path) -> None:
    """The marks of activation checkpoints hide no parameter: each rank writes an even share."""
    world(2, program="layouts", do="save_recomputed")
    sizes = [path.stat().st_size for path in folder.glob("step-*/*.distcp")]
    assert len(sizes) == 2
    assert max(sizes) < 1.2 * min(sizes)
