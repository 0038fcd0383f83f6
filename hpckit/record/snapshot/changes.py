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
from hpckit.record.store import open_plain, read_json, read_object, read_plain, write_new

GAP = "  "
"""Between digest and path: the format that `sha256sum --check` reads."""

_NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENXIO})


def write_sums(snapshot: CodeSnapshot, paths: LaunchPaths) -> str:
    """Write and return the checksums of the snapshot as copied, without links; raises OSError."""
    text = sums_text(snapshot, paths.code)
    write_new(paths.code_sums, text, errors="surrogateescape")
    return text


def sums_text(snapshot: CodeSnapshot, folder: Path) -> str:
    """Return the checksums of a snapshot's files as they are below `folder`, without links."""
    return "".join(
        _line(file.path, digest)
        for file in snapshot.files or ()
        if file.link is None and (digest := digest_of(folder / file.path)) is not None
    )


def changes(paths: LaunchPaths, git: Git) -> tuple[str, ...]:
    """Return what differs from the frozen code, one phrase each; empty if nothing does.

    Without a snapshot the checkout is compared: its commit, and the files that git tracks in it.
    Raises UsageError if the record of the code cannot be read.
    """
    try:
        record = read_json(paths.code_record)
        if record["snapshot"]:
            return tuple(_changed_files(paths))
        return tuple(_changed_checkout(paths, record["commit"], Path(record["project"]), git))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"cannot determine whether the code of {paths.folder} changed: {error}",
            hint="see that the folder is whole and still yours to read",
        ) from error


def check_snapshot(paths: LaunchPaths) -> None:
    """Raise UsageError if the launch had a code snapshot and it is gone."""
    record = read_object(paths.code_record)  # `changes` reports what is wrong with it
    try:
        gone = bool(record.get("snapshot") and record.get("project")) and not paths.code.is_dir()
    except OSError:
        return
    if gone:
        at = f" at commit {record['commit']}" if record.get("commit") else ""
        raise UsageError(
            f"the code snapshot {paths.code} is gone, so nothing of this launch can start again "
            "(`hpckit clean` removes that of launches whose runs have all completed)",
            hint=f"start a new launch from the project's own checkout: {record['project']}{at}",
        )


def foreign_files(paths: LaunchPaths) -> Iterator[str]:
    """Yield the files in a snapshot that are not as frozen: those that runs wrote or changed.

    Links and files compiled by Python do not count. Without checksums, every file is yielded.
    """
    frozen = dict(frozen_sums(paths))
    for folder, _, names in os.walk(paths.code):
        for path in (Path(folder, name) for name in names):
            inside = str(path.relative_to(paths.code))
            if path.is_symlink() or path.suffix == ".pyc":
                continue
            if inside not in frozen or digest_of(path) != frozen[inside]:
                yield inside


def files_that_differ(snapshot: CodeSnapshot, paths: LaunchPaths) -> tuple[str, ...]:
    """Return the project's files in which code to be frozen differs from a launch's, without links.

    There are none if either has no list of files.
    """
    try:
        record = read_json(paths.code_record)
        before = dict(frozen_sums(paths))
        uncounted = snapshot.uncounted.union(record.get("uncounted") or ())
    except (OSError, ValueError, TypeError, AttributeError):
        return ()  # only for information
    if snapshot.files is None or not before:
        return ()
    before = {path: digest for path, digest in before.items() if path not in uncounted}
    here = [file.path for file in snapshot.files if file.link is None]
    here = [path for path in here if path not in uncounted]
    now = {path: digest_of(snapshot.root / path) for path in here}
    both = sorted(before.keys() | now.keys())
    return tuple(path for path in both if before.get(path) != now.get(path))


def edited_since(paths: LaunchPaths) -> tuple[str, ...]:
    """Return the project's files that differ from the snapshot; new files do not count.

    Empty if there is no snapshot, or the project is gone.
    """
    try:
        record = read_json(paths.code_record)
        project = Path(record["project"])
        if not record["snapshot"] or not project.is_dir():
            return ()
        sums = tuple(frozen_sums(paths))
        return tuple(path for path, digest in sums if digest_of(project / path) != digest)
    except (OSError, ValueError, KeyError, TypeError):
        return ()  # only for information; `changes` reports what is wrong with the record


def _changed_files(paths: LaunchPaths) -> Iterator[str]:
    if not paths.code.is_dir():
        yield "the snapshot code/ is gone"
        return
    for path, digest in frozen_sums(paths):
        now = digest_of(paths.code / path)
        if now is None:
            yield f"code/{path} is gone"
        elif now != digest:
            yield f"code/{path} was edited"


def _changed_checkout(
    paths: LaunchPaths, commit: str | None, project: Path, git: Git
) -> Iterator[str]:
    if not project.is_dir():
        yield f"the project {project} is gone"
        return
    if commit is None or not git.installed:
        # Outside git nothing was recorded to compare with. A node without git cannot compare, which
        # must not count as a change.
        return
    state = git.state(project)
    if state.commit != commit:
        yield f"{project} is at commit {state.commit or '(none)'}, not {commit}"
    elif state.diff != frozen_diff(paths.code_diff):
        yield f"{project} has other changes since commit {commit} than it had"


def frozen_diff(path: Path) -> str:
    """Return the changes to what git tracked, as a launch recorded them."""
    if not path.exists():
        return ""
    return read_plain(path).decode(errors="surrogateescape")


def digest_of(path: Path) -> str | None:
    """Return the checksum of a file, None if there is no regular file."""
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise


def _line(path: str, digest: str) -> str:
    # As sha256sum writes names that contain its own separators.
    if "\\" in path or "\n" in path:
        escaped = path.replace("\\", "\\\\").replace("\n", "\\n")
        return f"\\{digest}{GAP}{escaped}\n"
    return f"{digest}{GAP}{path}\n"


def frozen_sums(paths: LaunchPaths) -> Iterator[tuple[str, str]]:
    """Yield path and digest of every frozen file; none for launches without such a record."""
    return map(_read_line, frozen_lines(paths))


def frozen_lines(paths: LaunchPaths) -> list[str]:
    """Return the lines of checksums of a launch; none for launches without such a record."""
    file = paths.code_sums
    text = read_plain(file).decode(errors="surrogateescape") if file.exists() else ""
    return [f"{line}\n" for line in text.split("\n")[:-1]]


def path_in(line: str) -> str:
    """Return the path in a line of checksums."""
    return _read_line(line)[0]


def _read_line(line: str) -> tuple[str, str]:
    digest, _, path = line.rstrip("\n").partition(GAP)
    if digest.startswith("\\"):
        digest = digest[1:]
        path = "\\".join(part.replace("\\n", "\n") for part in path.split("\\\\"))
    return path, digest


def changed_at_start(paths: LaunchPaths, runs: Iterable[int]) -> tuple[str, ...]:
    """Return what had changed when an attempt of these runs began, as its supervisor noted it."""
    found: set[str] = set()
    for index in runs:
        marker = paths.run(index).other_code
        try:
            found |= {*read_plain(marker).decode(errors="replace").splitlines()}
        except FileNotFoundError:
            continue
        except OSError:
            found.add(str(marker))
    return tuple(sorted(found))
