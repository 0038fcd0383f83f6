"""What kind of image is there, and its digest: of a file's content, or of a folder's listing.

A large file is read once: its digest is remembered by inode, size and time of change. A folder's digest
covers path, mode, size, target and time of change of all in it, not the content, which may take minutes.
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
from hpckit.record.store import open_regular_file, read_json_object, write_json

_CACHE = ".image-digests.json"
_MOST_KEPT = 200
_SIF_ARCH = slice(45, 47)
_SIF_MACHINES = {b"01": "386", b"02": "amd64", b"03": "arm", b"04": "arm64", b"06": "ppc64le"}
"""Of a SIF file's header (github.com/apptainer/sif)."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


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
    """Return an image's kind, None if it is none, and its platform: ours, unless a SIF file says another."""
    if image.is_dir():
        is_root = any((image / name).is_dir() for name in ("usr", "bin"))
        return ImageKind.folder if is_root else None, name_platform()
    with open_regular_file(image) as file:
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
    if not image.is_dir():
        with open_regular_file(image) as file:
            whole = hashlib.file_digest(file, "sha256")
            return f"sha256:{whole.hexdigest()}", file.tell()
    digest, total = hashlib.sha256(), 0
    for line, size in _list_folder(str(image), ""):
        digest.update(f"{json.dumps(line)}\n".encode())
        total += size
    return f"sha256:{digest.hexdigest()}", total


def find_digest(image: Path, stamp: tuple[int, ...], output_dir: Path) -> tuple[str, int]:
    """Return the digest of an image and its bytes, as `output_dir` remembers them; raises OSError."""
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


def _list_folder(folder: str, below: str) -> Iterator[tuple[list[str | int], int]]:
    """Yield what each entry is, in the order of their names, and its bytes."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        seen = entry.stat(follow_symlinks=False)
        name, is_folder, is_link = f"{below}{entry.name}", stat.S_ISDIR(seen.st_mode), entry.is_symlink()
        size = 0 if is_folder or is_link else seen.st_size
        last = str(Path(entry.path).readlink()) if is_link else int(seen.st_mtime)
        yield [name, stat.filemode(seen.st_mode), size, last], size
        if is_folder:
            try:
                yield from _list_folder(entry.path, f"{name}/")
            except PermissionError:  # such as /root of an image that root has unpacked
                yield [name, "closed"], 0
