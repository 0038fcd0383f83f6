"""What kind of image is there, and its digest: of a file's content, or of a folder's listing.

A large file is read once: its digest is remembered by inode, size and time of change. A folder's digest
covers path, kind, mode, size, target and time of change of everything in it, not the content: a listing of
20,000 files takes a third of a second, their content may take minutes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from hpckit.record.ownership import explain_unsafe_ownership, read_path_status
from hpckit.record.store import read_json_object, write_json

_CACHE = ".image-digests.json"
_READ_BYTES = 4 * 1024 * 1024
_MOST_KEPT = 200
_SIF_ARCH = slice(45, 47)
_SIF_MACHINES = {b"01": "386", b"02": "amd64", b"03": "arm", b"04": "arm64", b"06": "ppc64le"}
"""Of a SIF file's header (github.com/apptainer/sif)."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""By a machine's own name, what registries call it."""


class ImageKind(StrEnum):
    """What an image is, by its first bytes; a folder has programs in its root."""

    folder = "a folder"
    sif = "a SIF file"
    squashfs = "a SquashFS file"


_MAGIC = {ImageKind.sif: (32, b"SIF_MAGIC"), ImageKind.squashfs: (0, b"hsqs")}


def read_stamp(image: Path) -> tuple[int, ...]:
    """Return what tells cheaply that a file has changed; nothing of a folder. Raises OSError."""
    seen = image.stat()
    return () if stat.S_ISDIR(seen.st_mode) else (seen.st_ino, seen.st_size, seen.st_mtime_ns)


def read_kind_and_platform(image: Path) -> tuple[ImageKind | None, str]:
    """Return the kind of an image, None if it is none; and what it is for. Raises OSError.

    A SIF file says what it is for; other images count as for this machine.
    """
    if image.is_dir():
        is_root = any((image / name).is_dir() for name in ("usr", "bin"))
        return ImageKind.folder if is_root else None, name_platform()
    with image.open("rb") as file:
        head = file.read(_SIF_ARCH.stop)
    kind = next((kind for kind, (at, magic) in _MAGIC.items() if head.startswith(magic, at)), None)
    machine = _SIF_MACHINES.get(head[_SIF_ARCH]) if kind is ImageKind.sif else None
    return kind, f"linux/{machine}" if machine else name_platform()


def name_platform(machine: str = "") -> str:
    """Return what registries call the platform of a machine that calls itself so; empty: of this one."""
    machine = machine or platform.machine()
    return f"linux/{_MACHINES.get(machine, machine)}"


def compute_digest(image: Path) -> tuple[str, int]:
    """Return the digest of a file or folder, and its bytes; raises OSError."""
    digest, total = hashlib.sha256(), 0
    if image.is_dir():
        for line, size in _list_folder(str(image), ""):
            digest.update(line)
            total += size
    else:
        with image.open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                digest.update(chunk)
                total += len(chunk)
    return f"sha256:{digest.hexdigest()}", total


def find_digest(image: Path, output_dir: Path) -> tuple[str, int]:
    """Return the digest of an image and its bytes, as `output_dir` remembers them; raises OSError."""
    stamp = read_stamp(image)
    if not stamp:
        return compute_digest(image)
    cache = output_dir / _CACHE
    trusted = not cache.exists() or explain_unsafe_ownership(read_path_status(cache), os.geteuid()) is None
    known = read_json_object(cache) if trusted else {}
    key = f"{os.path.realpath(image)} {' '.join(map(str, stamp))}"
    if isinstance(found := known.get(key), str):
        return found, image.stat().st_size
    digest, size = compute_digest(image)
    if output_dir.is_dir() and trusted:
        write_json(cache, dict([*known.items(), (key, digest)][-_MOST_KEPT:]))
    return digest, size


def _list_folder(folder: str, below: str) -> Iterator[tuple[bytes, int]]:
    """Yield a line for each entry, in the order of their names, and its bytes."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        seen = entry.stat(follow_symlinks=False)
        name, size = f"{below}{entry.name}", 0
        told: list[str | int] = [int(seen.st_mtime)]
        if entry.is_symlink():
            told = [str(Path(entry.path).readlink())]
        elif not entry.is_dir(follow_symlinks=False):
            size = seen.st_size
        line = json.dumps([name, stat.filemode(seen.st_mode), size, *told])
        yield f"{line}\n".encode(errors="surrogateescape"), size
        if entry.is_dir(follow_symlinks=False):
            try:
                yield from _list_folder(entry.path, f"{name}/")
            except PermissionError:  # such as /root of an image that root has unpacked
                yield f"{json.dumps([name, 'closed'])}\n".encode(errors="surrogateescape"), 0
