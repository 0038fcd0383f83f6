"""The history of nodes: a folder below the output folder, with a file for each run that adds to it.

Each file has one writer at a time, the supervisor of the run, so that no line is lost on a network
file system. Another user's files are not read.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import stat
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hpckit.model.nodes import NodeIncident
from hpckit.model.plain import from_plain, to_plain
from hpckit.record.store import (
    append_json_lines,
    encode_json_line,
    make_private_folder,
    open_regular_file,
    parse_json_line,
)

_NAME = ".nodes"
_FORGOTTEN = "forgotten.jsonl"
_MOST_BYTES = 2**20
_MOST_FILES = 10_000
_SUFFIX = ".jsonl"
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def node_history_folder(output_dir: Path) -> Path:
    """Return the folder of the caller's history: users may share an output folder."""
    return output_dir / f"{_NAME}-{os.getuid()}"


def explain_unused_node_history(output_dir: Path) -> str | None:
    """Return why the history is not used although it is there; None if it is, or is not there."""
    folder = node_history_folder(output_dir)
    try:
        found = folder.lstat()
    except OSError:
        return None
    why = _explain_folder_not_private(folder, found)
    return why and f"the history of nodes in {folder} is not used, because {why}"


def _explain_folder_not_private(folder: Path, found: os.stat_result) -> str | None:
    """Return why a folder is not the caller's alone, and what to do; None if it is."""
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a real folder; remove it"
    if found.st_uid != os.getuid():
        return f"it belongs to user {found.st_uid}; ask them to remove it"
    if found.st_mode & _OTHERS:
        return f"others may write to it; chmod go-w {folder}"
    return None


def append_node_incident(output_dir: Path, incident: NodeIncident) -> bool:
    """Add an incident to the file of its run; return whether it is the first; raises OSError."""
    folder = _make_history_folder(output_dir)
    record = to_plain(incident)
    size = append_json_lines(folder / f"{incident.run}{_SUFFIX}", record)
    return size <= len(encode_json_line(record))


def forget_node_incidents(output_dir: Path, node: str, at: datetime) -> None:
    """Ignore all incidents of a node up to now; raises OSError."""
    folder = _make_history_folder(output_dir)
    append_json_lines(folder / _FORGOTTEN, {"node": node, "at": to_plain(at)})


def read_node_incidents(output_dir: Path) -> tuple[NodeIncident, ...]:
    """Return the incidents of all runs but forgotten ones; damaged lines are left out."""
    folder = node_history_folder(output_dir)
    try:
        _check_folder_is_own(folder)
        names = [name for name in os.listdir(folder) if name.endswith(_SUFFIX)]  # noqa: PTH208
    except OSError:
        return ()
    files = [folder / name for name in sorted(names) if name != _FORGOTTEN]
    if len(files) > _MOST_FILES:
        files = sorted(files, key=_last_modified_time)[-_MOST_FILES:]
    forgotten = _read_forgotten_times(folder / _FORGOTTEN)
    return tuple(
        one
        for file in files
        for one in _read_incidents_file(file)
        if one.node not in forgotten or one.at > forgotten[one.node]
    )


def _last_modified_time(file: Path) -> float:
    """Return when a file was last written; a file that cannot be looked at comes first."""
    try:
        return file.lstat().st_mtime
    except OSError:
        return -math.inf


def remove_old_history_files(output_dir: Path, before: datetime, *, most: int | None = None) -> None:
    """Remove files to which nothing was added since `before`, `most` at once."""
    folder = node_history_folder(output_dir)
    try:
        _check_folder_is_own(folder)
        files = [path for path in folder.iterdir() if path.name != _FORGOTTEN]
    except OSError:
        return
    old = (file for file in files if -math.inf < _last_modified_time(file) < before.timestamp())
    for file in itertools.islice(old, most):
        with contextlib.suppress(OSError):
            file.unlink()


def _make_history_folder(output_dir: Path) -> Path:
    folder = make_private_folder(node_history_folder(output_dir))
    _check_folder_is_own(folder)
    return folder


def _check_folder_is_own(folder: Path) -> None:
    """Raise OSError if a folder is a link, another user's, or one that others may write to."""
    if _explain_folder_not_private(folder, folder.lstat()) is not None:
        raise PermissionError(errno.EPERM, "it is not the caller's alone", str(folder))


def _read_forgotten_times(file: Path) -> dict[str, datetime]:
    found: dict[str, datetime] = {}
    for record in _read_latest_records(file):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            at, node = datetime.fromisoformat(record["at"]), str(record["node"])
            if at.tzinfo is not None:
                found[node] = max(at, found.get(node, at))
    return found


def _read_incidents_file(file: Path) -> Iterator[NodeIncident]:
    for record in _read_latest_records(file):
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            found = from_plain(NodeIncident, record)
            if found.at.tzinfo is not None:
                yield found


def _read_latest_records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the whole lines of a file of ours that can be read; of a long one the latest."""
    with contextlib.suppress(OSError), open_regular_file(file) as opened:
        found = os.fstat(opened.fileno())
        if found.st_uid != os.getuid():
            return
        begin = max(0, found.st_size - _MOST_BYTES)
        opened.seek(begin)
        lines = opened.read(_MOST_BYTES).splitlines()[1 if begin else 0 :]
        yield from filter(None, map(parse_json_line, lines))
