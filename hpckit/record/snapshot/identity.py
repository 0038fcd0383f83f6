"""Finds what was computed already: earlier runs by signature, and whether their code was the same.

It reads many launches at once: one small file for each, and of a run only how its latest attempt
ended. It does not judge the state of open runs (views does).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from hpckit.model.node_setup import FrozenContainer, find_container_of_run
from hpckit.model.plain import from_plain
from hpckit.model.states import RunState
from hpckit.record.layout import LaunchPaths
from hpckit.record.lookup import list_own_launches
from hpckit.record.snapshot.changes import format_snapshot_checksums, parse_checksum_path, read_checksum_lines
from hpckit.record.snapshot.collect import CodeFile, CodeSnapshot
from hpckit.record.snapshot.outside import MODULES
from hpckit.record.store import open_regular_file, read_json_object, read_regular_file
from hpckit.values import dataclass

_ENDING_BYTES = 16 * 1024
"""The final event is shorter, unless it quotes a long traceback, and then it did not end well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierLaunch:
    """A launch with runs that have the wanted signatures: their indices, in order."""

    paths: LaunchPaths
    runs: Mapping[str, Sequence[int]]

    def find_runs_with_signatures(self, wanted: Collection[str]) -> tuple[int, ...]:
        """Return the indices of the runs with these signatures, in order."""
        return tuple(sorted(i for one, held in self.runs.items() if one in wanted for i in held))


def find_launches_with_signatures(output_dir: Path, wanted: Collection[str]) -> Iterator[EarlierLaunch]:
    """Yield the launches below a folder that have runs with these signatures, newest first."""
    for folder in list_own_launches(output_dir):
        paths = LaunchPaths(folder)
        try:
            signatures = read_regular_file(paths.signatures).decode().split()
        except (OSError, UnicodeDecodeError):
            continue
        found: dict[str, list[int]] = {}
        for index, signature in enumerate(signatures):
            if signature in wanted:
                found.setdefault(signature, []).append(index)
        if found:
            yield EarlierLaunch(paths=paths, runs=found)


def has_latest_attempt_completed(paths: LaunchPaths, index: int) -> bool:
    """Return whether the final event of a run's latest attempt says that it completed."""
    # Text instead of Path objects, which took half of the time for ten thousand runs.
    attempts = str(paths.run(index).attempts)
    try:
        numbers = [int(name) for name in os.listdir(attempts) if name.isdecimal()]  # noqa: PTH208
        events = str(paths.run(index).attempt(max(numbers)).events)
        with open_regular_file(events) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _ENDING_BYTES))
            last = json.loads(file.read().rstrip(b"\n").rpartition(b"\n")[2])
        return bool(last["event"] == "attempt_ended" and last["state"] == RunState.completed)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def compute_code_identity(
    snapshot: CodeSnapshot, sums: str | None = None, more: Iterable[str] = ()
) -> str | None:
    """Return the same text for the same code in the same place; None if that cannot be determined.

    For a snapshot it is made from the content of its files that count (`sums`, if known, as from
    `format_snapshot_checksums`), and `more` lines of files that counted elsewhere; without one from the
    commit and the changes to what git tracks in the project. Outside git nothing shows whether files are
    unchanged. Code that no snapshot holds is compared beside it (`outside`).
    """
    places = (snapshot.working_dir, *snapshot.python_path)
    if snapshot.files is not None:
        counted = [file for file in snapshot.files if file.path not in snapshot.uncounted]
        held = {file.path for file in snapshot.files}
        marks = {file.path: _describe_kind_or_link(file, snapshot.project, held) for file in counted}
        known = format_snapshot_checksums(snapshot, snapshot.root) if sums is None else sums
        lines = [f"{line}\n" for line in known.split("\n")[:-1]]
        lines = [*(line for line in lines if parse_checksum_path(line) not in snapshot.uncounted), *more]
        marked = (f"{path}\0{mark}" for path, mark in sorted(marks.items()) if mark)
        listed = "".join(sorted(lines, key=parse_checksum_path))
        return f"files:{_compute_digest([listed, *marked, *places])}"
    git = snapshot.git
    if git is None or git.commit is None:
        return None
    return f"commit:{_compute_digest([str(snapshot.project), git.commit, git.diff, *places])}"


def matches_frozen_code(snapshot: CodeSnapshot, sums: str, identity: str, paths: LaunchPaths) -> bool:
    """Return whether code with this identity is what a launch froze; `sums` are its checksums.

    What does not count now, did not then: a file of points is known for one by a later launch.
    """
    record = read_json_object(paths.code_record)
    if record.get("identity") in {None, "", identity}:
        return record.get("identity") == identity
    apart = snapshot.uncounted.difference(record.get("uncounted") or ())
    more = (
        [line for line in read_checksum_lines(paths) if parse_checksum_path(line) in apart] if apart else []
    )
    return bool(more) and compute_code_identity(snapshot, sums, more) == record["identity"]


def read_frozen_identity(paths: LaunchPaths) -> str | None:
    """Return the `compute_code_identity` of a launch when it was frozen; None if unknown."""
    return read_json_object(paths.code_record).get("identity") or None


@lru_cache
def _read_frozen_images(paths: LaunchPaths) -> tuple[FrozenContainer, ...]:
    there = paths.hpckit_zip.exists()  # launch.json may be large
    plain = read_json_object(paths.launch).get("containers", ()) if there else ()
    return tuple(from_plain(FrozenContainer, image) for image in plain)


def read_frozen_image(paths: LaunchPaths, index: int) -> FrozenContainer | None:
    """Return the image that a run of a launch is in; None if it is in none."""
    return find_container_of_run(_read_frozen_images(paths), index)


def is_same_image(
    one: FrozenContainer | None, other: FrozenContainer | None, *, any_content: bool = False
) -> bool:
    """Return whether two runs are in the same image, by content or by name, or in none."""
    if any_content and one and other and one.image == other.image:
        return True
    return (one and one.digest) == (other and other.digest)


def is_changed_image(image: FrozenContainer | None, asked: Iterable[FrozenContainer | None]) -> bool:
    """Return whether an image has another content now, under the same name."""
    named = [other.digest for other in asked if other and image and other.image == image.image]
    return image is not None and bool(named) and image.digest not in named


def read_project_folder(paths: LaunchPaths) -> str | None:
    """Return the project folder that a launch was made from; None if it was not recorded."""
    project = read_json_object(paths.code_record).get("project")
    return project if isinstance(project, str) else None


def _describe_kind_or_link(file: CodeFile, project: Path, held: Collection[str]) -> str:
    """Return what counts of a file but its content: its kind, what a link leads to.

    A target that is not `held` counts by size and time, also a module that git ignores.
    """
    if file.link is None:
        return "program" if file.executable else ""
    target = (project / file.path).resolve()
    inside = target.is_relative_to(project)
    is_held = inside and target.relative_to(project).as_posix() in held
    # Other files that git ignores may be what runs write.
    if is_held or (inside and not target.name.endswith(MODULES)) or not target.is_file():
        return f">{file.link}"
    stat = target.stat()
    return f">{file.link} {stat.st_size} {stat.st_mtime_ns}"


def _compute_digest(parts: Sequence[str]) -> str:
    text = json.dumps(parts, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
