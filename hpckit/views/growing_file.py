"""Reads the JSON lines that were added to a file since the last time, by offset and inode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpckit.record.store import read_rows
from hpckit.values import dataclass, field


@dataclass(slots=True, kw_only=True)
class GrowingFile:
    """A file of JSON lines. Of a long file only the last `most` bytes are read at first, if given.

    A file that was replaced, or has become shorter, is read from its beginning. `begin` is where to
    start.
    """

    path: Path
    most: int | None = None
    begin: int = 0
    _inode: int | None = field(default=None, init=False)
    _end: int = field(default=0, init=False)

    def new_rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield the new lines that are complete; none if the file cannot be read."""
        with suppress(OSError):
            seen = self.path.stat()
            start = self._start(seen.st_ino, seen.st_size)
            if seen.st_size == start:
                return
            for row, end in read_rows(self.path, start=start):
                if end > self._end:  # else the line is not complete yet
                    self._end = end
                    yield row

    def _start(self, inode: int, size: int) -> int:
        if self._inode is None:
            self._end = max(self.begin, 0 if self.most is None else size - self.most)
        elif inode != self._inode:
            self._end = 0
        if size < self._end:
            self._end = 0
        self._inode = inode
        return self._end
