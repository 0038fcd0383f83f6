"""Tensors of all ranks to files and back, with torch.distributed.checkpoint.

Wraps its calls and its warnings. torch writes files in place, checks nothing when it loads, and
raises a BaseException; the modules around it make up for that (disk.py, manifest.py, loading.py,
group.py). Its own `.metadata` is read with an unpickler that only knows what describes tensors: no
foreign code in it runs. The list is what torch 2.6 to 2.13 name for everything that hpckit saves.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, EnumType
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.futures import Future
from torch.serialization import get_crc32_options, set_crc32_options

from hpckit.runtime.checkpoint.disk import SummingFileSystem
from hpckit.runtime.checkpoint.encoding import json_from_byte_tensor
from hpckit.runtime.checkpoint.errors import CheckpointError
from hpckit.runtime.checkpoint.group import Group, find_transient_errno
from hpckit.runtime.checkpoint.manifest import FileSum
from hpckit.runtime.checkpoint.placement import TensorPiece
from hpckit.runtime.checkpoint.state import StateCapture
from hpckit.values import replace

NAME = ".metadata"

_TORCHS = "torch.distributed.checkpoint"
_KNOWN = frozenset(
    {
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),  # Python 3.13
        (f"{_TORCHS}.filesystem", "_StorageInfo"),
        *(
            (f"{_TORCHS}.metadata", name)
            for name in (
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
                "_MEM_FORMAT_ENCODING",
            )
        ),
    }
)


class _Unpickler(pickle.Unpickler):
    """Creates only objects that describe tensors."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Return what the pickle names; raises CheckpointError unless it is known."""
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _KNOWN:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _find_enum_member
        raise _unexpected_pickle_name_error(f"{module}.{name}")


def _find_enum_member(kind: object, name: object) -> Enum:
    if isinstance(kind, EnumType) and isinstance(name, str) and name in kind.__members__:
        member: Enum = kind[name]
        return member
    raise _unexpected_pickle_name_error(f"the attribute {name!r} of {kind!r}")


def _unexpected_pickle_name_error(named: str) -> CheckpointError:
    return CheckpointError(
        f"{NAME} names {named}, which describes no tensor: torch did not write it",
        hint="check who can write to the folder of this checkpoint",
    )


def read_metadata(folder: Path) -> Metadata:
    """Return where each tensor of a checkpoint is stored; raises CheckpointError, OSError."""
    with (folder / NAME).open("rb") as file:
        found = _Unpickler(file).load()
    if not isinstance(found, Metadata):
        raise CheckpointError(f"{NAME} holds a {type(found).__name__} instead of torch's Metadata")
    return found


class MetadataReader(FileSystemReader):
    """torch's reader with a safe unpickler; the original would unpickle anything in `.metadata`."""

    def read_metadata(self, *_args: Any, **_named: Any) -> Metadata:
        """Return torch's own metadata; raises the same errors as the function."""
        found = read_metadata(Path(self.path))
        if found.storage_meta is None:
            found.storage_meta = StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Writer(FileSystemWriter):
    """Distinguishes a full disk from other failures at the place of the failure.

    Torch passes exceptions between ranks without their causes, and its own serialisation hides an
    ENOSPC behind a RuntimeError.
    """

    def write_data(self, plan: Any, planner: Any) -> Future[Any]:
        """Write this rank's tensors; raises OSError if the disk is full or away."""
        with _raise_disk_errors_as_oserror():
            return super().write_data(plan, planner)

    def finish(self, metadata: Any, results: Any) -> None:
        """Write torch's own metadata; raises OSError if the disk is full or away.

        Older versions of torch tell the files to their file alone, and not to the caller of `save`.
        """
        metadata.storage_data = {one.index: one.storage_data for written in results for one in written}
        with _raise_disk_errors_as_oserror():
            super().finish(metadata, results)


@contextmanager
def _raise_disk_errors_as_oserror() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        number = find_transient_errno(error)
        if number is not None:
            raise OSError(number, os.strerror(number)) from error
        raise


class _Planner(DefaultSavePlanner):
    """Adds pieces of tensors, the rest of which other ranks write."""

    def __init__(self, pieces: Iterable[TensorPiece]) -> None:
        super().__init__()
        self._pieces = {_piece_index(piece): piece for piece in pieces}

    def create_local_plan(self) -> SavePlan:
        """Return torch's plan and an item for each piece."""
        plan = super().create_local_plan()
        items = [_piece_write_item(piece) for piece in self._pieces.values()]
        paths = {piece.key: (piece.key,) for piece in self._pieces.values()}
        self.plan = replace(plan, items=[*plan.items, *items], planner_data=plan.planner_data | paths)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the object of an item; torch has numbered the items by then."""
        piece = self._pieces.get(MetadataIndex(index.fqn, index.offset))
        return super().lookup_object(index) if piece is None else _view_with_own_storage(piece.tensor)


def _view_with_own_storage(rows: torch.Tensor) -> torch.Tensor:
    """Return rows as a tensor whose storage is only these rows, at the same place in memory.

    torch would save the storage of the whole tensor, or copy the rows first.
    """
    if rows.device.type != "cpu" or not rows.is_contiguous():
        return rows
    flat = torch.from_numpy(rows.view(-1).view(torch.uint8).numpy())
    return flat.view(rows.dtype).view(rows.shape)


def _piece_index(piece: TensorPiece) -> MetadataIndex:
    return MetadataIndex(piece.key, torch.Size([piece.start, *[0] * (len(piece.shape) - 1)]))


def _piece_write_item(piece: TensorPiece) -> WriteItem:
    index = _piece_index(piece)
    chunk = ChunkStorageMetadata(offsets=cast("torch.Size", index.offset), sizes=piece.tensor.shape)
    properties = TensorProperties.create_from_tensor(piece.tensor)
    data = TensorWriteData(chunk=chunk, properties=properties, size=piece.shape)
    return WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data)


def write_tensors(folder: Path, capture: StateCapture, group: Group) -> tuple[set[str], dict[str, FileSum]]:
    """Write the tensors of all ranks to disk, in a folder.

    Return the names of all files, and the sums of those that this rank wrote. Collective. Raises
    CheckpointException (a BaseException) on every rank if one of them failed, and OSError if the
    disk later refused what it had accepted.
    """
    writer = _Writer(folder, single_file_per_rank=True, sync_files=False, thread_count=1)
    with SummingFileSystem() as files, _silence_torch_warnings(), _skip_torch_checksums():
        writer.fs = files
        metadata: Any = save(
            dict(capture.tensors),
            storage_writer=writer,
            planner=_Planner(capture.pieces),
            process_group=group.process_group,
            no_dist=group.process_group is None,
        )
        sums = files.wait_until_on_disk()
    return {piece.relative_path for piece in metadata.storage_data.values()}, sums


@contextmanager
def _skip_torch_checksums() -> Iterator[None]:
    """Let torch.save leave out its own checksums, a third of its time: torch never reads them.

    The manifest has checksums. In torch 2.13 the option is local to this thread; in versions where
    it is not, what training saves at the same time has none either, which no load of torch needs.
    """
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def read_tensor_shapes(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and type of each tensor of a checkpoint by key; raises CheckpointError."""
    tensors = {}
    for key, kept in read_metadata(folder).state_dict_metadata.items():
        if not isinstance(kept, TensorStorageMetadata):
            raise CheckpointError(f"{key} is not a tensor; hpckit writes only tensors")
        tensors[key] = kept.size, kept.properties.dtype
    return tensors


def read_into_tensors(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill the tensors, or the shards of them that this rank has.

    Each rank reads by itself, and ranks may read different keys. Raises CheckpointException (a
    BaseException), and OSError.
    """
    with _silence_torch_warnings():
        load(dict(tensors), storage_reader=MetadataReader(folder), no_dist=True)


def read_skeletons(folder: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Return the skeletons with these keys, unpacked; raises the same errors."""
    saved = read_tensor_shapes(folder)
    packed = {key: torch.empty(saved[key][0], dtype=saved[key][1]) for key in keys}
    read_into_tensors(folder, packed)
    return {key: json_from_byte_tensor(one) for key, one in packed.items()}


@contextmanager
def _silence_torch_warnings() -> Iterator[None]:
    """Keep torch from warning of itself, and that each rank works by itself: it is meant to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
