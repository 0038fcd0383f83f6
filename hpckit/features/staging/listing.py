"""The files of what is staged, seen as one row of blocks: read and written by number, each with its sum."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from hpckit.features.staging.items import Verify
from hpckit.record.store import PRIVATE_FILE, PRIVATE_FOLDER

BLOCK = 8 << 20
"""Bytes of a block: small enough that a node serves it soon, large enough for any file system."""


class SourceError(Exception):
    """A source that cannot be staged: its message says why, as the end of a sentence."""


Entry = tuple[str, int, int, str]
"""A file's path below the whole, size and mode, and where it leads to, if it is a link."""


class Listing:
    """The files of one item, in the order of their paths."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self.ends = list(accumulate(size for _, size, _, _ in self.entries))
        self.bytes = self.ends[-1] if self.ends else 0
        self.blocks = -(-self.bytes // BLOCK)

    @cached_property
    def text(self) -> bytes:
        """Its JSON form."""
        return json.dumps(self.entries, separators=(",", ":")).encode(errors="surrogateescape")

    @classmethod
    def from_text(cls, text: bytes) -> Listing:
        """Read the JSON form; raises ValueError for one with a path that leads out of its folder."""
        lines = json.loads(text.decode(errors="surrogateescape"))
        entries = [(str(path), int(size), int(mode), str(target)) for path, size, mode, target in lines]
        for path, _, _, target in entries:
            if _leads_out(path) or (target and _leads_out(str(Path(path).parent / target))):
                raise ValueError(f"{path} leads out of its folder")
        return cls(entries)

    def size_of_block(self, block: int) -> int:
        """Return how many bytes a block has: the last one may be shorter."""
        return min(BLOCK, self.bytes - block * BLOCK)

    def pieces_of_block(self, block: int) -> Iterator[tuple[str, int, int]]:
        """Yield what a block is made of: the file, where in the file, and how many bytes."""
        at, end = block * BLOCK, block * BLOCK + self.size_of_block(block)
        place = bisect_right(self.ends, at)
        while at < end:
            path, size, _, _ = self.entries[place]
            begin = self.ends[place] - size
            count = min(self.ends[place], end) - at
            if count:
                yield path, at - begin, count
            at, place = at + count, place + 1


def _leads_out(path: str) -> bool:
    whole = os.path.normpath(path)
    return path.startswith("/") or whole == ".." or whole.startswith("../")


def list_file(path: Path) -> Listing:
    """Return the listing of one file, which is named as it is; raises SourceError, OSError."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise SourceError("is neither a file nor a folder")
    if not os.access(path, os.R_OK):
        raise SourceError("cannot be read by you")
    return Listing([(path.name, found.st_size, stat.S_IMODE(found.st_mode), "")])


def list_folder(folder: Path, name: str) -> tuple[Listing, str]:
    """Return all that is in a folder, below `name`, and a digest of names, sizes and times.

    Links within the folder stay links. Raises SourceError for one that leads out, or for what is
    neither a file nor a folder; OSError.
    """
    entries, digest, waiting = list[Entry](), hashlib.sha256(), [(folder, name)]
    while waiting:
        here, below = waiting.pop()
        with os.scandir(here) as found:
            there = sorted(found, key=lambda one: one.name)
        entries.append((f"{below}/", 0, stat.S_IMODE(here.stat().st_mode), ""))
        for each in there:
            path = f"{below}/{each.name}"
            if each.is_symlink():
                entries.append((path, 0, 0, _read_inner_link(Path(each.path), folder)))
            elif each.is_dir():
                waiting.append((Path(each.path), path))
                continue
            elif each.is_file():
                if not os.access(each.path, os.R_OK):
                    raise SourceError(f"has a file that you cannot read: {each.path}")
                seen = each.stat()
                entries.append((path, seen.st_size, stat.S_IMODE(seen.st_mode), ""))
                digest.update(f"{seen.st_mtime_ns} ".encode())
            else:
                raise SourceError(f"has {each.path}, which is neither a file nor a folder")
    listing = Listing(sorted(entries))
    digest.update(listing.text)
    return listing, digest.hexdigest()


def _read_inner_link(path: Path, folder: Path) -> str:
    target = str(path.readlink())
    inner = os.path.normpath(path.parent / target)
    if target.startswith("/") or not Path(inner).is_relative_to(folder):
        raise SourceError(f"has a link that leads out of it: {path} -> {target}")
    return target


def compute_sum(data: bytes | bytearray | memoryview, verify: Verify) -> str:
    """Return the sum of a block; with `size` there is none."""
    if verify is Verify.crc32:
        return f"{zlib.crc32(data):08x}"
    return hashlib.sha256(data).hexdigest() if verify is Verify.sha256 else "-"


class Tree:
    """Files below a folder that are read and written by blocks. No link in it is followed."""

    def __init__(self, base: Path, listing: Listing) -> None:
        self.base, self.listing = base, listing

    def read_block(self, block: int) -> bytearray:
        """Return a block; raises SourceError if a file is shorter than listed, and OSError."""
        data = bytearray(self.listing.size_of_block(block))
        for file, view, offset in self._open_pieces(block, data, os.O_RDONLY):
            got = 0
            while got < len(view):
                step = os.preadv(file, [view[got:]], offset + got)
                if not step:
                    raise SourceError(f"is shorter than it was: {self.base}, block {block}")
                got += step
        return data

    def write_block(self, block: int, data: bytes | bytearray) -> None:
        """Write a block; raises OSError."""
        for file, view, offset in self._open_pieces(block, data, os.O_WRONLY | os.O_CREAT):
            done = 0
            while done < len(view):
                done += os.pwrite(file, view[done:], offset + done)

    def _open_pieces(
        self, block: int, data: bytes | bytearray, flags: int
    ) -> Iterator[tuple[int, memoryview, int]]:
        """Yield each open file of a block, with its part of the block, and where in the file that is."""
        view = memoryview(data)
        for path, offset, count in self.listing.pieces_of_block(block):
            file = os.open(self.base / path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
            try:
                yield file, view[:count], offset
            finally:
                os.close(file)
            view = view[count:]

    def make_frame(self) -> None:
        """Make the folders, links and empty files, so that blocks fill it."""
        for path, size, _, target in self.listing.entries:
            place = self.base / path
            if path.endswith("/"):
                place.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            elif target:
                place.unlink(missing_ok=True)
                place.symlink_to(target)
            elif not size:
                os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE))

    def finish(self, *, drop_cache: bool) -> None:
        """Bring all to the disk, with the modes of the source as far as they are its owner's.

        With `drop_cache` the kernel forgets it, so that it is read from the disk.
        """
        for path, _, mode, target in reversed(self.listing.entries):
            if path.endswith("/"):
                (self.base / path).chmod(PRIVATE_FOLDER)
            elif not target:
                file = os.open(self.base / path, os.O_RDONLY | os.O_NOFOLLOW)
                os.fchmod(file, (mode & 0o700) | PRIVATE_FILE)
                os.fsync(file)
                if drop_cache:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)

    def has_sizes(self) -> bool:
        """Return whether every file is there, with its size."""
        try:
            return all(
                path.endswith("/") or target or os.lstat(self.base / path).st_size == size
                for path, size, _, target in self.listing.entries
            )
        except OSError:
            return False
