"""The manifest: the record that makes a folder of files a checkpoint.

Holds its format, its commit and its checks. The manifest is renamed into place last, after every
file it names is on disk: a folder without one was never committed, whatever else is in it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from hpckit.model.parallel.layout import Layout
from hpckit.model.plain import to_plain
from hpckit.record.store import PRIVATE_FILE
from hpckit.runtime.checkpoint.errors import CheckpointError, FencedError, UnknownOwnerError
from hpckit.values import dataclass

VERSION = 1
NAME = "manifest.json"

_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """Size in bytes and CRC-32 of one file."""

    size: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of a checkpoint.

    `serial` counts the saves of a run, so that the order of checkpoints needs no clock; `epoch` is the
    attempt that wrote it; `samples` and `batches` the data position, as `Position` has it; `layout` how many
    ranks on each axis saved; `objects` the registered names, and `models` those of them that are models.
    """

    step: int
    samples: int
    batches: Fraction
    epoch: int
    serial: int
    layout: Layout
    objects: tuple[str, ...]
    models: tuple[str, ...] = ()
    files: Mapping[str, FileSum]
    created_at: str

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


def render_manifest(manifest: Manifest) -> str:
    """Return the manifest as text, with its own checksum."""
    body = {"version": VERSION} | to_plain(manifest) | {"batches": str(manifest.batches)}
    document = {"checksum": _compute_checksum(body), "manifest": body}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _compute_checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def parse_manifest(text: str) -> Manifest:
    """Return the manifest in a text; raises CheckpointError if it is damaged or too new."""
    try:
        document = json.loads(text)
        body = dict(document["manifest"])
        if document["checksum"] != _compute_checksum(body):
            raise CheckpointError("the manifest does not match its own checksum")
        version = body.pop("version")
        if version != VERSION:
            raise CheckpointError(f"the manifest has version {version}; this hpckit reads {VERSION}")
        files = {name: FileSum(**one) for name, one in body.pop("files").items()}
        layout = Layout(**body.pop("layout"))
        objects, models = (tuple(body.pop(key)) for key in ("objects", "models"))
        body["batches"] = Fraction(str(body["batches"]))
        made = Manifest(files=files, layout=layout, objects=objects, models=models, **body)
        _check_field_types(made)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(f"the manifest cannot be read: {error!r}") from None
    except RecursionError:
        raise CheckpointError("the manifest cannot be read: it is nested too deeply") from None
    return made


def _check_field_types(manifest: Manifest) -> None:
    numbers = [getattr(manifest, key) for key in ("step", "samples", "epoch", "serial")]
    numbers += [number for file in manifest.files.values() for number in (file.size, file.crc32)]
    numbers += manifest.layout.sizes.values()
    for number in numbers:
        if type(number) is not int or number < 0:
            raise TypeError(f"{number!r} is not a count of 0 or more")
    for name in (*manifest.files, *manifest.objects, *manifest.models):
        name.encode()
    for name in manifest.files:
        if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise ValueError(f"{name!r} is not a valid file name")


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder; raises CheckpointError if it is damaged, and OSError."""
    # A pipe or a device would be waited for.
    handle = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise CheckpointError("the manifest is not a regular file")
        try:
            return parse_manifest(file.read())
        except UnicodeDecodeError as error:
            raise CheckpointError(f"the manifest is not valid text: {error}") from None


def commit_checkpoint(folder: Path, manifest: Manifest, may_commit: Callable[[], bool]) -> None:
    """Make the folder a checkpoint; raises FencedError if that is no longer allowed, and OSError.

    The fence is checked last, when only the rename remains. Raises UnknownOwnerError if it cannot be read.
    """
    part = folder / f".{NAME}.part"
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(render_manifest(manifest))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)
    try:
        is_owner = may_commit()
    except OSError as error:
        raise UnknownOwnerError(
            f"whether attempt {manifest.epoch} still owns the run cannot be read: {error}",
            hint="check whether this node can still read the launch folder",
        ) from error
    if not is_owner:
        raise FencedError(
            f"attempt {manifest.epoch} no longer owns the run, so {folder.name} was not committed",
            hint="a newer attempt of this run has started; this one should end",
        )
    part.rename(folder / NAME)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, unless the file system does not support it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(handle)


def checksum_file(path: Path) -> FileSum:
    """Return size and CRC-32 of a file; raises OSError."""
    crc, size, buffer = 0, 0, bytearray(_CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            crc, size = zlib.crc32(view[:count], crc), size + count
    return FileSum(size=size, crc32=crc)


def sync_and_checksum_file(path: Path) -> FileSum:
    """Bring a file that others wrote to disk, its name included; return its sum; raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    sync_folder(path.parent)
    return checksum_file(path)


def explain_wrong_size(folder: Path, manifest: Manifest) -> str:
    """Return what is wrong with the sizes of a checkpoint's files; empty if nothing is."""
    for name, expected in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if size != expected.size:
            return f"{name} has {size} bytes instead of {expected.size}"
    return ""


def check_file_contents(folder: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Compare the named files with their checksums; raises CheckpointError, OSError."""
    for name in names:
        found, expected = checksum_file(folder / name), manifest.files[name]
        if found != expected:
            raise CheckpointError(
                f"{name} has {found.size} bytes with CRC-32 {found.crc32:08x} instead of "
                f"{expected.size} with {expected.crc32:08x}"
            )
