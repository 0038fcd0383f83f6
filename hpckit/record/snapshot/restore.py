"""Restores the code of an earlier launch to run it again: its snapshot, else its commit.

Only exactly what was frozen is accepted. The user's checkout is not touched: a commit is written
out elsewhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpckit.errors import UsageError
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot.changes import (
    compute_file_checksum,
    describe_changes_in_frozen_code,
    read_frozen_checksums,
    read_frozen_diff,
)
from hpckit.record.snapshot.collect import CodeFile, CodeSnapshot
from hpckit.record.snapshot.git import Git, GitState
from hpckit.record.snapshot.identity import compute_code_identity
from hpckit.record.store import read_json
from hpckit.values import dataclass

_TODAY = "leave --exact out to run the same configuration with today's code"


def restore_frozen_code(paths: LaunchPaths, git: Git, scratch: Path) -> tuple[CodeSnapshot, str, str | None]:
    """Return the code of a launch, where it is from, and what may still be missing.

    A commit is written to `scratch`, an empty folder. Raises UsageError if the code is not
    available, or not as it was.
    """
    try:
        record, places = read_json(paths.code_record), read_json(paths.launch)["code"]
        frozen = _Frozen(
            paths=paths,
            record={**record},
            places={**places, "working_dir": places["working_dir"]},
            of_snapshot=bool(record.get("snapshot")),
            project=Path(record["project"]),
            commit=record["commit"] or None,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"the record of the code in {paths.folder} cannot be read: {error}",
            hint=f"check that the folder is complete and readable, or {_TODAY}",
        ) from error
    if frozen.of_snapshot and paths.code.is_dir():
        return _restore_from_snapshot(frozen, git), "its own snapshot", None
    return _restore_from_commit(frozen, git, scratch)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frozen:
    """What a launch folder records about its code."""

    paths: LaunchPaths
    record: Mapping[str, Any]
    places: Mapping[str, Any]
    of_snapshot: bool
    project: Path
    commit: str | None

    @property
    def recorded_diff(self) -> str:
        return read_frozen_diff(self.paths.code_diff)

    def build_snapshot(self, root: Path, files: Iterator[CodeFile]) -> CodeSnapshot:
        """Return the snapshot of these files, described as the frozen one was."""
        dirty, branch = self.record.get("dirty"), self.record.get("branch")
        git = GitState(commit=self.commit, branch=branch, dirty=bool(dirty), diff=self.recorded_diff)
        return CodeSnapshot(
            root=root,
            working_dir=self.places["working_dir"],
            python_path=tuple(self.places["python_path"]),
            files=tuple(sorted(files, key=lambda file: file.path)),
            git=None if dirty is None else git,
            origin=self.project,
            uncounted=frozenset(self.record.get("uncounted") or ()),
            points=tuple(self.record.get("points") or ()),
        )


def _restore_from_snapshot(frozen: _Frozen, git: Git) -> CodeSnapshot:
    edited = describe_changes_in_frozen_code(frozen.paths, git)
    if edited:
        more = f", and {len(edited) - 1} more" if len(edited) > 1 else ""
        raise UsageError(
            f"the snapshot {frozen.paths.code} has changed since it was frozen: {edited[0]}{more}",
            hint=f"put back what was edited, or {_TODAY}",
        )
    sums = dict(read_frozen_checksums(frozen.paths))
    snapshot = frozen.build_snapshot(frozen.paths.code, _list_code_files(frozen.paths.code, sums))
    identity = frozen.record.get("identity")
    if identity and compute_code_identity(snapshot) != identity:
        raise UsageError(
            f"links in the snapshot {frozen.paths.code} are not what was frozen",
            hint=f"remove links that runs have made there, or {_TODAY}",
        )
    return snapshot


def _list_code_files(root: Path, sums: Mapping[str, str] | None) -> Iterator[CodeFile]:
    """Yield the links below a folder, and the files: those with a checksum, or all."""
    for folder, folders, names in os.walk(root):
        for path in (Path(folder, name) for name in (*names, *folders)):
            inside = path.relative_to(root).as_posix()
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                yield CodeFile(path=inside, size=0, executable=False, link=str(path.readlink()))
            elif stat.S_ISREG(status.st_mode) and (sums is None or inside in sums):
                executable = bool(status.st_mode & stat.S_IXUSR)
                yield CodeFile(path=inside, size=status.st_size, executable=executable)


def _restore_from_commit(frozen: _Frozen, git: Git, scratch: Path) -> tuple[CodeSnapshot, str, str | None]:
    commit, project = frozen.commit, frozen.project
    why = "its snapshot is gone" if frozen.of_snapshot else "it was launched without a snapshot"
    if commit is None:
        raise UsageError(
            f"the code of {frozen.paths.folder} is not available: {why}, and {project} was in no "
            "git checkout",
            hint=_TODAY,
        )
    root = git.export_commit(project, commit, frozen.recorded_diff, scratch)
    if root is None:
        raise UsageError(
            f"the code of {frozen.paths.folder} is not available: {why}, and git cannot write out "
            f"commit {commit} of {project}, with its changes",
            hint=f"bring that commit back (git fetch) or the project to its place, or {_TODAY}",
        )
    sums = dict(read_frozen_checksums(frozen.paths)) if frozen.of_snapshot else None
    _check_checksums(frozen, root, sums or {})
    unsure = sums is None and bool(frozen.record.get("dirty"))
    return (
        frozen.build_snapshot(root, _list_code_files(root, sums)),
        f"commit {commit} of {project}" + (", with its changes" if frozen.recorded_diff else ""),
        "what git did not track was not recorded" if unsure else None,
    )


def _check_checksums(frozen: _Frozen, root: Path, sums: Mapping[str, str]) -> None:
    wrong = [path for path, digest in sums.items() if compute_file_checksum(root / path) != digest]
    if wrong:
        raise UsageError(
            f"commit {frozen.commit} does not give back the code of {frozen.paths.folder}: "
            f"{len(wrong)} of {len(sums)} files differ or are missing, such as {wrong[0]} (git did "
            "not track it, or its filters differ)",
            hint=_TODAY,
        )
