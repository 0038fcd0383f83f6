"""Reads the events of a trace one after the other: a large one is never in memory as a whole."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hpckit.record.store import open_plain
from hpckit.values import dataclass

MOST_BYTES = 1 << 29
"""Of text that is read of one trace: some millions of events, half a minute, and a gigabyte."""

_CHUNK = 1 << 20
_LONGEST_HEAD = 1 << 24
_LIST = '"traceEvents"'


class TraceTooLargeError(ValueError):
    """Raised for a trace of more than `MOST_BYTES`."""


def read_trace(path: Path, *, most: int = MOST_BYTES) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, a gzip file of JSON in the Chrome trace format.

    Raises OSError, ValueError if it is damaged, and TraceTooLargeError if its text is longer than
    `most` bytes.
    """
    with open_plain(path) as packed, gzip.open(packed, "rt", encoding="utf-8") as file:
        try:
            yield from _Reader(file, most).events()
        except (EOFError, zlib.error, RecursionError) as error:
            raise ValueError(f"it is damaged: {error}") from error


@dataclass(slots=True)
class _Reader:
    """The part of a trace's text that is in memory, from `at` on."""

    file: IO[str]
    most: int
    text: str = ""
    at: int = 0
    read: int = 0

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of the list of events."""
        self._skip_head()
        decode = json.JSONDecoder().raw_decode
        while (mark := self._mark()) != "]":
            if mark == ",":
                self.at += 1
                continue
            try:
                event, self.at = decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if not self._more():  # an object that goes on in the next chunk
                    raise ValueError("it is damaged, or was cut off") from error
                continue
            if isinstance(event, dict):
                yield event

    def _skip_head(self) -> None:
        while (found := self.text.find(_LIST)) < 0:
            if len(self.text) > _LONGEST_HEAD or not self._more():
                raise ValueError("it has no list of events")
        self.at = found + len(_LIST)
        if self._mark() == ":":
            self.at += 1
        if self._mark() != "[":
            raise ValueError("it has no list of events")
        self.at += 1

    def _mark(self) -> str:
        """Return the next character that is no space, and go to it."""
        while True:
            while self.at < len(self.text):
                if not self.text[self.at].isspace():
                    return self.text[self.at]
                self.at += 1
            if not self._more():
                raise ValueError("it is damaged, or was cut off")

    def _more(self) -> bool:
        """Read on; return False at the end. What was read before `at` is forgotten."""
        piece = self.file.read(_CHUNK)
        self.read += len(piece)
        if self.read > self.most:
            raise TraceTooLargeError(f"it has more than {self.most >> 20} MiB of text")
        self.text, self.at = self.text[self.at :] + piece, 0
        return bool(piece)
