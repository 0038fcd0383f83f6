"""Reads torch's own `.metadata` with an unpickler that only knows what describes tensors.

No foreign code in that pickle runs. The list is what torch 2.6 to 2.13 name for everything that
hpckit saves.
"""

from __future__ import annotations

import pickle
from enum import Enum, EnumType
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from hpckit.runtime.checkpoint.errors import CheckpointError

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
            return _enum_member
        raise CheckpointError(
            f"{NAME} names {module}.{name}, which describes no tensor: torch did not write it",
            hint="look who may write to the folder of this checkpoint",
        )


def _enum_member(kind: object, name: object) -> Enum:
    """Return a member of an enum by its name: what Python 3.11.2 pickles of it."""
    if isinstance(kind, EnumType) and isinstance(name, str) and name in kind.__members__:
        member: Enum = kind[name]
        return member
    raise CheckpointError(
        f"{NAME} names the attribute {name!r} of {kind!r}, which describes no tensor: torch did "
        "not write it",
        hint="look who may write to the folder of this checkpoint",
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
