"""The standard streams of the process, wrapped so that no state of theirs ends in a traceback.

Covers streams that were closed from the start, that are full, or whose encoding lacks a character.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import BinaryIO, TextIO, cast

from hpckit.errors import OutputError

_STANDARD = 3
"""0, 1 and 2."""


def open_standard_streams() -> tuple[TextIO, TextIO]:
    """Return standard output and standard error of this process, ready for any text.

    A stream that was closed from the start becomes the null device: otherwise the first opened file
    would get its number. Characters that the encoding lacks are escaped. Writing to a full standard
    output raises OutputError, and BrokenPipeError if its reader has gone; what cannot be written to
    standard error is dropped, since messages must not end the work.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) < _STANDARD:
        os.set_inheritable(fd, True)  # noqa: FBT003  # positional-only
    os.close(fd)
    # If something else has replaced a stream (as tests do), it must receive the output.
    if sys.stdout is sys.__stdout__:
        sys.stdout = _Output.wrap_stream(sys.stdout, fd=1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _Remarks.wrap_stream(sys.stderr, fd=2)
    return sys.stdout, sys.stderr


def redirect_output_to_null() -> None:
    """Keep Python from reporting an unwritable stream again when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(null, fd)
    os.close(null)


class _Stream(io.TextIOWrapper):
    """A standard stream with its own encoding, to which any text can be written."""

    @classmethod
    def wrap_stream(cls, stream: TextIO | None, *, fd: int) -> _Stream:
        """Take over a stream that Python has opened; None if it was closed."""
        if stream is None:
            raw = cast("BinaryIO", open(fd, "wb", closefd=False))  # noqa: SIM115  # stays open
            return cls(raw, encoding="utf-8", errors="backslashreplace")
        lines = bool(getattr(stream, "line_buffering", False))
        encoding = stream.encoding
        inner = cast("BinaryIO", cast("io.TextIOWrapper", stream).detach())
        return cls(inner, encoding=encoding, errors="backslashreplace", line_buffering=lines)


class _Output(_Stream):
    """Standard output: what cannot be written is an error."""

    def write(self, text: str) -> int:
        """Write text; raises OutputError on failure."""
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _unwritable_output_error(error) from error

    def flush(self) -> None:
        """Write buffered text; raises OutputError on failure."""
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _unwritable_output_error(error) from error


class _Remarks(_Stream):
    """Standard error: what cannot be written is dropped."""

    def write(self, text: str) -> int:
        """Write text, if possible."""
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Write buffered text, if possible."""
        with contextlib.suppress(OSError):
            super().flush()


def _unwritable_output_error(error: OSError) -> OutputError:
    return OutputError(
        f"standard output cannot be written: {error.strerror}",
        hint="if its disk is full, free some space, or send the output elsewhere: > FILE",
    )
