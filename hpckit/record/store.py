"""Files that no reader ever sees half written: appended lines, atomic replacement.

Everything is private to the user: folders 0700, files 0600.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

from hpckit.model.events import VERSION, Event, decode_event, encode_event

PRIVATE_FOLDER = 0o700
_TAIL_BYTES = 64 * 1024
_BOTH_NAMES = 2
_DEEPEST = 50
PRIVATE_FILE = 0o600


def make_private_folder(path: Path, *, exist_ok: bool = True) -> Path:
    """Create a private folder and its missing parents, also private; raises OSError."""
    try:
        path.mkdir(mode=PRIVATE_FOLDER, exist_ok=exist_ok)
    except FileNotFoundError:
        make_private_folder(path.parent)
        path.mkdir(mode=PRIVATE_FOLDER, exist_ok=exist_ok)
    return path


def write_text_atomically(path: Path, text: str, *, lasting: bool = True) -> None:
    """Replace a whole file atomically: a reader sees the old text or the new text, never a part.

    With `lasting=False` the file may be empty after a power loss.
    """
    write_chunks(path, (text,), lasting=lasting)


def write_file_non_atomically(path: Path, text: str, *, errors: str = "backslashreplace") -> None:
    r"""Write a file in a folder that is not visible yet: no need for atomic replacement or flush.

    Bytes of arguments that are not UTF-8 are written as JSON escapes (`\udcff`), by default.
    """
    path.touch(mode=PRIVATE_FILE)
    path.write_text(text, encoding="utf-8", errors=errors)


def write_chunks(
    path: Path, chunks: Iterable[str | bytes], *, mode: int = PRIVATE_FILE, lasting: bool = True
) -> None:
    """Replace a whole file as `write_text` does, with content that is written as it comes."""
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(
                chunk.encode("utf-8", errors="backslashreplace") if isinstance(chunk, str) else chunk
                for chunk in chunks
            )
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def create_file_if_missing(path: Path, text: str) -> bool:
    """Create a file with its whole text; return False if it already exists. Raises OSError.

    Uses link(2), which is atomic on NFS too.
    """
    own = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    write_text_atomically(own, text)
    try:
        os.link(own, path)
    except FileExistsError:
        # NFS may answer a successful link twice, the second time with this error.
        return own.stat().st_nlink == _BOTH_NAMES
    else:
        return True
    finally:
        own.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Replace a file with a JSON document."""
    write_text_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON document; raises OSError or ValueError."""
    data = read_regular_file(path)
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, empty if it cannot be read."""
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def open_regular_file(path: Path | str) -> BufferedReader:
    """Open a regular file for reading; raises OSError, also if it is not a regular file.

    A pipe that another user put there would block, waiting for a writer that never comes.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_regular_file(path: Path) -> bytes:
    """Return the content of a regular file; raises OSError, also if it is not a regular file."""
    with open_regular_file(path) as file:
        return file.read()


def encode_json_line(record: Mapping[str, Any]) -> bytes:
    """Return a record as one line of JSON, with its line end."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
    return text.encode(errors="backslashreplace")


def append_json_lines(path: Path, *records: Mapping[str, Any]) -> int:
    """Append a JSON line for each record, in one write; return the file's size; raises OSError.

    A line cut off by a full disk is terminated first, so that it does not swallow the next one. All
    writers of a file must be on one host: over NFS, several hosts lose each other's lines.
    """
    line = b"".join(map(encode_json_line, records))
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return size + len(line)
    finally:
        os.close(handle)


def read_rows_with_offsets(
    path: Path, *, start: int = 0, skip: Callable[[bytes], bool] | None = None
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yield the JSON lines of a file from byte `start`, each with the offset where whole lines end.

    Only one line is in memory at a time. A missing file yields nothing. Left out are torn or damaged lines,
    lines that are not JSON objects, and lines for which `skip` is true, which are not parsed. Raises OSError.
    """
    try:
        file = open_regular_file(path)
    except FileNotFoundError:
        return
    with file:
        end = file.seek(start)
        for line in file:
            end += len(line) if line.endswith(b"\n") else 0
            record = None if skip is not None and skip(line) else parse_json_line(line)
            if record is not None:
                yield record, end


def parse_json_line(line: bytes) -> Mapping[str, Any] | None:
    """Return the JSON object of a line; None if damaged, nested too deeply, or not an object."""
    try:
        # Pass text: detecting the encoding of bytes is a sixth of the cost of a line.
        record = None if _is_nested_too_deeply(line) else json.loads(str(line, "utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON lines of a file; none if it is missing, without a torn last line."""
    return (record for record, _ in read_rows_with_offsets(path))


def _is_nested_too_deeply(line: bytes) -> bool:
    """Return whether a line is nested deeper than any record; code that walks it would fail."""
    if line.count(b"[") + line.count(b"{") <= _DEEPEST:
        return False
    depth = 0
    for sign in re.findall(rb"[][{}]", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", line)):
        depth += 1 if sign in b"[{" else -1
        if depth > _DEEPEST:
            return True
    return False


def append_event(path: Path, event: Event) -> None:
    """Append one event."""
    append_json_lines(path, encode_event(event))


def read_events(path: Path, *, without: Collection[str] = ()) -> Iterator[Event]:
    """Yield the events of a file, except kinds in `without` or unknown to this version."""
    for record, _ in read_rows_with_offsets(path, skip=_build_kind_filter(without) if without else None):
        event = None if str(record.get("event")) in without else decode_event(record)
        if event is not None:
            yield event


def _build_kind_filter(kinds: Collection[str]) -> Callable[[bytes], bool]:
    """Return a test for lines of these kinds as this version writes them, without parsing.

    A month of training has tens of thousands of saves, and parsing them only to skip them is most
    of the cost of reading. JSON uses the last of duplicate names, and names may be escaped: a line
    with a second `event`, or with an escape, is parsed.
    """
    beginnings = tuple(f'{{"v":{VERSION},"event":"{kind}",'.encode() for kind in sorted(kinds))

    def skip(line: bytes) -> bool:
        return line.startswith(beginnings) and b"\\" not in line and line.count(b'"event"') == 1

    return skip


def read_last_lines(path: Path, lines: int = 12) -> str:
    """Return the last lines of a log of any length; empty if there is none."""
    try:
        with open_regular_file(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
