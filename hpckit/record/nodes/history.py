"""The history of nodes: a folder below the output folder, with a file for each run that adds to it.

Each file has one writer at a time, the supervisor of the run, so that no line is lost on a network
file system. Another user's files are not read.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from hpckit.model.nodes.incident import NodeIncident
from hpckit.model.plain import from_plain, to_plain
from hpckit.record.store import append_line, make_folder, open_plain

_NAME = ".nodes"
_FORGOTTEN = "forgotten.jsonl"
_MOST_BYTES = 2**20
_MOST_FILES = 10_000
_SUFFIX = ".jsonl"


def history_folder(output_dir: Path) -> Path:
    """Return the folder of the caller's history: users may share an output folder."""
    return output_dir / f"{_NAME}-{os.getuid()}"


def append_incident(output_dir: Path, incident: NodeIncident) -> None:
    """Add an incident to the file of its run; raises OSError."""
    folder = _own_folder(output_dir)
    append_line(folder / f"{incident.run}{_SUFFIX}", to_plain(incident))


def forget_node(output_dir: Path, node: str, at: datetime) -> None:
    """Let what happened on a node until now count no more; raises OSError."""
    folder = _own_folder(output_dir)
    append_line(folder / _FORGOTTEN, {"node": node, "at": to_plain(at)})


def read_incidents(output_dir: Path) -> tuple[NodeIncident, ...]:
    """Return the incidents of all runs but forgotten ones; damaged lines are left out."""
    folder = history_folder(output_dir)
    try:
        _check_own(folder)
        names = sorted(one for one in os.listdir(folder) if one.endswith(_SUFFIX))  # noqa: PTH208
    except OSError:
        return ()
    forgotten = _forgotten(folder / _FORGOTTEN)
    return tuple(
        one
        for name in names[-_MOST_FILES:]
        if name != _FORGOTTEN
        for one in _incidents(folder / name)
        if one.node not in forgotten or one.at > forgotten[one.node]
    )


def remove_older(output_dir: Path, before: datetime) -> None:
    """Remove files to which nothing was added since `before`."""
    folder = history_folder(output_dir)
    try:
        _check_own(folder)
        files = [one for one in folder.iterdir() if one.name != _FORGOTTEN]
    except OSError:
        return
    for file in files:
        try:
            if file.lstat().st_mtime < before.timestamp():
                file.unlink()
        except OSError:
            continue


def _own_folder(output_dir: Path) -> Path:
    folder = make_folder(history_folder(output_dir))
    _check_own(folder)
    return folder


def _check_own(folder: Path) -> None:
    """Raise OSError if a folder is a link, another user's, or one that others may write to."""
    found = folder.lstat()
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or others:
        raise PermissionError(errno.EPERM, "it is not the caller's alone", str(folder))


def _forgotten(file: Path) -> dict[str, datetime]:
    found: dict[str, datetime] = {}
    for line in _lines(file):
        try:
            record = json.loads(line)
            at = datetime.fromisoformat(record["at"])
            found[str(record["node"])] = max(at, found.get(str(record["node"]), at))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found


def _incidents(file: Path) -> Iterator[NodeIncident]:
    for line in _lines(file):
        try:
            yield from_plain(NodeIncident, json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue


def _lines(file: Path) -> list[bytes]:
    try:
        with open_plain(file) as opened:
            own = os.fstat(opened.fileno()).st_uid == os.getuid()
            return opened.read(_MOST_BYTES).splitlines() if own else []
    except OSError:
        return []
