"""A file of weights that others may have written: safetensors, or what `torch.save` writes.

Weights in several parts have an index, as Hugging Face models do. Each file is opened once, and
what is open is checked and mapped: only a file of the user or of root that nobody else can write to
is read. No code in it runs: safetensors has none, and torch unpickles tensors only. Tensors are
mapped; what is not used is never read.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hpckit.patterns import lazy_pattern
from hpckit.record.ownership import PathStatus, explain_unsafe_path, explain_untrusted_data, find_weights_file
from hpckit.runtime.checkpoint.errors import CheckpointError, ForeignFolderError
from hpckit.runtime.checkpoint.weights import SAFETENSORS_TYPES

_ZIP = b"PK\x03\x04"
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
"""As the safetensors library has it."""
_PART = lazy_pattern(r"[^/\0]{1,243}\.safetensors")
"""No other folder, no character that a path cannot have, and no name longer than Linux takes."""
_EXTRA_STATE = "_extra_state"
_DTYPES = {name: dtype for dtype, name in SAFETENSORS_TYPES.items()}


def memory_map_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors in a file, a folder, or the parts of an index by their names, mapped.

    Raises ForeignFolderError for a file that another user could have changed, CheckpointError for
    one that is damaged or holds something else, and OSError.
    """
    path = find_weights_file(path)
    with _open_trusted_file(path) as handle:
        if path.suffix == ".json":
            return _map_indexed_parts(path, handle)
        head = os.pread(handle, len(_ZIP), 0)
        return _map_torch_file(path, handle) if head == _ZIP else _map_safetensors_file(path, handle)


@contextmanager
def _open_trusted_file(path: Path) -> Iterator[int]:
    """Open a file that is the user's or root's alone; check what was opened, not the name."""
    stranger = explain_unsafe_path(path)
    handle = -1
    try:
        if stranger is None:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            seen = os.fstat(handle)
            entry = PathStatus(path=str(path), uid=seen.st_uid, mode=seen.st_mode)
            stranger = explain_untrusted_data(entry, os.geteuid())
        if stranger is not None:
            raise ForeignFolderError(
                f"weights are read from files that no other user can change: {stranger.reason}",
                hint=f"{stranger.hint}; or copy the file",
            )
        if not stat.S_ISREG(seen.st_mode):
            raise CheckpointError(
                f"{path} is a folder", hint="name a file of weights, or a folder of safetensors"
            )
        yield handle
    finally:
        if handle >= 0:
            os.close(handle)


def _map_indexed_parts(path: Path, handle: int) -> dict[str, torch.Tensor]:
    """Map the tensors that an index names in files beside it.

    https://huggingface.co/docs/transformers/big_models#sharded-checkpoints
    """
    size = os.fstat(handle).st_size
    try:
        index = json.loads(os.pread(handle, min(size, _LONGEST_HEADER), 0))
        found = {name: str(part) for name, part in index["weight_map"].items()}
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        found = {}
    if not found:
        raise _damaged_file_error(path, "it has no weight_map of names and files")
    _refuse_invalid_unicode(path, (*found, *found.values()))
    tensors: dict[str, torch.Tensor] = {}
    for part in sorted({*found.values()}):
        if not _PART.fullmatch(part):
            raise CheckpointError(
                f"{path} names {part!r}; parts are safetensors files in the same folder",
                hint="save the model again: model.save_pretrained(FOLDER)",
            )
        with _open_trusted_file(path.parent / part) as opened:
            tensors |= {
                name: tensor
                for name, tensor in _map_safetensors_file(path.parent / part, opened).items()
                if found.get(name) == part
            }
    lost = sorted(found.keys() - tensors.keys())
    if lost:
        raise _damaged_file_error(path, f"{lost[0]} is not in {found[lost[0]]}, where the index has it")
    return tensors


def _map_torch_file(path: Path, handle: int) -> dict[str, torch.Tensor]:
    # By its handle: the name could lead to another file by now.
    opened = f"/proc/self/fd/{handle}"
    try:
        found = torch.load(opened, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} is not a state dict that torch can read with weights_only=True: {type(error).__name__}",
            hint="write the weights alone: torch.save(model.state_dict(), FILE), or as safetensors",
        ) from error
    if not isinstance(found, Mapping):
        raise _not_a_state_dict_error(path, "it", found)
    tensors = {}
    for name, one in found.items():
        if isinstance(name, str) and name.endswith(_EXTRA_STATE):
            continue
        if not isinstance(name, str) or not _is_plain_tensor(one):
            raise _not_a_state_dict_error(path, repr(name), one)
        tensors[name] = one.detach()
    _refuse_invalid_unicode(path, tensors)
    return tensors


def _is_plain_tensor(value: object) -> bool:
    return (
        type(value) in {torch.Tensor, nn.Parameter}
        and isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
    )


def _not_a_state_dict_error(path: Path, name: str, value: object) -> CheckpointError:
    return CheckpointError(
        f"{path}: {name} is a {type(value).__name__}; weights are a mapping of names to tensors",
        hint="write the state of the model alone: torch.save(model.state_dict(), FILE)",
    )


def _map_safetensors_file(path: Path, handle: int) -> dict[str, torch.Tensor]:
    """Read the header, and map what it describes.

    https://github.com/huggingface/safetensors#format
    """
    size = os.fstat(handle).st_size
    length = int.from_bytes(os.pread(handle, _LENGTH_BYTES, 0), "little")
    start = _LENGTH_BYTES + length
    if length > _LONGEST_HEADER or start > size:
        raise _damaged_file_error(path, "its header is longer than the file" if size else "it is empty")
    try:
        header = json.loads(os.pread(handle, length, _LENGTH_BYTES))
    except (ValueError, RecursionError):
        raise _damaged_file_error(path, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _damaged_file_error(path, "its header is not a mapping of names")
    _refuse_invalid_unicode(path, header)
    # A private copy, as torch maps no memory that cannot be written to; nothing is written.
    mapped = mmap.mmap(handle, size, access=mmap.ACCESS_COPY)
    header.pop("__metadata__", None)
    return {name: _memory_map_tensor(path, mapped, start, name, one) for name, one in header.items()}


def _memory_map_tensor(path: Path, mapped: mmap.mmap, start: int, name: str, described: Any) -> torch.Tensor:
    try:
        dtype = _DTYPES[described["dtype"]]
        shape = tuple(_require_non_negative_int(size) for size in described["shape"])
        first, last = (_require_non_negative_int(offset) for offset in described["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise _damaged_file_error(path, f"{name} is not described as a tensor of a known type") from None
    count = math.prod(shape)
    if last - first != count * dtype.itemsize or start + last > len(mapped):
        raise _damaged_file_error(path, f"{name} is not where its header says")
    if not count:
        return _make_zero_size_tensor(path, name, shape, dtype)
    raw = torch.frombuffer(mapped, dtype=torch.uint8, count=last - first, offset=start + first)
    aligned = raw if (start + first) % dtype.itemsize == 0 else raw.clone()
    return aligned.view(dtype).view(shape)


def _make_zero_size_tensor(path: Path, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    try:
        return torch.empty(shape, dtype=dtype)
    except (RuntimeError, TypeError, OverflowError):
        raise _damaged_file_error(path, f"{name} has an impossible shape: {list(shape)}") from None


def _require_non_negative_int(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _refuse_invalid_unicode(path: Path, names: Iterable[str]) -> None:
    """Raise CheckpointError for half of a surrogate pair: JSON may have it, no screen shows it."""
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise _damaged_file_error(path, "a name in it is not Unicode text") from None


def _damaged_file_error(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} was written neither by torch.save nor as safetensors, or is damaged: {why}",
        hint="write the weights again: torch.save(model.state_dict(), FILE), or as safetensors",
    )
