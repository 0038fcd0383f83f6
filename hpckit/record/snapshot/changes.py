"""Whether the code a launch was frozen with is still what it was.

Responsible for the snapshot's checksums and for naming what differs; it must not mend anything.
What runs wrote beside the frozen files does not count.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from hpckit.errors import UsageError
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot.collect import CodeSnapshot
from hpckit.record.snapshot.git import Git
from hpckit.record.store import PRIVATE_FILE, read_json

_GAP = "  "
"""Between digest and path: the file is what `sha256sum --check` reads."""


def write_sums(snapshot: CodeSnapshot, paths: LaunchPaths) -> str:
    """Write and return the checksums of the snapshot as copied, links aside; raises OSError."""
    text = sums_text(snapshot, paths.code)
    paths.code_sums.touch(mode=PRIVATE_FILE)
    paths.code_sums.write_text(text, encoding="utf-8", errors="surrogateescape")
    return text


def sums_text(snapshot: CodeSnapshot, folder: Path) -> str:
    """Return the checksums of a snapshot's files as they lie below `folder`, links aside."""
    return "".join(
        _line(file.path, digest)
        for file in snapshot.files or ()
        if file.link is None and (digest := digest_of(folder / file.path)) is not None
    )


def changes(paths: LaunchPaths, git: Git) -> tuple[str, ...]:
    """Return what of the code differs from what was frozen, a phrase each; none where nothing does.

    Without a snapshot it is the checkout that counts: its commit, and what git tracks in it.
    Raises UsageError where the record of the code cannot be read.
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
    """Raise UsageError where the code of a launch was its snapshot, and that is gone."""
    try:
        record = read_json(paths.code_record)
        gone = bool(record["snapshot"]) and not paths.code.is_dir()
        project, commit = record["project"], record["commit"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # `changes` says what is wrong with the record
    if gone:
        at = f" at commit {commit}" if commit else ""
        raise UsageError(
            f"the code snapshot {paths.code} is gone, so nothing of this launch can start again "
            "(`hpckit clean` removes that of launches whose runs have all completed)",
            hint=f"start a new launch from the project's own checkout: {project}{at}",
        )


def foreign_files(paths: LaunchPaths) -> Iterator[str]:
    """Yield what lies in a snapshot and is not as frozen: files that runs wrote or changed.

    Links and what Python compiled do not count. A launch without checksums has foreign files only.
    """
    frozen = dict(frozen_sums(paths))
    for folder, _, names in os.walk(paths.code):
        for path in (Path(folder, name) for name in names):
            inside = str(path.relative_to(paths.code))
            if path.is_symlink() or path.suffix == ".pyc":
                continue
            if inside not in frozen or digest_of(path) != frozen[inside]:
                yield inside


def edited_since(paths: LaunchPaths) -> tuple[str, ...]:
    """Return the project's files that are no longer as in the snapshot; new files do not count.

    None where there is no snapshot, or the project is gone.
    """
    try:
        record = read_json(paths.code_record)
        project = Path(record["project"])
        if not record["snapshot"] or not project.is_dir():
            return ()
        sums = tuple(frozen_sums(paths))
        return tuple(path for path, digest in sums if digest_of(project / path) != digest)
    except (OSError, ValueError, KeyError, TypeError):
        return ()  # for information; `changes` says what is wrong with the record


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
        # Outside git nothing was recorded to compare with; a node without git (where such a
        # runs) cannot tell, and must not take its ignorance for a change.
        return
    state = git.state(project)
    if state.commit != commit:
        yield f"{project} is at commit {state.commit or '(none)'}, not {commit}"
    elif state.diff != _frozen_diff(paths.code_diff):
        yield f"{project} has other changes since commit {commit} than it had"


def _frozen_diff(path: Path) -> str:
    if not path.exists():
        return ""
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def digest_of(path: Path) -> str | None:
    """Return the checksum of a file, None where there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _line(path: str, digest: str) -> str:
    # As sha256sum writes names that hold its own separators.
    if "\\" in path or "\n" in path:
        escaped = path.replace("\\", "\\\\").replace("\n", "\\n")
        return f"\\{digest}{_GAP}{escaped}\n"
    return f"{digest}{_GAP}{path}\n"


def frozen_sums(paths: LaunchPaths) -> Iterator[tuple[str, str]]:
    """Yield path and digest of every frozen file; none for launches that have no such record."""
    file = paths.code_sums
    if not file.exists():
        return
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    for line in text.split("\n")[:-1]:
        digest, _, path = line.partition(_GAP)
        if digest.startswith("\\"):
            digest = digest[1:]
            path = "\\".join(part.replace("\\n", "\n") for part in path.split("\\\\"))
        yield path, digest
