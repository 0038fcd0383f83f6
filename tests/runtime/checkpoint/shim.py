"""Stands between a process and its files, and kills it at one of its operations on them."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


class Shim:
    """Counts what a save does to files, and kills the process at one of these operations.

    With `power_cut`, what was written and not yet put on disk is lost first, in part or whole.
    """

    def __init__(self, fatal: int, chance: random.Random, *, power_cut: bool) -> None:
        self.fatal, self.chance, self.power_cut = fatal, chance, power_cut
        self.done: list[str] = []
        self.dirty: set[str] = set()
        self._fsync = os.fsync

    def strike(self, operation: str) -> None:
        """Count one operation; die at the fatal one."""
        self.done.append(operation)
        if len(self.done) == self.fatal:
            self.lose()
            os.kill(os.getpid(), signal.SIGKILL)

    def lose(self) -> None:
        """Do to files that were not put on disk what a power cut may do."""
        for path in sorted(self.dirty) if self.power_cut else ():
            with contextlib.suppress(OSError):
                size = Path(path).stat().st_size
                keep = self.chance.choice((0, self.chance.randrange(size + 1), size))
                os.truncate(path, keep)
                if self.chance.random() < 0.5:
                    os.truncate(path, size)

    def fsync(self, fd: FileDescriptorLike) -> None:
        """Stand in for os.fsync."""
        self.strike("fsync")
        self._fsync(fd)
        self.dirty.discard(_path(fd if isinstance(fd, int) else fd.fileno()))

    def install(self) -> None:
        """Put itself between this process and its files."""
        for name in ("rename", "replace", "mkdir", "unlink", "rmdir", "write", "remove"):
            setattr(os, name, self._counted(getattr(os, name)))
        os.fsync = self.fsync
        io.open = builtins.open = self._opening(io.open)
        os.fdopen = self._opening(os.fdopen)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            self.strike(call.__name__)
            result = call(*args, **named)
            if call.__name__ in {"rename", "replace"} and str(args[0]) in self.dirty:
                self.dirty.remove(str(args[0]))
                self.dirty.add(str(args[1]))
            return result

        return counted

    def _opening(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            stream = call(file, mode, *args, **named)
            if "w" not in mode:
                return stream
            self.dirty.add(_path(stream.fileno()))
            return _Stream(stream, self)

        return opening


def _path(handle: int) -> str:
    return str(Path(f"/proc/self/fd/{handle}").readlink())


class _Stream:
    """A file whose writes are counted and can end half-way."""

    def __init__(self, stream: Any, shim: Shim) -> None:
        self._stream, self._shim = stream, shim

    def write(self, data: Any) -> Any:
        if len(self._shim.done) + 1 == self._shim.fatal:
            self._stream.write(data[: len(data) // 2])
            self._stream.flush()
        self._shim.strike("write")
        return self._stream.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
