"""Checks whether the code of a launch is still as it was frozen, by the snapshot's checksums.

Files that runs wrote next to the frozen files do not count.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpckit.errors import UsageError
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot.collect import CodeSnapshot
from hpckit.record.snapshot.git import Git
from hpckit.record.store import (
    open_regular_file,
    read_json,
    read_json_object,
    read_regular_file,
    write_file_non_atomically,
)

GAP = "  "
"""Between digest and path: the format that `sha256sum --check` reads."""

_NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENXIO})


def write_snapshot_checksums(snapshot: CodeSnapshot, paths: LaunchPaths) -> str:
    """Write and return the checksums of the snapshot as copied, without links; raises OSError."""
    text = format_snapshot_checksums(snapshot, paths.code)
    write_file_non_atomically(paths.code_sums, text, errors="surrogateescape")
    return text


def format_snapshot_checksums(snapshot: CodeSnapshot, folder: Path) -> str:
    """Return the checksums of a snapshot's files as they are below `folder`, without links."""
    return "".join(
        _format_checksum_line(file.path, digest)
        for file in snapshot.files or ()
        if file.link is None and (digest := compute_file_checksum(folder / file.path)) is not None
    )


def describe_changes_in_frozen_code(paths: LaunchPaths, git: Git) -> tuple[str, ...]:
    """Return what differs from the frozen code, one phrase each; empty if nothing does.

    Without a snapshot the checkout is compared: its commit, and the files that git tracks in it.
    Raises UsageError if the record of the code cannot be read.
    """
    try:
        record = read_json(paths.code_record)
        if record["snapshot"]:
            return tuple(_list_snapshot_changes(paths))
        return tuple(_list_checkout_changes(paths, record["commit"], Path(record["project"]), git))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"cannot determine whether the code of {paths.folder} changed: {error}",
            hint="check that the folder is complete and that you can read it",
        ) from error


def check_snapshot_exists(paths: LaunchPaths) -> None:
    """Raise UsageError if the launch had a code snapshot and it is gone."""
    record = read_json_object(paths.code_record)  # `changes` reports what is wrong with it
    try:
        gone = bool(record.get("snapshot") and record.get("project")) and not paths.code.is_dir()
    except OSError:
        return
    if gone:
        at = f" at commit {record['commit']}" if record.get("commit") else ""
        raise UsageError(
            f"the code snapshot {paths.code} is gone, so no run of this launch can start again "
            "(`hpckit clean` removes snapshots of launches whose runs have all completed)",
            hint=f"start a new launch from the project's own checkout: {record['project']}{at}",
        )


def list_modified_snapshot_files(paths: LaunchPaths) -> Iterator[str]:
    """Yield the files in a snapshot that are not as frozen: those that runs wrote or changed.

    Links and files compiled by Python do not count. Without checksums, every file is yielded.
    """
    frozen = dict(read_frozen_checksums(paths))
    for folder, _, names in os.walk(paths.code):
        for path in (Path(folder, name) for name in names):
            inside = str(path.relative_to(paths.code))
            if path.is_symlink() or path.suffix == ".pyc":
                continue
            if inside not in frozen or compute_file_checksum(path) != frozen[inside]:
                yield inside


def list_files_differing_from_launch(snapshot: CodeSnapshot, paths: LaunchPaths) -> tuple[str, ...]:
    """Return the project's files in which code to be frozen differs from a launch's, without links.

    There are none if either has no list of files.
    """
    try:
        record = read_json(paths.code_record)
        before = dict(read_frozen_checksums(paths))
        uncounted = snapshot.uncounted.union(record.get("uncounted") or ())
    except (OSError, ValueError, TypeError, AttributeError):
        return ()  # only for information
    if snapshot.files is None or not before:
        return ()
    before = {path: digest for path, digest in before.items() if path not in uncounted}
    here = [file.path for file in snapshot.files if file.link is None]
    here = [path for path in here if path not in uncounted]
    now = {path: compute_file_checksum(snapshot.root / path) for path in here}
    both = sorted(before.keys() | now.keys())
    return tuple(path for path in both if before.get(path) != now.get(path))


def list_project_edits_since_launch(paths: LaunchPaths) -> tuple[str, ...]:
    """Return the project's files that differ from the snapshot; new files do not count.

    Empty if there is no snapshot, or the project is gone.
    """
    try:
        record = read_json(paths.code_record)
        project = Path(record["project"])
        if not record["snapshot"] or not project.is_dir():
            return ()
        sums = tuple(read_frozen_checksums(paths))
        return tuple(path for path, digest in sums if compute_file_checksum(project / path) != digest)
    except (OSError, ValueError, KeyError, TypeError):
        return ()  # only for information; `changes` reports what is wrong with the record


def _list_snapshot_changes(paths: LaunchPaths) -> Iterator[str]:
    if not paths.code.is_dir():
        yield "the snapshot code/ is gone"
        return
    for path, digest in read_frozen_checksums(paths):
        now = compute_file_checksum(paths.code / path)
        if now is None:
            yield f"code/{path} is gone"
        elif now != digest:
            yield f"code/{path} was edited"


def _list_checkout_changes(paths: LaunchPaths, commit: str | None, project: Path, git: Git) -> Iterator[str]:
    if not project.is_dir():
        yield f"the project {project} is gone"
        return
    if commit is None or not git.is_installed:
        # Outside git nothing was recorded to compare with. A node without git cannot compare, which
        # must not count as a change.
        return
    state = git.read_state(project)
    if state.commit != commit:
        yield f"{project} is at commit {state.commit or '(none)'}, not {commit}"
    elif state.diff != read_frozen_diff(paths.code_diff):
        yield f"{project} has different changes since commit {commit} than at the launch"


def read_frozen_diff(path: Path) -> str:
    """Return the changes to what git tracked, as a launch recorded them."""
    if not path.exists():
        return ""
    return read_regular_file(path).decode(errors="surrogateescape")


def compute_file_checksum(path: Path) -> str | None:
    """Return the checksum of a file, None if there is no regular file."""
    try:
        with open_regular_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise


def _format_checksum_line(path: str, digest: str) -> str:
    # As sha256sum writes names that contain its own separators.
    if "\\" in path or "\n" in path:
        escaped = path.replace("\\", "\\\\").replace("\n", "\\n")
        return f"\\{digest}{GAP}{escaped}\n"
    return f"{digest}{GAP}{path}\n"


def read_frozen_checksums(paths: LaunchPaths) -> Iterator[tuple[str, str]]:
    """Yield path and digest of every frozen file; none for launches without such a record."""
    return map(_parse_checksum_line, read_checksum_lines(paths))


def read_checksum_lines(paths: LaunchPaths) -> list[str]:
    """Return the lines of checksums of a launch; none for launches without such a record."""
    file = paths.code_sums
    text = read_regular_file(file).decode(errors="surrogateescape") if file.exists() else ""
    return [f"{line}\n" for line in text.split("\n")[:-1]]


def parse_checksum_path(line: str) -> str:
    """Return the path in a line of checksums."""
    return _parse_checksum_line(line)[0]


def _parse_checksum_line(line: str) -> tuple[str, str]:
    digest, _, path = line.rstrip("\n").partition(GAP)
    if digest.startswith("\\"):
        digest = digest[1:]
        path = "\\".join(part.replace("\\n", "\n") for part in path.split("\\\\"))
    return path, digest


def read_code_changes_at_start(paths: LaunchPaths, runs: Iterable[int]) -> tuple[str, ...]:
    """Return what had changed when an attempt of these runs began, as its supervisor noted it."""
    found: set[str] = set()
    for index in runs:
        marker = paths.run(index).other_code
        try:
            found |= {*read_regular_file(marker).decode(errors="replace").splitlines()}
        except FileNotFoundError:
            continue
        except OSError:
            found.add(str(marker))
    return tuple(sorted(found))
