"""Manifests, journals and files of weights that no program should write, and some does."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hpckit.model.parallel.layout import Layout
from hpckit.runtime.checkpoint.errors import CheckpointError
from hpckit.runtime.checkpoint.folder import CheckpointFolder
from hpckit.runtime.checkpoint.journal import read_journal
from hpckit.runtime.checkpoint.manifest import FileSum, Manifest, parse_manifest, render_manifest
from hpckit.runtime.checkpoint.weights_file import memory_map_weights


def good() -> Manifest:
    """Return a manifest that nothing is wrong with."""
    return Manifest(
        step=2,
        samples=16,
        batches=Fraction(2),
        epoch=1,
        serial=2,
        layout=Layout(),
        objects=("box",),
        files={"__0_0.distcp": FileSum(size=1, crc32=1)},
        created_at="2026-01-01T00:00:00Z",
    )


def changed(**fields: Any) -> str:
    """Return a manifest of other content, with its right checksum."""
    body = json.loads(render_manifest(good()))["manifest"] | fields
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({"checksum": checksum, "manifest": body})


ONE = {"crc32": 1, "size": 1}
DAMAGED = {
    "nested deeply": "[" * 100_000,
    "a list of files": changed(files=[]),
    "NUL in a name": changed(files={"a\0b": ONE}),
    "half a character": changed(files={"\ud800": ONE}),
    "a file elsewhere": changed(files={"../a": ONE}),
    "no serial": changed(serial="z"),
    "a step below": changed(step=-1),
    "a size in words": changed(files={"a": {"crc32": 1, "size": "1"}}),
    "a layout in words": changed(layout={"replicate": "x"}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_manifest_is_said_to_be_damaged(name: str) -> None:
    """So that a restore takes the checkpoint before it, and the others are listed."""
    assert parse_manifest(render_manifest(good())) == good()
    with pytest.raises(CheckpointError, match="the manifest cannot be read"):
        parse_manifest(DAMAGED[name])


def test_pipe_in_place_of_a_manifest_is_not_waited_for(tmp_path: Path) -> None:
    """Whoever opens it for reading would wait for a writer."""
    place = tmp_path / "step-00000002.e1.0123abcd"
    place.mkdir(mode=0o700)
    os.mkfifo(place / "manifest.json")
    (entry,) = CheckpointFolder(tmp_path).list_entries()
    assert entry.damage == "the manifest is not a regular file"


def test_folder_in_place_of_a_journal_is_no_history(tmp_path: Path) -> None:
    """It only guides the choice."""
    assert not read_journal(tmp_path).attempts


@pytest.mark.parametrize("shape", [[0, 10**30], [0, 2**62, 2**62]])
def test_shape_that_no_tensor_has_is_damage(tmp_path: Path, shape: list[int]) -> None:
    """Also if it has no elements, and so needs no memory."""
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    path.chmod(0o600)
    with pytest.raises(CheckpointError, match="w has an impossible shape"):
        memory_map_weights(path)
