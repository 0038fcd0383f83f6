"""Compares the frozen code of two launches: which files differ, and in which lines.

It never reads outside the snapshots, whatever paths their lists of files contain.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpckit.record.layout import LaunchPaths
from hpckit.record.remove import is_plain
from hpckit.record.snapshot.changes import frozen_sums
from hpckit.record.snapshot.outside import path_of, recorded_outside
from hpckit.record.store import open_plain

_MOST_BYTES = 2_000_000


def file_changes(old: LaunchPaths, new: LaunchPaths) -> tuple[tuple[str, str], ...] | None:
    """Return the files that differ, without links, each with `added`, `removed` or `changed`.

    None if a launch has no list of its files.
    """
    before, after = _sums(old), _sums(new)
    if before is None or after is None:
        return None
    return tuple(
        (path, "added" if path not in before else "removed" if path not in after else "changed")
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    )


def text_diff(old: LaunchPaths, new: LaunchPaths, path: str) -> Iterator[str]:
    """Yield the lines of a unified diff of one file, without line ends."""
    try:
        before, after = _text(old.code, path), _text(new.code, path)
    except _UnreadError as error:
        yield f"# {path}: {error}"
        return
    names = (f"{old.folder.name}/{path}", f"{new.folder.name}/{path}")
    yield from difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="")


class _UnreadError(Exception):
    """Why a file is not compared."""


def _text(code: Path, path: str) -> str:
    """Return a file of a snapshot, empty if it has no such file; raises _UnreadError."""
    if not code.is_dir():
        raise _UnreadError("the snapshot is gone (`hpckit clean` removes it)")
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise _UnreadError("it is not below the snapshot")
    if not (code / path).exists():
        return ""
    if not is_plain(code / path, code):
        raise _UnreadError("it is behind a link")
    try:
        with open_plain(code / path) as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise _UnreadError(f"it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _UnreadError("it is no text") from error
    if len(data) > _MOST_BYTES:
        raise _UnreadError("it is too large to compare")
    return text


def _sums(paths: LaunchPaths) -> Mapping[str, str] | None:
    try:
        outside = {path_of(line): line for line in recorded_outside(paths)}
        return dict(frozen_sums(paths)) | outside if paths.code_sums.exists() else None
    except OSError:
        return None
