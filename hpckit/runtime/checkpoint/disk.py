"""Files whose checksum is computed while they are written and flushed.

Every byte passes once: its checksum is taken from the memory it is written from, and while the next
chunk is summed and copied, the disk already writes the previous one. Writing first, then flushing
and reading back for the checksum, took half as long again.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from torch.distributed.checkpoint.filesystem import FileSystem

from hpckit.record.store import PRIVATE_FILE
from hpckit.runtime.checkpoint.errors import CheckpointError
from hpckit.runtime.checkpoint.manifest import FileSum

CHUNK = 1 << 24
"""Bytes between two flushes: few flushes, because each must get the GIL back from training."""

GATHERED = 1 << 20
"""Writes smaller than this are combined."""


class SummedFile(io.RawIOBase):
    """A new file, accessible to the user only, that is only appended to.

    `close` ends the writing and lets the disk finish; `wait_until_on_disk` waits for it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        self._file = os.fdopen(handle, "wb", buffering=0)
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-flush")
        self._flushes: list[Future[None]] = []
        self._crc32, self._size, self._pending = 0, 0, 0

    def writable(self) -> bool:
        """Return True: the file can be written to."""
        return True

    def fileno(self) -> int:
        """Return the handle."""
        return self._file.fileno()

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def write(self, data: Any, /) -> int:
        """Append all of the data; raises OSError, also for an earlier flush that failed."""
        with memoryview(data).cast("B") as view:
            for start in range(0, len(view), CHUNK):
                self._append_chunk(view[start : start + CHUNK])
            return len(view)

    def _append_chunk(self, chunk: memoryview) -> None:
        self._crc32 = zlib.crc32(chunk, self._crc32)
        written = 0
        while written < len(chunk):
            written += self._file.write(chunk[written:])
        self._size += written
        self._pending += written
        if self._pending >= CHUNK and all(flush.done() for flush in self._flushes):
            self._wait_for_flushes()
            self._flushes.append(self._flusher.submit(os.fdatasync, self._file.fileno()))
            self._pending = 0

    def _wait_for_flushes(self) -> None:
        """Raise what a flush raised: the system reports it once, a later flush would succeed."""
        while self._flushes:
            self._flushes.pop().result()

    def close(self) -> None:
        """End the writing; the disk finishes by itself."""
        if not self.closed:
            self._flushes.append(self._flusher.submit(os.fsync, self._file.fileno()))
        super().close()

    def wait_until_on_disk(self) -> FileSum:
        """Wait until all is on disk; return size and CRC-32; raises OSError, CheckpointError."""
        self._wait_for_flushes()
        size = os.fstat(self._file.fileno()).st_size
        if size != self._size:
            raise CheckpointError(f"{self._path.name} has {size} bytes; {self._size} were written to it")
        return FileSum(size=self._size, crc32=self._crc32)

    def close_handle(self) -> None:
        """Close the handle once the disk has finished."""
        self._flusher.shutdown()
        self._file.close()


class SummingFileSystem(FileSystem):
    """torch's file system, with a checksum of every file that is written through it."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, SummedFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
            file.close_handle()
        self._files.clear()

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file; a written file is on disk only after `rename` or `wait_until_on_disk`."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        file = self._files[Path(path).name] = SummedFile(Path(path))
        with io.BufferedWriter(file, GATHERED) as stream:
            yield stream

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Give a file its name, after its content is on disk."""
        file = self._files.pop(Path(path).name)
        self._files[Path(new_path).name] = file
        file.wait_until_on_disk()
        super().rename(path, new_path)

    def wait_until_on_disk(self) -> dict[str, FileSum]:
        """Wait until all files are on disk; return their sums by name."""
        return {name: file.wait_until_on_disk() for name, file in self._files.items()}
