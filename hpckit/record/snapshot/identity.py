"""What was computed already: earlier runs by their signature, and whether their code was the same.

Responsible for reading that of many launches at once: one small file for each, and of a run no
more than how its latest attempt ended. It must not judge how an open run stands (cli/views).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpckit.model.states import RunState
from hpckit.record.layout import LaunchPaths
from hpckit.record.lookup import list_launches
from hpckit.record.snapshot.changes import sums_text
from hpckit.record.snapshot.collect import CodeSnapshot
from hpckit.record.store import PRIVATE_FILE, read_json

_ENDING_BYTES = 16 * 1024
"""The final event of an attempt is shorter, unless it quotes a long traceback: no good end then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierLaunch:
    """A launch that holds runs with wanted signatures: their indices, in order."""

    paths: LaunchPaths
    runs: Mapping[str, tuple[int, ...]]

    def of(self, wanted: Collection[str]) -> tuple[int, ...]:
        """Return the indices of the runs with these signatures, in order."""
        return tuple(sorted(i for one, held in self.runs.items() if one in wanted for i in held))


def holdings(output_dir: Path, wanted: Collection[str]) -> Iterator[EarlierLaunch]:
    """Yield the launches below a folder that hold runs with these signatures, newest first."""
    for folder in list_launches(output_dir):
        paths = LaunchPaths(folder)
        found: dict[str, list[int]] = {}
        for index, signature in enumerate(_signatures(paths)):
            if signature in wanted:
                found.setdefault(signature, []).append(index)
        if found:
            runs = {signature: tuple(indices) for signature, indices in found.items()}
            yield EarlierLaunch(paths=paths, runs=runs)


def write_signatures(paths: LaunchPaths, signatures: Iterable[str]) -> None:
    """Write the signatures of a launch, a line for each run, in order; raises OSError."""
    paths.signatures.touch(mode=PRIVATE_FILE)
    paths.signatures.write_text("".join(f"{one}\n" for one in signatures), encoding="utf-8")


def _signatures(paths: LaunchPaths) -> Sequence[str]:
    """Return the signatures of a launch by run; none where they cannot be read."""
    try:
        return paths.signatures.read_text(encoding="utf-8").split()
    except (FileNotFoundError, UnicodeDecodeError):
        record = _record(paths.launch)  # of a launch from before there was such a file
    except OSError:
        return ()
    try:
        return [str(run["signature"]) for run in record["runs"]]
    except (KeyError, TypeError):
        return ()


def ended_well(paths: LaunchPaths, index: int) -> bool:
    """Whether the final event of a run's latest attempt is that it completed."""
    # Texts, not Paths: of ten thousand runs, half of the time went into making them.
    attempts = str(paths.run(index).attempts)
    try:
        numbers = [int(name) for name in os.listdir(attempts) if name.isdecimal()]  # noqa: PTH208
        events = str(paths.run(index).attempt(max(numbers)).events)
        with open(events, "rb", buffering=0) as file:  # noqa: PTH123  # as above
            file.seek(max(0, file.seek(0, os.SEEK_END) - _ENDING_BYTES))
            last = json.loads(file.read().rstrip(b"\n").rpartition(b"\n")[2])
        return bool(last["event"] == "attempt_ended" and last["state"] == RunState.completed)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def code_identity(snapshot: CodeSnapshot, sums: str | None = None) -> str | None:
    """Return the same text for the same code in the same place; None where that cannot be known.

    Of a snapshot that is the content of its files (`sums`, where they are known, as of
    `changed.sums_text`); without one the commit and what git tracks in the project: outside git
    nothing tells whether its files are what they were.
    """
    places = (snapshot.working_dir, *snapshot.python_path)
    if snapshot.files is not None:
        links = {file.path: file.link for file in snapshot.files if file.link is not None}
        known = sums_text(snapshot, snapshot.root) if sums is None else sums
        return _files_identity(known, links, places)
    git = snapshot.git
    if git is None or git.commit is None:
        return None
    return _checkout_identity(str(snapshot.project), git.commit, git.diff, places)


def frozen_identity(paths: LaunchPaths) -> str | None:
    """Return what `code_identity` gave when a launch was frozen; None where nobody can tell."""
    record = _record(paths.code_record)
    if "identity" in record:
        return record["identity"] or None
    try:
        code = _record(paths.launch)["code"]
        places = (code["working_dir"], *code["python_path"])
        if record["snapshot"]:
            return _files_identity(_text(paths.code_sums), {}, places)
        diff = _text(paths.code_diff) if paths.code_diff.exists() else ""
        commit = record["commit"]
        return commit and _checkout_identity(record["project"], commit, diff, places)
    except (OSError, KeyError, TypeError):
        return None


def frozen_project(paths: LaunchPaths) -> str | None:
    """Return the folder of the project that a launch was made from; None where it was not kept."""
    project = _record(paths.code_record).get("project")
    return project if isinstance(project, str) else None


def _files_identity(sums: str, links: Mapping[str, str], places: Sequence[str]) -> str:
    return f"files:{_digest([sums, *(f'{link}>{links[link]}' for link in sorted(links)), *places])}"


def _checkout_identity(project: str, commit: str, diff: str, places: Sequence[str]) -> str:
    return f"commit:{_digest([project, commit, diff, *places])}"


def _digest(parts: Sequence[str]) -> str:
    text = json.dumps(parts, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def _record(path: Path) -> dict[str, Any]:
    """Return a JSON object of a file, empty where it cannot be read."""
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
