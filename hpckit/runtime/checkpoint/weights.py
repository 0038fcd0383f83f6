"""The models in a checkpoint as one file, for inference and other tools.

Tensors are read straight into a mapping of a file, one after the other: a model needs no more memory than a
few of its largest saved tensors. Nothing but tensors is written, and nothing of the optimizer.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

from hpckit.runtime.checkpoint import state, storage
from hpckit.runtime.checkpoint.encoding import find_tensor_keys
from hpckit.runtime.checkpoint.errors import CheckpointError, StateError
from hpckit.runtime.checkpoint.group import problem_from_error
from hpckit.runtime.checkpoint.manifest import Manifest
from hpckit.runtime.checkpoint.readers import join_model_parts
from hpckit.values import dataclass

_ALIGNED = 64
_HEADER_ALIGNED = 8

SAFETENSORS_TYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names that the format has for types of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """The tensors of the models in a checkpoint.

    `keys` has the key in the checkpoint of each name; a tied tensor has several names. `left_out`
    are names of values that are no tensors.
    """

    folder: Path
    keys: Mapping[str, str]
    shapes: Mapping[str, tuple[torch.Size, torch.dtype]]
    left_out: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors; a tied one counts once."""
        return sum(_count_tensor_bytes(*self.shapes[key]) for key in set(self.keys.values()))


def find_model_weights(folder: Path, manifest: Manifest) -> ModelWeights:
    """Return what the models in a checkpoint consist of; raises StateError if there is none.

    Names are those of the model's state; with several models, they begin with the model's name:
    `generator.0.weight`.
    """
    if not manifest.models:
        raise StateError(
            f"the checkpoint of step {manifest.step} has no model, only "
            f"{', '.join(manifest.objects) or 'nothing'}",
            hint="register the model: run.state(model=…)",
        )
    encoded: dict[str, Any] = {}
    with _convert_read_errors(folder):
        saved = storage.read_tensor_shapes(folder)
        for model in manifest.models:
            parts = state.find_skeleton_keys(model, saved)
            skeletons = storage.read_skeletons(folder, parts)
            before = f"{model}." if len(manifest.models) > 1 else ""
            joined = join_model_parts([skeletons[part] for part in parts])
            encoded |= {before + name: one for name, one in joined.items()}
    kinds = {"tensor", "strided"}
    tensors = {n: one for n, one in encoded.items() if isinstance(one, dict) and kinds & one.keys()}
    keys = {name: next(find_tensor_keys(one)) for name, one in sorted(tensors.items())}
    return ModelWeights(
        folder=folder,
        keys=keys,
        shapes={key: saved[key] for key in keys.values()},
        left_out=tuple(name for name in encoded if name not in keys),
    )


@contextmanager
def _convert_read_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointException as error:
        raise CheckpointError(f"{folder.name} cannot be read: {problem_from_error(error, 0).text}") from error


def write_torch_file(weights: ModelWeights, file: IO[bytes]) -> None:
    """Write a state dict that `torch.load(file, weights_only=True)` returns; raises OSError.

    A mapped file of the same size, without a name, lies next to it until the end.
    """
    keys = sorted(set(weights.keys.values()))
    with tempfile.TemporaryFile(dir=Path(file.name).parent) as mapped:
        tensors = _memory_map_tensors(mapped, 0, [(key, *weights.shapes[key]) for key in keys], _ALIGNED)
        with _convert_read_errors(weights.folder):
            storage.read_into_tensors(weights.folder, tensors)
        torch.save({name: tensors[key] for name, key in weights.keys.items()}, file)


def write_safetensors(weights: ModelWeights, file: IO[bytes]) -> None:
    """Write the tensors in the format of safetensors; raises StateError, OSError.

    The format has no tied tensors: each name gets its own copy. It is: the length of the header in
    8 bytes, the header in JSON, the data without gaps, those of wide numbers first.
    https://github.com/huggingface/safetensors#format
    """
    for name, key in weights.keys.items():
        if weights.shapes[key][1] not in SAFETENSORS_TYPES:
            raise StateError(
                f"{name} has type {weights.shapes[key][1]}, which safetensors does not have",
                hint="export to a file of torch: -o model.pt",
            )
    wanted = [(name, *weights.shapes[key]) for name, key in weights.keys.items()]
    wanted.sort(key=lambda one: (-one[2].itemsize, one[0]))
    header = _build_safetensors_header(wanted)
    file.write(header)
    file.flush()
    tensors = _memory_map_tensors(file, len(header), wanted, 1)
    names = {key: name for name, key in weights.keys.items()}
    with _convert_read_errors(weights.folder):
        storage.read_into_tensors(weights.folder, {key: tensors[name] for key, name in names.items()})
    for name, key in weights.keys.items():
        if names[key] != name:
            tensors[name].copy_(tensors[names[key]])


def _build_safetensors_header(tensors: Iterable[tuple[str, torch.Size, torch.dtype]]) -> bytes:
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape, dtype in tensors:
        start, end = end, end + _count_tensor_bytes(shape, dtype)
        described[name] = {
            "dtype": SAFETENSORS_TYPES[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNED)
    return len(text).to_bytes(8, "little") + text


def _memory_map_tensors(
    file: IO[bytes], start: int, tensors: Iterable[tuple[str, torch.Size, torch.dtype]], align: int
) -> dict[str, torch.Tensor]:
    """Return tensors that lie in a file, one after the other, from `start` on.

    The file's room is taken first: writing to a mapping of a file that has none ends the process.
    """
    places = {}
    for name, shape, dtype in tensors:
        start += -start % align
        places[name] = start, shape, dtype
        start += _count_tensor_bytes(shape, dtype)
    os.posix_fallocate(file.fileno(), 0, max(start, 1))
    mapped = mmap.mmap(file.fileno(), max(start, 1))
    return {
        name: _memory_map_tensor_at(mapped, offset, shape, dtype)
        for name, (offset, shape, dtype) in places.items()
    }


def _memory_map_tensor_at(
    mapped: mmap.mmap, offset: int, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(mapped, dtype=dtype, count=shape.numel(), offset=offset)
    return flat.view(shape)


def _count_tensor_bytes(shape: torch.Size, dtype: torch.dtype) -> int:
    return shape.numel() * dtype.itemsize
